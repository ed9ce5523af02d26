"""The models of the config: defaults, overrides of outputs, paths, and what each key takes."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from chunkvisor.config.choices import Dtype, OnBadRow, Start
from chunkvisor.config.load import from_values
from chunkvisor.config.model import Config
from chunkvisor.config.schema import config_schema
from chunkvisor.config.sections import Section
from chunkvisor.errors import Halt

SCHEMA = Draft202012Validator(config_schema())
OUTPUT = {"source": "a.csv", "column": "text"}


def build(folder: Path | str = "/data", **sections: Any) -> Config:
    """A Config of the least that is needed and `sections`."""
    values = {"workdir": "w", "model": {"name": "org/model"}, "outputs": {"a": OUTPUT}, **sections}
    return Config.model_validate(values, context={"folder": str(folder)})


def value_at(config: object, dotted: str) -> Any:
    """The value of a dotted key."""
    for part in dotted.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


def nested(dotted: str, value: Any) -> dict[str, Any]:
    """Sections that hold one value; the name of a model is always needed."""
    section, _, key = dotted.rpartition(".")
    if section == "model":
        return {"model": {"name": "org/model", key: value}}
    if section == "outputs.a":
        return {"outputs": {"a": {**OUTPUT, key: value}}}
    return {section: {key: value}} if section else {key: value}


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("model.revision", None),
        ("model.dtype", Dtype.AUTO),
        ("model.max_length", None),
        ("model.pooling", None),
        ("model.trust_remote_code", None),
        ("model.expect", None),
        ("model.kwargs", {}),
        ("model.encoder", "sentence-transformers"),
        ("encode.batch_size", "auto"),
        ("encode.batch_tokens", "auto"),
        ("encode.normalize", False),
        ("encode.prompt", None),
        ("encode.prompt_name", None),
        ("encode.task", None),
        ("encode.kwargs", {}),
        ("encode.truncate_dim", None),
        ("chunk.size", 1000),
        ("chunk.keep", False),
        ("device", ("cuda",)),
        ("workers.start", Start.AUTO),
        ("workers.standby", 1),
        ("workers.per_device", 1),
        ("recovery.attempts", 3),
        ("recovery.min_batch_size", 1),
        ("recovery.startup_timeout", 600.0),
        ("recovery.stall_timeout", 300.0),
        ("recovery.wait_timeout", 600.0),
        ("recovery.grace", 25.0),
        ("recovery.on_bad_row", OnBadRow.QUARANTINE),
        ("recovery.max_bad_rows", 100),
        ("env", {}),
        ("ingest.memory_limit", 1 << 30),
        ("outputs.a.skip_blank", False),
    ],
)
def test_default(key: str, default: Any) -> None:
    """A key that is not given has its documented default."""
    assert value_at(build(), key) == default


@pytest.mark.parametrize(
    ("key", "given", "read"),
    [
        ("chunk.size", "1_000", 1000),
        ("chunk.size", "1e3", 1000),
        ("chunk.size", 200.0, 200),
        ("chunk.size", "auto", "auto"),
        ("encode.batch_tokens", None, None),
        ("encode.batch_size", 16, 16),
        ("encode.prompt", "", ""),
        ("model.max_length", 512, 512),
        ("model.pooling", "lasttoken", "lasttoken"),
        ("model.trust_remote_code", False, False),
        ("model.expect", "e.jsonl", Path("/data/e.jsonl")),
        ("encode.task", "query", "query"),
        ("encode.kwargs", {"task": "retrieval.passage"}, {"task": "retrieval.passage"}),
        ("encode.kwargs", None, {}),
        ("model.encoder", "my_package.encoders:build", "my_package.encoders:build"),
        ("model.kwargs", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        ("device", ["cuda:3"], ("cuda:3",)),
        ("device", ["cuda:0", "cuda:3"], ("cuda:0", "cuda:3")),
        ("device", "cpu", ("cpu",)),
        ("workers.start", "fresh", Start.FRESH),
        ("workers.start", "warm", Start.WARM),
        ("workers.standby", 0, 0),
        ("recovery.startup_timeout", "10m", 600.0),
        ("recovery.stall_timeout", "30s", 30.0),
        ("recovery.wait_timeout", "1.5 h", 5400.0),
        ("recovery.stall_timeout", 0.5, 0.5),
        ("recovery.grace", "25s", 25.0),
        ("recovery.grace", 90, 90.0),
        ("recovery.max_bad_rows", 0, 0),
        ("ingest.memory_limit", "512 MiB", 512 << 20),
        ("ingest.memory_limit", "2GB", 2 * 10**9),
        ("ingest.memory_limit", "2Gi", 2 << 30),
        ("ingest.memory_limit", 1 << 28, 1 << 28),
        ("env", {"OMP_NUM_THREADS": 4}, {"OMP_NUM_THREADS": "4"}),
        ("env", None, {}),
        ("recovery", None, build().recovery),
    ],
)
def test_accepted(key: str, given: Any, read: Any) -> None:
    """Values are read as people write them, and an empty section is its defaults; the schema for editors agrees."""
    assert value_at(build(**nested(key, given)), key) == read
    assert SCHEMA.is_valid({"workdir": "w", "model": {"name": "m"}, "outputs": {"a": OUTPUT}, **nested(key, given)})


NO_SIZES: tuple[Any, ...] = (0, -1, True, 1.5, "many", None, [], float("nan"), 10**12)
NO_KWARGS: tuple[Any, ...] = ([], {"a": float("nan")}, {1: 2}, {"a": object()}, {"token": "x"}, {"dtype": 1})


@pytest.mark.parametrize(
    ("key", "given"),
    [
        *[("chunk.size", each) for each in NO_SIZES],
        *[("encode.batch_size", wrong) for wrong in (0, "Auto", None, "1__0.5x")],
        ("encode.batch_tokens", 0),
        ("encode.normalize", 1),
        ("encode.normalize", "true"),
        ("encode.prompt", 3),
        ("encode.prompt_name", ""),
        ("encode.task", "passage"),
        *[("encode.kwargs", wrong) for wrong in (3, {"batch_size": 3}, {"normalize_embeddings": True}, {"prompt": ""})],
        ("model.pooling", "last"),
        ("model.trust_remote_code", "yes"),
        ("model.expect", ""),
        ("encode.truncate_dim", 0),
        ("model.name", ""),
        ("model.name", "a\0"),
        ("model.dtype", "fp16"),
        ("model.revision", 12),
        *[("model.encoder", wrong) for wrong in ("module", "a:b:c", "a.:b", "1a:b", "a:class", ":", None)],
        *[("model.kwargs", each) for each in NO_KWARGS],
        *[("device", wrong) for wrong in ("gpu", "cuda:", "cuda:-1", "cuda:01", [], ["cuda", "cpu"], "cuda:0\n", None)],
        *[("workers.start", wrong) for wrong in ("cold", "Warm", None)],
        *[("workers.standby", wrong) for wrong in (9, -1, True)],
        ("workers.per_device", 17),
        ("recovery.attempts", 0),
        *[("recovery.stall_timeout", w) for w in (0, -1, "soon", "5x", float("inf"), "1e999", "60d", True, None, "")],
        ("recovery.on_bad_row", "skip"),
        ("recovery.max_bad_rows", -1),
        *[("ingest.memory_limit", wrong) for wrong in ("1GiB of RAM", "much", 1, True, -1, None, "1e99")],
        ("env", {"A": True}),
        ("env", {"A": None}),
        ("env", {"A": "\0"}),
        ("env", {"A": "\ud800"}),
        ("env", {"1A": "x"}),
        ("env", {"A=B": "x"}),
        ("env", {"CUDA_VISIBLE_DEVICES": "1"}),
        ("env", {"HF_HUB_OFFLINE": "0"}),
        ("outputs", {}),
        ("outputs", {".a": OUTPUT}),
        ("outputs", {"a/b": OUTPUT}),
        ("outputs", {"a\n": OUTPUT}),
        ("outputs", {"a" * 101: OUTPUT}),
        ("outputs", {"train": OUTPUT, "Train": OUTPUT}),
        ("outputs", {"a": {"source": "a.csv"}}),
        ("outputs", {"a": {"source": ["a.txt", "b.csv"]}}),
        ("outputs", {"a": {"source": "a.csv", "column": "a", "sql": "b"}}),
        ("outputs", {"a": {"source": [], "column": "a"}}),
        ("outputs", {"a": {"source": "a\0.csv", "column": "a"}}),
        ("outputs", {"a": {"source": {"database": "a.db", "query": "SELECT 1"}, "column": "a"}}),
        ("outputs", {"a": {**OUTPUT, "chunk": {"keep": True}}}),
        *[("outputs", {"a": {**OUTPUT, "shards": wrong}}) for wrong in (0, -1, 1.5, "auto", True, 10_001)],
        ("outputs", {"report.html": {**OUTPUT, "shards": 2}}),
        *[("outputs", {"a": {**OUTPUT, "format": wrong}}) for wrong in ("csv", None, "NPY")],
        *[("outputs", {"a": {**OUTPUT, "dtype": wrong}}) for wrong in ("float64", "binary", 8)],
        *[("outputs", {"a": {**OUTPUT, "columns": wrong}}) for wrong in (["row"], ["b", "B"], [""], 3, ["Vector"])],
        *[("outputs", {"a": {**OUTPUT, "where": wrong}}) for wrong in ("", 1, ["a"])],
        ("outputs", {"a": {**OUTPUT, "dtype": "int8"}, "a.ranges": OUTPUT}),
        ("outputs", {"a": {**OUTPUT, "columns": ["b"]}, "a.rows": {**OUTPUT, "format": "parquet"}}),
        *[("combine", {"b": wrong}) for wrong in (["a"], ["a", "a"], ["a", "nowhere"], "a", [])],
        ("outputs", {"a": OUTPUT, "A.json": {**OUTPUT, "shards": 2}}),
        ("outputs", {"a": OUTPUT, "a.npy": {**OUTPUT, "shards": 2}}),
        ("workdir", ""),
        ("workdir", 3),
        ("engine", "ray"),
        ("metrics", {"port": 9100}),
        ("metrics", {"textfile": ""}),
        ("metrics", {"textfile": "rates.txt"}),
        ("notify", None),
        ("notify", {"mail": "me"}),
        ("notify", ["json://localhost"] * 21),
    ],
)
def test_refused(key: str, given: Any) -> None:
    """A value that cannot be meant is refused, and so is a key that is not there yet."""
    with pytest.raises(ValidationError):
        build(**nested(key, given))


def test_both_prompts_are_refused() -> None:
    """A prompt and the name of a prompt exclude each other."""
    with pytest.raises(ValidationError, match="prompt and prompt_name are both given"):
        build(encode={"prompt": "query: ", "prompt_name": "query"})


@pytest.mark.parametrize(
    "address",
    [
        "s3://key:hunter2@bucket/a.csv",
        "https://hunter2@host/a.csv",
        "https://host/a.csv?X-Amz-Signature=hunter2",
        "https://host/a.csv?download=true&access_token=hunter2",
        "s3://",
        "file:///a.csv",
    ],
)
def test_an_address_with_a_secret_is_refused(address: str) -> None:
    """Whoever may read is said elsewhere: an address with a password or a token is refused and not repeated."""
    with pytest.raises(Halt) as raised:
        from_values(
            {"workdir": "w", "model": {"name": "m"}, "outputs": {"a": {"source": ["a.csv", address], "column": "c"}}},
            Path("/data"),
        )
    assert raised.value.code == 78
    assert "hunter2" not in str(raised.value)


def test_an_address_stays_as_it_is() -> None:
    """What is elsewhere is not joined to the folder of the config, whatever case or version its address has."""
    addresses = ("s3://bucket/a/*.csv", "hf://datasets/me/set@main/a.csv.gz", "https://host/a.txt?download=true")
    assert build(outputs={"a": {"source": list(addresses), "column": "c"}}).outputs["a"].source == addresses


@pytest.mark.parametrize("source", ["a.txt", ["a.txt.gz", "B.TXT", "c.txt.zst"], "texts/*.txt"])
def test_text_files_need_no_column(source: Any) -> None:
    """Sources that are all plain text have the one column `text`."""
    assert build(outputs={"a": {"source": source}}).outputs["a"].column == "text"


def test_effective_encode() -> None:
    """An output overrides only the keys it gives, even where it gives the default or null."""
    config = build(
        encode={"batch_size": 8, "normalize": True, "truncate_dim": 64},
        outputs={"a": {**OUTPUT, "encode": {"batch_size": "auto", "truncate_dim": None}}, "b": OUTPUT},
    )
    assert config.effective_encode("a") == config.encode.model_copy(update={"batch_size": "auto", "truncate_dim": None})
    assert config.effective_encode("b") == config.encode


@pytest.mark.parametrize(
    ("general", "own", "prompt", "prompt_name"),
    [
        ({"prompt": "q: "}, {"prompt_name": "query"}, None, "query"),
        ({"prompt_name": "query"}, {"prompt": "q: "}, "q: ", None),
        ({"prompt": "q: "}, {"prompt": None}, None, None),
        ({"prompt": "q: "}, {"prompt": ""}, "", None),
        ({"prompt": "q: "}, {"normalize": True}, "q: ", None),
    ],
)
def test_own_prompt_replaces_the_general_one(
    general: dict[str, Any], own: dict[str, Any], prompt: str | None, prompt_name: str | None
) -> None:
    """An output's own prompt stands alone, whichever way it is given."""
    encode = build(encode=general, outputs={"a": {**OUTPUT, "encode": own}}).effective_encode("a")
    assert (encode.prompt, encode.prompt_name) == (prompt, prompt_name)


def test_effective_chunk_size() -> None:
    """An output's own chunk size counts before the general one."""
    config = build(chunk={"size": 500}, outputs={"a": {**OUTPUT, "chunk": {"size": 20}}, "b": OUTPUT})
    assert [config.effective_chunk_size(name) for name in ("a", "b")] == [20, 500]


def test_paths_start_at_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths become absolute, `~` is the home folder, and patterns stay patterns."""
    monkeypatch.setenv("HOME", "/home/me")
    config = build(workdir="~/w", outputs={"a": {"source": ["a.csv", "d/*.csv", "~/b.csv", "/c.csv"], "column": "t"}})
    assert config.workdir == Path("/home/me/w")
    assert config.outputs["a"].source == ("/data/a.csv", "/data/d/*.csv", "/home/me/b.csv", "/c.csv")


def test_paths_above_the_folder(tmp_path: Path) -> None:
    """Leading `..` are resolved as the system does it, through a folder that is a symbolic link, too."""
    (tmp_path / "real" / "configs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "configs")
    above = str((tmp_path / "real").resolve())
    config = build(tmp_path / "link", workdir="../w", outputs={"a": {"source": "../d/*.csv", "column": "t"}})
    assert (str(config.workdir), config.outputs["a"].source) == (f"{above}/w", (f"{above}/d/*.csv",))


def test_folder_that_looks_like_a_pattern(tmp_path: Path) -> None:
    """A pattern matches below a folder whose own name holds brackets; an existing file is taken by its name."""
    folder = tmp_path / "[old]"
    folder.mkdir()
    (folder / "a[1].csv").touch()
    config = build(folder, outputs={"a": {"source": ["*.csv", "a[1].csv", "b.csv"], "column": "t"}})
    assert config.outputs["a"].source == (
        f"{tmp_path}/[[]old]/*.csv",
        f"{folder}/a[1].csv",
        f"{folder}/b.csv",
    )


def test_local_model_becomes_absolute(tmp_path: Path) -> None:
    """An existing folder is a local model; any other name, and the name for a plug-in, stays as written."""
    (tmp_path / "models").mkdir()
    assert build(tmp_path, model={"name": "models"}).model.name == str(tmp_path / "models")
    assert build(tmp_path, model={"name": "org/models"}).model.name == "org/models"
    assert build(tmp_path, model={"name": "models", "encoder": "mine:build"}).model.name == "models"


def test_plugin_takes_any_kwargs() -> None:
    """What a plug-in's arguments are called is its own affair."""
    model = {"name": "x", "encoder": "mine:build", "kwargs": {"device": "tpu"}}
    assert build(model=model).model.kwargs == {"device": "tpu"}


def test_models_are_frozen() -> None:
    """A validated config does not change."""
    with pytest.raises(ValidationError):
        build().workdir = Path("elsewhere")


def test_config_survives_json() -> None:
    """A dumped config loads again as the same one."""
    config = build(outputs={"a": {**OUTPUT, "encode": {"batch_size": 2}}})
    dumped = json.loads(json.dumps(config.model_dump(mode="json", exclude_unset=True)))
    assert Config.model_validate(dumped) == config


def test_every_key_is_described() -> None:
    """Each key has a description, which the documentation is made of, and the JSON schema can be built."""

    def sections(kind: type[BaseModel]) -> list[type[BaseModel]]:
        return [each for child in kind.__subclasses__() for each in (child, *sections(child))]

    for section in sections(Section):
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"
    assert "workdir" in Config.model_json_schema()["properties"]
