"""Where a model is, told without asking the hub: on this machine, and on a node of a cluster."""

import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from chunkvisor.config.load import from_values
from chunkvisor.config.model import ModelConfig
from chunkvisor.engine import modelsource
from chunkvisor.engine.modelfolder import Repository
from chunkvisor.engine.modelsource import (
    ModelSource,
    known_source,
    resolve_hub,
    resolve_local,
    resolve_outside,
)
from chunkvisor.engine.ray.agent import find_model
from chunkvisor.errors import Halt
from chunkvisor.judge import Verdict
from chunkvisor_worker.contract.correctness import numbers_of
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import ModelSpec
from late import needs


def named(name: str, folder: Path) -> ModelConfig:
    """The model of a config in that folder."""
    outputs = {"out": {"source": "rows.txt"}}
    return from_values(
        {"workdir": "w", "model": {"name": name}, "outputs": outputs}, folder, ()
    ).model


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with the models own/model and a/b/model, and an empty one `elsewhere` next to them."""
    for name in ("own/model", "a/b/model"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def test_the_current_folder_makes_no_difference(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative name starts at the config's folder alone: what else it may mean is a hub id, or
    nothing.
    """
    monkeypatch.chdir(models)
    cache = models / "cache.json"
    found = known_source(named("own/model", models), cache)
    assert found is not None
    assert found.path == str(models / "own" / "model")
    assert known_source(named("own/model", models / "elsewhere"), cache) is None
    with pytest.raises(Halt, match="there is no model folder a/b/model"):
        known_source(named("a/b/model", models / "elsewhere"), cache)


def test_a_node_must_have_the_same_model(models: Path, tmp_path: Path) -> None:
    """The folder is there with the same files, has others, or is missing; a plug-in needs none."""
    folder, base = models / "own" / "model", models / "a" / "b" / "model"
    adapter = {"base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    found, other = (resolve_local(each, tmp_path / "cache.json") for each in (folder, base))
    outside = {str(base): str(other.revision)}
    model = ModelSpec(str(folder), str(folder), found.revision, outside=outside)
    assert find_model(model, tmp_path).path == str(folder)
    assert find_model(ModelSpec("m"), Path("/nowhere")).path is None
    (base / "config.json").write_text('{"changed": 1}')
    with pytest.raises(Halt, match="cannot do this job") as halt:
        find_model(model, tmp_path)
    assert "no model folder" in halt.value.why
    shutil.rmtree(folder)
    with pytest.raises(Halt) as halt:
        find_model(model, tmp_path)
    assert "no model folder" in halt.value.why


@pytest.mark.parametrize(("try_s", "limit_s"), [(7.0, 60.0), (900.0, 100.0)])
def test_a_wait_for_the_hub_ends(
    try_s: float, limit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last try begins within `recovery.wait_timeout` of the first failure, and there are some
    between.
    """
    now_s, began_s = 1.0, list[float]()

    def fetch(*_: object) -> Verdict:
        nonlocal now_s
        began_s.append(now_s)
        now_s += try_s
        return Verdict(Outcome.HUB, "no route")

    def pause(seconds: float, _waited_s: float, _why: str) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(modelsource, "fetch_model", fetch)
    monkeypatch.setattr(modelsource, "time", SimpleNamespace(monotonic=lambda: now_s))
    wanted = Repository("a/b", None)
    with pytest.raises(Halt, match="cannot be downloaded"):
        resolve_hub(wanted, "the model a/b", tmp_path / "m", tmp_path, limit_s, pause)
    assert began_s[-1] - (began_s[0] + try_s) <= limit_s
    assert 2 <= len(began_s) <= 40


POSSIBLE = ("gpt2", "sentence-transformers/all-MiniLM-L6-v2", "_a/b_", "o" * 96 + "/" + "n" * 96)
IMPOSSIBLE = (
    "n" * 97,
    "my model",
    "a--b",
    "a..b",
    "name.git",
    "-name",
    "owner/.name",
    "owner/",
    "a/b/c",
    "models\\x",
)


@needs("huggingface_hub")
@pytest.mark.parametrize("name", [*POSSIBLE, *IMPOSSIBLE])
def test_names_that_no_hub_can_have(name: str, tmp_path: Path) -> None:
    """They are refused before the hub is asked; no name is refused that huggingface_hub takes."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    with (
        pytest.raises(Halt, match="no model folder")
        if name in IMPOSSIBLE
        else contextlib.nullcontext()
    ):
        assert known_source(ModelConfig(name=name), tmp_path / "cache.json") is None
    with pytest.raises(HFValidationError) if name in IMPOSSIBLE else contextlib.nullcontext():
        validate_repo_id(name)


AUTO = {"AutoModel": "own/code--modeling.Own", "AutoConfig": "modeling.Own"}
KIND = "sentence_transformers.models."
NAMING: dict[str, Any] = {
    "modules.json": [
        {"path": "", "type": f"{KIND}Transformer"},
        {"path": "1", "type": "own/module--custom.Own"},
        {"path": "2", "type": f"{KIND}Asym"},
    ],
    "config.json": {"auto_map": AUTO},
    "tokenizer_config.json": {"auto_map": ["own/tokenizer--tokens.Own", None]},
    "preprocessor_config.json": {
        "auto_map": {"AutoProcessor": [None, "own/processor--custom.Own"]}
    },
    "sentence_bert_config.json": {"tokenizer_name_or_path": "own/tokens"},
    "1/config.json": {"auto_map": {"AutoModel": "own/later--modeling.Own"}},
    "2/config.json": {"types": {"a": "own/route--custom.Own", "b": f"{KIND}Transformer"}},
    "2/b/adapter_config.json": {"base_model_name_or_path": "own/adapter"},
}
"""Files of a model that names another repository in each place where it may."""
ON_HUB: dict[str, dict[str, Any]] = {
    "own/adapter": {"adapter_config.json": {"base_model_name_or_path": "own/base"}},
    "own/base": {"config.json": {"auto_map": {"AutoModel": "own/of_base--modeling.Own"}}},
}
CODE = ("code", "module", "tokenizer", "processor", "later", "route", "of_base")


def write(folder: Path, contents: dict[str, Any]) -> str:
    """Write JSON files."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize("trusted", [True, False, None])
def test_what_a_models_files_name_outside_it(trusted: bool | None, tmp_path: Path) -> None:
    """It is fetched, and laid out for the workers: all that makes the vectors, and no code that is
    not trusted.

    Undecided code of an adapter's base is refused.
    """

    def fetch(wanted: Repository, _: str) -> ModelSource:
        name = f"models--{wanted.name.replace('/', '--')}"
        place = tmp_path / "shared" / name / "snapshots" / wanted.name.replace("/", "-")
        place.mkdir(parents=True)
        return ModelSource(write(place, ON_HUB.get(wanted.name, {})), place.name)

    source = ModelSource(write(tmp_path / "model", NAMING), None)
    model = ModelConfig(name=str(source.path), trust_remote_code=trusted)
    undecided = pytest.raises(Halt, match=r"modeling\.py of own/of_base")
    with undecided if trusted is None else contextlib.nullcontext():
        resolve_outside(source, model, fetch, tmp_path / "hub")
    if trusted is None:
        return

    expected = {"tokens", "adapter", "base", *(CODE if trusted else ())}
    assert source.revisions == {f"own/{name}": f"own-{name}" for name in expected}
    for name in expected:
        repository = tmp_path / "hub" / f"models--own--{name}"
        assert (repository / "refs" / "main").read_text() == f"own-{name}"
        assert (repository / "snapshots" / f"own-{name}").is_dir()


def test_a_model_that_names_itself(tmp_path: Path) -> None:
    """Its code is of the commit that is loaded, whatever the newest one is."""
    snapshot = tmp_path / "models--own--code" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"auto_map": AUTO}))
    source, model = (
        ModelSource(str(snapshot), "abc"),
        ModelConfig(name="own/code", trust_remote_code=True),
    )

    resolve_outside(source, model, Mock(side_effect=AssertionError), tmp_path / "hub")

    source.check_unchanged()
    assert source.revisions == {"own/code": "abc"}
    assert (tmp_path / "hub" / "models--own--code" / "refs" / "main").read_text() == "abc"


def test_versions_are_compared_as_numbers() -> None:
    """Version 10 is later than 5, and 4.100 later than 4.57, whatever stands around the numbers."""
    versions = ["4.9.2", "transformers 4.57.6.dev0", "4.100", "transformers 5.0.0", "10.1"]
    assert sorted(versions, key=numbers_of) == versions
