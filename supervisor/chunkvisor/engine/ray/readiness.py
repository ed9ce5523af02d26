"""Whether a node can do the job: the same software, the devices asked for, the same model files."""

import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from chunkvisor.config.model import ModelConfig
from chunkvisor.engine.modelsource import ModelSource, fetch_model, resolve_local
from chunkvisor.engine.ray.wire import Model, Terms
from chunkvisor.errors import ExitCode, Halt


def unfit(why: str, remedy: str) -> Halt:
    """The node cannot do the job: why, and what to do."""
    return Halt(ExitCode.MACHINE, "the node cannot do this job", why=why, remedy=remedy)


def this_version() -> str:
    """Of chunkvisor and of Python, as far as two machines must agree on them."""
    try:
        own = version("chunkvisor")
    except PackageNotFoundError:  # run from a source folder
        own = "not installed"
    return f"chunkvisor {own} under Python {sys.version_info.major}.{sys.version_info.minor}"


def this_machine() -> str:
    """A name that no other machine has, nor a container with another file system."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{boot}/{socket.gethostname()}"


def check_version(terms: Terms) -> None:
    """Raises Halt where the node has another chunkvisor than the supervisor."""
    if this_version() != terms.version:
        raise unfit(
            f"it has {this_version()}, the supervisor has {terms.version}", "install the same versions on all nodes"
        )


def check_shared(terms: Terms) -> None:
    """Raises Halt where the node is to see the supervisor's folders and does not."""
    if terms.shared and not Path(terms.workdir).is_dir():
        raise unfit(f"it has no folder {terms.workdir}", "mount it on all nodes, or write engine.shared: false")


def model_path(model: Model, machine: str, scratch: Path) -> str | None:
    """Where the model's files are on this node, downloaded if need be. Raises Halt, OSError.

    On the supervisor's own machine they are where it has found them.
    """
    if model.path is None or this_machine() == machine:
        return model.path
    if (model.revision or "").startswith("sha256:"):
        return _local(model, scratch)
    return _from_hub(model, scratch)


def _local(model: Model, scratch: Path) -> str:
    remedy = "copy the supervisor's model folder there, or name the model by its hub id"
    if not Path(model.name).is_dir():
        raise unfit(f"it has no model folder {model.name}", remedy)
    try:
        found = resolve_local(ModelConfig(name=model.name), scratch / "model.json")
    except Halt as halt:
        raise unfit(halt.what, remedy) from None
    if found.revision != model.revision:
        raise unfit(f"its model folder {model.name} holds other files than the supervisor's", remedy)
    return model.name


def _from_hub(model: Model, scratch: Path) -> str | None:
    found = fetch_model(model.name, model.revision, model.backend, scratch / "fetch", lambda: None)
    if isinstance(found, ModelSource):
        return found.path
    raise unfit(f"it cannot get the model {model.name}: {found.reason}", found.remedy)
