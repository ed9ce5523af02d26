"""Where a model is, told without asking the hub."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from chunkvisor.config.load import from_values
from chunkvisor.config.model import ModelConfig
from chunkvisor.engine import modelsource
from chunkvisor.engine.modelsource import (
    folder_like,
    name_problem,
    resolve_hub,
    resolve_local,
    revision_at_hand,
    source_at_hand,
)
from chunkvisor.errors import Halt
from chunkvisor.judge import Budget, Verdict
from chunkvisor_worker.contract.exits import Outcome
from late import needs


def named(name: str, folder: Path) -> ModelConfig:
    """The model of a config in that folder."""
    outputs = {"out": {"source": "rows.txt"}}
    return from_values({"workdir": "w", "model": {"name": name}, "outputs": outputs}, folder, ()).model


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with the models own/model and a/b/model, and an empty one `elsewhere` beside them."""
    for name in ("own/model", "a/b/model"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def test_the_current_folder_makes_no_difference(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative name starts at the config's folder alone: what else it may mean is a hub id, or nothing."""
    monkeypatch.chdir(models)
    cache = models / "cache.json"
    found = source_at_hand(named("own/model", models), cache)
    assert found is not None
    assert found.path == str(models / "own" / "model")
    assert source_at_hand(named("own/model", models / "elsewhere"), cache) is None
    with pytest.raises(Halt, match="there is no model folder a/b/model"):
        source_at_hand(named("a/b/model", models / "elsewhere"), cache)


def test_the_revision_of_a_folder(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of a run, and no file is read that a run has read; before any, only if that is wanted."""
    model, cache = named("own/model", models), models / "cache.json"
    assert revision_at_hand(model, cache) == ""
    revision = revision_at_hand(model, cache, read=True)
    assert resolve_local(model, cache).revision == revision
    monkeypatch.setattr(modelsource, "stamp_file", lambda path: pytest.fail(str(path)))
    assert revision_at_hand(model, cache) == revision


@pytest.mark.parametrize(
    ("name", "near"),
    [("modle", "model"), ("Model", "model"), ("own/modle", "own/model"), ("gpt2", None), ("nowhere/model", None)],
)
def test_a_folder_that_may_have_been_meant(models: Path, name: str, near: str | None) -> None:
    """A name that is nearly that of a model's folder is a slip of the pen more often than a name on the hub."""
    (models / "model").symlink_to(models / "own" / "model")
    (models / "modl").mkdir()  # no model is in it
    assert folder_like(name, models) == (models / near if near else None)


@pytest.mark.parametrize(
    ("try_s", "limit_s", "tries"), [(7.0, 60.0, 6), (0.5, 60.0, 18), (7.0, 5.0, 1), (900.0, 100.0, 3)]
)
def test_a_wait_for_the_hub_ends_in_time(
    try_s: float, limit_s: float, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the tries counts too, and the last of them ends within `recovery.wait_timeout`.

    Of one that was a download only the beginning counts: the next goes on with it.
    """
    now_s, ended_s = 0.0, list[float]()

    def fetch(*_: object) -> Verdict:
        nonlocal now_s
        now_s += try_s
        ended_s.append(now_s)
        return Verdict(Outcome.HUB, "no route")

    def pause(seconds: float, _waited_s: float, _why: str) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(modelsource, "fetch_model", fetch)
    monkeypatch.setattr(modelsource, "time", SimpleNamespace(monotonic=lambda: now_s))
    with pytest.raises(Halt, match="cannot be downloaded"):
        resolve_hub(ModelConfig(name="a/b"), tmp_path / "m", tmp_path, Budget(wait_timeout_s=limit_s), pause)
    assert try_s > limit_s or ended_s[-1] - ended_s[0] <= limit_s + 0.001
    assert len(ended_s) == tries


NO_FOLDER, NEITHER, ADDRESS = "there is no model folder", "neither a folder here nor a hub id", "address of a page"
NAMES = {
    "gpt2": None,
    "sentence-transformers/all-MiniLM-L6-v2": None,
    "_a/b_": None,
    "o" * 96 + "/" + "n" * 96: None,
    "n" * 97: NEITHER,
    "my model": NEITHER,
    "a--b": NEITHER,
    "a..b": NEITHER,
    "name.git": NEITHER,
    "-name": NEITHER,
    "owner/.name": NEITHER,
    "owner/": NO_FOLDER,
    "/models/x": NO_FOLDER,
    "~/x": NO_FOLDER,
    "a/b/c": NO_FOLDER,
    "models\\x": NO_FOLDER,
    "https://huggingface.co/": NO_FOLDER,
    "https://huggingface.co/owner/name/tree/main": ADDRESS,
}


@needs("huggingface_hub")
@pytest.mark.parametrize("name", NAMES)
def test_names_that_no_hub_can_have(name: str) -> None:
    """Paths, addresses of pages and impossible ids are told apart; no name is refused that huggingface_hub takes."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    problem, words = name_problem(name), NAMES[name]
    assert (words or "") in (problem or "")
    assert (problem is None) == (words is None)
    assert words is not ADDRESS or str(problem).endswith("owner/name")
    with pytest.raises(HFValidationError) if words else contextlib.nullcontext():
        validate_repo_id(name)
