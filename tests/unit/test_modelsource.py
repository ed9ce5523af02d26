"""Where a model is, told without asking the hub: on this machine, and on a node of a cluster."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from chunkvisor.config.load import from_values
from chunkvisor.config.model import ModelConfig
from chunkvisor.engine import modelsource
from chunkvisor.engine.modelsource import resolve_hub, resolve_local, source_at_hand
from chunkvisor.engine.ray.agent import model_path
from chunkvisor.errors import Halt
from chunkvisor.judge import Verdict
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
    """A relative name starts at the config's folder alone: what else it may mean is a hub id, or nothing."""
    monkeypatch.chdir(models)
    cache = models / "cache.json"
    found = source_at_hand(named("own/model", models), cache)
    assert found is not None
    assert found.path == str(models / "own" / "model")
    assert source_at_hand(named("own/model", models / "elsewhere"), cache) is None
    with pytest.raises(Halt, match="there is no model folder a/b/model"):
        source_at_hand(named("a/b/model", models / "elsewhere"), cache)


def test_a_node_must_have_the_same_model(models: Path, tmp_path: Path) -> None:
    """The folder is there with the same files, has others, or is missing; a plug-in needs none."""
    folder = models / "own" / "model"
    found = resolve_local(ModelConfig(name=str(folder)), tmp_path / "cache.json")
    model = ModelSpec(str(folder), str(folder), found.revision)
    assert model_path(model, tmp_path) == str(folder)
    assert model_path(ModelSpec("m"), Path("/nowhere")) is None
    (folder / "config.json").write_text('{"changed": 1}')
    with pytest.raises(Halt, match="cannot do this job") as halt:
        model_path(model, tmp_path)
    assert "no model folder" in halt.value.why
    (folder / "config.json").unlink()
    folder.rmdir()
    with pytest.raises(Halt) as halt:
        model_path(model, tmp_path)
    assert "no model folder" in halt.value.why


@pytest.mark.parametrize(("try_s", "limit_s"), [(7.0, 60.0), (900.0, 100.0)])
def test_a_wait_for_the_hub_ends(
    try_s: float, limit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last try begins within `recovery.wait_timeout` of the first failure, and there are some between."""
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
    with pytest.raises(Halt, match="cannot be downloaded"):
        resolve_hub(ModelConfig(name="a/b"), tmp_path / "m", tmp_path, limit_s, pause)
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
        assert source_at_hand(ModelConfig(name=name), tmp_path / "cache.json") is None
    with pytest.raises(HFValidationError) if name in IMPOSSIBLE else contextlib.nullcontext():
        validate_repo_id(name)
