"""What a node must have before it gets work, and what an agent does about the folders of dead ones."""

from pathlib import Path

import pytest

from chunkvisor.config.model import ModelConfig
from chunkvisor.engine.modelsource import resolve_local
from chunkvisor.engine.ray.agent import check_node, model_path
from chunkvisor.engine.ray.wire import Terms, this_machine, this_version
from chunkvisor.errors import Halt
from chunkvisor_worker.contract.messages import ModelSpec, TemplateSpec
from chunkvisor_worker.contract.wire import from_json, to_json


def terms(version: str = "", workdir: str = "/", *, shared: bool = False) -> Terms:
    """Of a run with a plug-in."""
    template = TemplateSpec(ModelSpec("m"), "cpu")
    return Terms("r", version or this_version(), "", workdir, shared, ("cpu",), 1, {}, "auto", 1.0, template)


def test_terms_travel_as_json() -> None:
    """What a node is told is what it hears."""
    assert from_json(Terms, to_json(terms())) == terms()


def test_a_node_that_differs_is_unfit(tmp_path: Path) -> None:
    """A node with another chunkvisor or Python says both; with engine.shared it must see the workdir."""
    check_node(terms())
    check_node(terms(workdir=str(tmp_path), shared=True))
    check_node(terms(workdir=str(tmp_path / "none")))
    with pytest.raises(Halt, match=r"the supervisor has chunkvisor 0\.0"):
        check_node(terms("chunkvisor 0.0 under Python 3.0"))
    with pytest.raises(Halt, match="no folder"):
        check_node(terms(workdir=str(tmp_path / "none"), shared=True))


def test_a_local_model_must_be_the_same(tmp_path: Path) -> None:
    """The folder is there with the same files, has others, or is missing; on the supervisor's machine nobody looks."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    found = resolve_local(ModelConfig(name=str(folder)), tmp_path / "cache.json")
    model = ModelSpec(str(folder), str(folder), found.revision)
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
    assert model_path(ModelSpec("m"), "another machine", Path("/nowhere")) is None
