"""The config: what its keys take, lines and nearest keys in errors, overrides, and paths."""

import re
from pathlib import Path
from typing import Any

import pytest

import chunkvisor
from chunkvisor.config.choices import Start
from chunkvisor.config.load import LoadedConfig, from_values, load, parse
from chunkvisor.config.model import Config
from chunkvisor.errors import Halt
from harness import halts

STARTER = Path(chunkvisor.__file__).with_name("starter.yaml").read_text()
OUTPUT = {"source": "a.csv", "column": "text"}
LEAST = """\
workdir: w
model: {name: org/model}
outputs:
  a: {source: a.csv, column: text}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder the current one, so that messages show short names."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build(folder: Path | str = "/data", **sections: Any) -> Config:
    """Validate the least that is needed, and `sections`."""
    least = {"workdir": "w", "model": {"name": "org/model"}, "outputs": {"a": OUTPUT}}
    return from_values(least | sections, Path(folder))


def load_text(text: str | bytes, *overrides: str) -> LoadedConfig:
    """Load a file `config.yaml` with that text in the current folder."""
    Path("config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(Path("config.yaml"), overrides)


def problems_of(text: str | bytes, *overrides: str) -> list[str]:
    """List the problems that the file is refused for."""
    with halts(78) as caught:
        load_text(text, *overrides)
    return caught.value.what.split("\n")


def value_at(config: object, dotted: str) -> Any:
    """Read the value of a dotted key."""
    for part in dotted.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


def nested(dotted: str, value: Any) -> dict[str, Any]:
    """Wrap a value in its sections; the name of a model is always needed."""
    section, _, key = dotted.rpartition(".")
    if section == "model":
        return {"model": {"name": "org/model", key: value}}
    if section == "outputs.a":
        return {"outputs": {"a": {**OUTPUT, key: value}}}
    return {section: {key: value}} if section else {key: value}


@pytest.mark.parametrize(
    ("key", "given", "read"),
    [
        ("chunk.size", "1_000", 1000),
        ("chunk.size", 200.0, 200),
        ("chunk.size", "auto", "auto"),
        ("encode.prompt", "", ""),
        ("encode.kwargs", None, {}),
        ("model.encoder", "my_package.encoders:build", "my_package.encoders:build"),
        ("model.kwargs", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        ("device", ["cuda:0", "cuda:3"], ("cuda:0", "cuda:3")),
        (
            "outputs",
            {"a": {"source": ["a.txt.gz", "B.TXT"]}},
            build(outputs={"a": {"source": ["a.txt.gz", "B.TXT"], "column": "text"}}).outputs,
        ),
        ("workers.start", "fresh", Start.FRESH),
        ("recovery.startup_timeout", "10m", 600.0),
        ("recovery.wait_timeout", "1.5 h", 5400.0),
        ("ingest.memory_limit", "512 MiB", 512 << 20),
        ("env", None, {}),
        ("recovery", None, build().recovery),
    ],
)
def test_accepted(key: str, given: Any, read: Any) -> None:
    """Values are read as people write them, and an empty section is its defaults."""
    assert value_at(build(**nested(key, given)), key) == read


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("chunk.size", (0, -1, True, 1.5, "many", None, [], float("nan"), 100_001)),
        ("encode.batch_size", (0, "Auto", None)),
        ("encode.normalize", (1, "true")),
        ("encode.task", ("passage",)),
        ("encode.kwargs", (3, {"batch_size": 3}, {"normalize_embeddings": True}, {"prompt": ""})),
        ("model.pooling", ("last",)),
        ("model.trust_remote_code", ("yes",)),
        ("model.name", ("", "a\0")),
        ("model.dtype", ("fp16", "int8")),
        ("model.encoder", ("module", "a:b:c", "a.:b", "1a:b", ":", None)),
        ("model.kwargs", ([], {1: 2}, {"a": object()}, {"token": "x"}, {"dtype": 1})),
        ("device", ("gpu", "cuda:-1", "cuda:01", [], ["cuda", "cpu"], "cuda:0\n", None)),
        ("workers.standby", (9, -1, True)),
        ("recovery.stall_timeout", (0, -1, "soon", "5x", float("inf"), "60d", True, None, "")),
        ("ingest.memory_limit", ("much", 1, True, -1, None)),
        (
            "env",
            (
                {"A": True},
                {"A": None},
                {"A": "\0"},
                {"1A": "x"},
                {"A=B": "x"},
                {"CUDA_VISIBLE_DEVICES": "1"},
            ),
        ),
        ("outputs", ({}, {".a": OUTPUT}, {"a/b": OUTPUT}, {"a" * 101: OUTPUT}, {"a.b": OUTPUT})),
        ("outputs", ({"a": {**OUTPUT, "chunk": {"keep": True}}})),
        ("outputs.a.column", (None,)),
        ("outputs.a.sql", ("b",)),
        (
            "outputs.a.source",
            ([], "a\0.csv", {"database": "a.db", "query": "SELECT 1"}, ["a.txt", 3]),
        ),
        ("outputs.a.dtype", ("float64", "int8", 8)),
        ("outputs.a.columns", (["row"], ["b", "B"], [""], 3, ["Vector"])),
        ("combine", ({"b": ["a"]}, {"b": ["a", "a"]}, {"b": ["a", "nowhere"]}, {"a": ["a", "a"]})),
        ("workdir", ("", 3, "s3://bucket", "$SCRATCH/w")),
        ("metrics.textfile", ("", "rates.txt")),
        ("notify", (None, {"mail": "me"}, ["json://localhost"] * 21)),
    ],
)
def test_refused(key: str, wrong: tuple[Any, ...]) -> None:
    """A value that cannot be meant is refused, and so is a key that is not there."""
    for each in wrong:
        with pytest.raises(Halt):
            build(**nested(key, each))


def test_only_like_outputs_are_combined() -> None:
    """Outputs of other numbers or other rows cannot stand side by side."""
    for combined in ({"dtype": "float16"}, {"where": "id > 3"}):
        (key,) = combined
        with pytest.raises(Halt, match=f"combine.both: a and b differ in {key}"):
            build(outputs={"a": OUTPUT, "b": OUTPUT | combined}, combine={"both": ["a", "b"]})


def test_an_address_stays_as_it_is_and_holds_no_secret() -> None:
    """An address is not joined to the config's folder; one with a password or a token is refused
    and not repeated.
    """
    addresses = (
        "s3://bucket/a/*.csv",
        "hf://datasets/me/set@main/a.csv.gz",
        "https://host/a.txt?download=true",
    )
    assert (
        build(outputs={"a": {"source": list(addresses), "column": "c"}}).outputs["a"].source
        == addresses
    )
    for secret in (
        "s3://key:hunter2@bucket/a.csv",
        "https://host/a.csv?download=true&access_token=hunter2",
    ):
        with pytest.raises(Halt) as raised:
            build(outputs={"a": {"source": secret, "column": "c"}})
        assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("general", "own", "changed"),
    [
        ({"batch_size": 8, "truncate_dim": 64}, {"truncate_dim": None}, {"truncate_dim": None}),
        ({"prompt": "q: "}, {"prompt_name": "query"}, {"prompt": None, "prompt_name": "query"}),
        ({"prompt_name": "query"}, {"prompt": "q: "}, {"prompt": "q: ", "prompt_name": None}),
        ({"prompt": "q: "}, {"prompt": ""}, {"prompt": ""}),
    ],
)
def test_an_output_overrides_what_it_gives(
    general: dict[str, Any], own: dict[str, Any], changed: Any
) -> None:
    """An output overrides only the keys it gives, even if it gives null; its own prompt stands
    alone.
    """
    config = build(
        encode=general, chunk={"size": 500}, outputs={"a": {**OUTPUT, "encode": own}, "b": OUTPUT}
    )
    assert config.effective_encode("a") == config.encode.model_copy(update=changed)
    assert config.effective_encode("b") == config.encode
    assert config.effective_chunk_size("b") == 500


def test_paths_start_at_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths become absolute, through a link and from a folder with brackets, too; `~` is
    the home folder.
    """
    monkeypatch.setenv("HOME", "/home/me")
    config = build(
        workdir="~/w",
        outputs={"a": {"source": ["a.csv", "d/*.csv", "~/b.csv", "/c.csv"], "column": "t"}},
    )
    assert config.workdir == Path("/home/me/w")
    assert config.outputs["a"].source == (
        "/data/a.csv",
        "/data/d/*.csv",
        "/home/me/b.csv",
        "/c.csv",
    )
    odd = tmp_path / "[old]"
    odd.mkdir()
    (odd / "a[1].csv").touch()
    (tmp_path / "link").symlink_to(odd)
    sources = (
        build(odd, outputs={"a": {"source": ["*.csv", "a[1].csv"], "column": "t"}})
        .outputs["a"]
        .source
    )
    assert sources == (f"{tmp_path}/[[]old]/*.csv", f"{odd}/a[1].csv")
    assert build(tmp_path / "link", workdir="../w").workdir == tmp_path.resolve() / "w"


def test_local_model_becomes_absolute(tmp_path: Path) -> None:
    """An existing folder is a local model; any other name, and the name for a plug-in, stays as
    written.
    """
    (tmp_path / "models").mkdir()
    assert build(tmp_path, model={"name": "models"}).model.name == str(tmp_path / "models")
    assert build(tmp_path, model={"name": "org/models"}).model.name == "org/models"
    plugin = {"name": "models", "encoder": "mine:build", "kwargs": {"device": "tpu"}}
    assert build(tmp_path, model=plugin).model.name == "models"


def test_starter(folder: Path) -> None:
    """The starter is valid; any key of it, or all, can be uncommented; what its reader must change
    is marked.
    """
    lines = STARTER.splitlines()
    plain = load_text(STARTER).config
    keys = [
        number
        for number, line in enumerate(lines)
        if line.startswith("  # ") or re.match("# [a-z_]+: ", line)
    ]
    assert len(keys) > 30
    for number in keys:
        changed = [*lines[:number], lines[number].replace("# ", "", 1), *lines[number + 1 :]]
        assert load_text("\n".join(changed)).config == plain, lines[number]
    alternatives = ("template:", "sql:", "source: {", "encode: {", "chunk: {")
    everything = [
        line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line for line in lines[3:]
    ]
    assert (
        load_text(
            "\n".join(line for line in everything if not line.strip().startswith(alternatives))
        ).config
        == plain
    )
    marked = [line.split(":")[0].strip() for line in lines[3:] if "<--" in line]
    assert marked == ["titles", "source", "column", "name", "device"]


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ("chunk: {sise: 2}", "5: chunk.sise: unknown key; did you mean chunk.size?"),
        ("zzz: {zzz: 1}", "5: zzz: unknown key; valid are: workdir, model"),
        (
            "encode:\n  batch_size: 0",
            "6: encode.batch_size: 0 should be greater than or equal to 1, or 'auto'",
        ),
        ("batch_size: 2", "5: batch_size: unknown key; did you mean encode.batch_size?"),
        ("chunk: {size: ten}", "5: chunk.size: \"ten\" should be an integer, or 'auto'"),
        ("chunk: {size: 1e99}", "5: chunk.size: 1e+99 should be a smaller number, or 'auto'"),
        (
            "device: cpu\ndevice: cuda",
            " not valid YAML: the key device stands at config.yaml:5 and again in line 6",
        ),
        ("encode: {prompt: no}", "5: encode.prompt: false should be text; text needs quotes here"),
        (
            "encode:\n  prompt: a\n  prompt_name: b",
            "5: encode: prompt and prompt_name are both given; keep one of them",
        ),
        ("env: {A-: x}", "5: env.A-: this should be a name for an environment variable"),
        ('env: {TOKEN: "secret\\0"}', "5: env.TOKEN: this should be text without a NUL character"),
        (
            "workers:\n\n  start: cold",
            "7: workers.start: \"cold\" should be 'fresh', 'warm' or 'auto'",
        ),
        ('"[key]": 1', "5: [key]: unknown key"),
    ],
)
def test_problem_with_line(folder: Path, added: str, problem: str) -> None:
    """Each wrong value is named with its key, its line and what would be right, or what to do
    instead.
    """
    (said,) = problems_of(LEAST + added)
    assert said.startswith(f"config.yaml:{problem}")


def test_all_problems_at_once(folder: Path) -> None:
    """One message holds every problem, with its line if it has one."""
    text = (
        "model: {nam: x}\noutputs:\n  a: {source: a.csv}\n  b: {source: 3, column: x}\ndevice: "
        "gpu\n"
    )
    assert problems_of(text) == [
        "config.yaml: workdir: this key is required",
        "config.yaml:1: model.name: this key is required",
        "config.yaml:1: model.nam: unknown key; did you mean model.name?",
        'config.yaml:5: device: "gpu" should be "cuda", "cuda:N" or "cpu", or a list of GPUs',
        "config.yaml:3: outputs.a: which text is to be encoded? One of column, template and sql is "
        "needed",
        "config.yaml:4: outputs.b.source: 3 should be text, or a list of texts",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# nothing\n", ": the file has no keys and values; if it is a source"),
        ("a: b: c", ": not valid YAML: mapping values are not allowed here in line 1, column 5"),
        ('a: 1\nb: "x\nc: d\n', ": not valid YAML: while scanning a quoted scalar in line 2"),
        ("- token: s3cret: x", ": not valid YAML"),
        ("a: \0", ": not valid YAML: unacceptable character #x0000"),
        (b"a: 1\nb: \xff", ": cannot be read as UTF-8 text"),
        ("a: !!python/object:os.system {}", ": not valid YAML: could not determine a constructor"),
        ("a: !!int x", ": not valid YAML: it is nested too deeply, or has a tag"),
        ("[" * 1000, ": not valid YAML: it is nested too deeply"),
        (" " * (2 << 20), ": cannot be read as UTF-8 text: it is larger than"),
    ],
)
def test_unreadable_text(folder: Path, text: str | bytes, problem: str) -> None:
    """Text that is not a YAML mapping is refused with line and column; what stands there may be a
    secret.
    """
    (said,) = problems_of(text)
    assert said.startswith(f"config.yaml{problem}")
    assert "s3cret" not in said


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0),
        ("0123456", "0123456"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("yes", True),
        ("", None),
    ],
)
def test_plain_words(text: str, value: Any) -> None:
    """Unquoted words mean what a reader of a config would take them for."""
    read, _ = parse(text, "a text")
    assert (type(read), read) == (type(value), value)


def test_unreadable_path(folder: Path) -> None:
    """A mistyped file name gets the nearest one; a folder or an impossible name is refused like any
    other mistake.
    """
    (folder / "quick.yaml").touch()
    with pytest.raises(Halt, match=r"this is a folder, not a config; configs in it: .*quick\.yaml"):
        load(folder)
    with pytest.raises(
        Halt, match=r"quik\.yaml: there is no such file; did you mean quick\.yaml\?"
    ):
        load(Path("quik.yaml"))
    for path in ("none/such.yaml", ".", "a\0b", "x" * 300):
        with halts(78):
            load(Path(path))


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("chunk.size=1e3", lambda config: config.chunk.size == 1000),
        ("encode.prompt='a=b: '", lambda config: config.encode.prompt == "a=b: "),
        ("encode.batch_tokens=", lambda config: config.encode.batch_tokens is None),
        ("model.kwargs.a.b=[1, 2]", lambda config: config.model.kwargs == {"a": {"b": [1, 2]}}),
        ("outputs.a.encode.normalize=true", lambda config: config.outputs["a"].encode.normalize),
        ("env={A: 1.50}", lambda config: config.env == {"A": "1.50"}),
        ("env.A=1.50", lambda config: config.env == {"A": "1.50", "B": "9.10", "C": "007"}),
    ],
)
def test_override(folder: Path, override: str, read: Any) -> None:
    """--set reaches every key, mends what is wrong in the file, and numbers of `env` keep their
    digits.
    """
    text = LEAST + "chunk:\nenv: {B: 9.10, C: 007}\ndevice: gpu\n"
    loaded = load_text(b"\xef\xbb\xbf" + text.encode(), *dict.fromkeys(("device=cuda", override)))
    assert read(loaded.config)
    assert loaded.folder == folder


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("chunk.sise=2", "--set chunk.sise=2: chunk.sise: unknown key; did you mean chunk.size?"),
        (
            "chunk.size=0",
            "--set chunk.size=0: chunk.size: 0 should be greater than or equal to 1, or 'auto'",
        ),
        (
            "chunk.size",
            "--set chunk.size: write it as --set KEY=VALUE, such as --set chunk.size=200",
        ),
        ("workdir.x=3", "--set workdir.x=3: workdir is a single value or a list and has no keys"),
        ("env.TOKEN=[secret]", "--set env.TOKEN=…: env.TOKEN: this should be text"),
    ],
)
def test_wrong_override(folder: Path, override: str, problem: str) -> None:
    """A wrong override is shown as it was given in place of a line; a value for env stays secret."""
    assert problems_of(LEAST, override) == [problem]
