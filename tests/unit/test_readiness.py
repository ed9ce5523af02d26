"""What a node must have before it gets work, and what an agent does about the folders of dead ones."""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from chunkvisor.config.model import ModelConfig
from chunkvisor.engine.modelsource import resolve_local
from chunkvisor.engine.ray.agent import Scratch
from chunkvisor.engine.ray.readiness import (
    check_shared,
    check_version,
    model_path,
    this_machine,
    this_version,
)
from chunkvisor.engine.ray.wire import Model, Terms
from chunkvisor.errors import Halt
from chunkvisor_worker.contract.messages import ModelSpec, TemplateSpec
from chunkvisor_worker.contract.wire import from_json, to_json


def terms(version: str = "", workdir: str = "/", *, shared: bool = False) -> Terms:
    """Of a run with a plug-in."""
    model, template = Model("m", None, None), TemplateSpec(ModelSpec("m"), "cpu")
    return Terms("r", version or this_version(), "", workdir, shared, ("cpu",), 1, {}, "auto", 1.0, model, template)


def test_terms_travel_as_json() -> None:
    """What a node is told is what it hears."""
    assert from_json(Terms, to_json(terms())) == terms()


def test_other_versions_are_unfit() -> None:
    """A node with another chunkvisor or Python says both."""
    check_version(terms())
    with pytest.raises(Halt, match=r"the supervisor has chunkvisor 0\.0"):
        check_version(terms("chunkvisor 0.0 under Python 3.0"))


def test_a_shared_folder_that_is_not_there_is_unfit(tmp_path: Path) -> None:
    """With engine.shared the node must see the workdir."""
    check_shared(terms(workdir=str(tmp_path), shared=True))
    check_shared(terms(workdir=str(tmp_path / "none")))
    with pytest.raises(Halt, match="no folder"):
        check_shared(terms(workdir=str(tmp_path / "none"), shared=True))


def test_a_local_model_must_be_the_same(tmp_path: Path) -> None:
    """The folder is there with the same files, has others, or is missing; on the supervisor's machine nobody looks."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    found = resolve_local(ModelConfig(name=str(folder)), tmp_path / "cache.json")
    model = Model(str(folder), str(folder), found.revision)
    assert model_path(model, "another machine", tmp_path) == str(folder)

    (folder / "config.json").write_text('{"changed": 1}')
    with pytest.raises(Halt, match="other files"):
        model_path(model, "another machine", tmp_path)
    assert model_path(model, this_machine(), tmp_path) == str(folder)

    (folder / "config.json").unlink()
    folder.rmdir()
    with pytest.raises(Halt, match="no model folder"):
        model_path(model, "another machine", tmp_path)


def test_a_plugin_needs_no_model() -> None:
    """Nothing is looked for."""
    assert model_path(Model("m", None, None), "another machine", Path("/nowhere")) is None


def test_leftovers_of_dead_agents_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder goes once nobody holds its lock, and not before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alive, dead = Scratch("alive.1"), Scratch("dead.1")
    (dead.folder / "7").mkdir()
    os.close(dead._lock)  # as the kernel does for a process that dies

    new = Scratch("new.1")

    assert alive.folder.exists()
    assert not dead.folder.exists()
    with open(alive.folder / "lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    alive.remove()
    new.remove()
    assert not list(tmp_path.iterdir())
