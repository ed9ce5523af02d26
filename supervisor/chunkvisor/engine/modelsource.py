"""Where the model's files are, and which revision of them: resolved once, then fixed for the workdir.

The hub is asked only here, in a child process: workers run offline.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chunkvisor.child import run_child
from chunkvisor.config.modelsection import ModelConfig
from chunkvisor.decide.history import Budget, History
from chunkvisor.decide.policy import decide
from chunkvisor.decide.steps import Wait
from chunkvisor.decide.verdict import Verdict
from chunkvisor.engine.localmodel import LocalModel, require_model
from chunkvisor.engine.modelname import NAME_REMEDY, name_problem
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.store.childend import verdict_of_child
from chunkvisor.store.modelrecord import Snapshot, read_pin, read_stamps, write_pin, write_stamps
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, make_folder, read_bounded

_ASKED_S = 30.0
"""So much of a try counts as waiting; one that takes longer was a download, and the next goes on with it."""
_INSTEAD = "A model folder on this machine needs no hub: give its path in place of the name"
_WITHOUT_HUB = (
    "Check the network, the proxy and HF_ENDPOINT, then run the same command again. Without a hub: copy the model to "
    "this machine, and write its folder as model.name."
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A resolved model."""

    path: str | None
    """Local folder; None for a plug-in."""
    revision: str | None
    """Commit hash of the hub, `sha256:…` of a local folder, or what a plug-in's config says."""
    local: LocalModel | None = None
    """The folder as it was resolved; None for a snapshot of the hub, whose files are named by their content."""


def resolve_local(
    model: ModelConfig,
    cache: Path,
    on_wait: Callable[[], None] = lambda: None,
    begin: Callable[[ModelSource], None] | None = None,
) -> ModelSource:
    """Resolve a local folder by the digest of its files; those that are untouched since `cache` are not read again.

    Calls `begin` with what is known before, see `LocalModel.read`, and `on_wait` before each file. Raises Halt (78)
    where the folder holds no model, or is changed meanwhile; OSError where it cannot be read.
    """
    folder = Path(model.name)
    tell = partial(begin, ModelSource(str(folder), None)) if begin is not None else None
    found = LocalModel.read(folder, read_stamps(cache), on_wait, tell)
    write_stamps(cache, found.by_path())
    return ModelSource(str(found.folder), found.revision, found)


def resolve_hub(
    model: ModelConfig,
    cache: Path,
    scratch: Path,
    budget: Budget,
    pause: Callable[[float, float, str], None],
    on_wait: Callable[[], None] = lambda: None,
    *,
    anew: bool = False,
) -> ModelSource:
    """Resolve a hub id to a commit and download it, or take the commit that this workdir has already fixed.

    With `anew` the hub is asked in any case, and what is fixed stays as it is: the caller fixes the answer later.

    `pause(seconds, waited_s, why)` is called between tries while the hub cannot be reached, `on_wait` about ten times a
    second meanwhile; what they raise ends the download. Raises Halt: 75 when the hub stays out of reach, 78 when the
    model is not to be had.
    """
    pinned = None if anew else pinned_source(cache, model)
    if pinned is not None and pinned.path and Path(pinned.path).is_dir():
        return pinned
    revision, backend = pinned.revision if pinned else model.revision, str(model.kwargs.get("backend", "torch"))
    waited_s = delay_s = 0.0
    while True:
        began_s = time.monotonic()
        found = fetch_model(model.name, revision, backend, scratch, on_wait)
        if isinstance(found, ModelSource):
            if not anew:
                pin_source(cache, model, found)
            return found
        asked_s = min(time.monotonic() - began_s, _ASKED_S)
        waited_s += delay_s + asked_s if delay_s else 0.0
        # The next try may take as long as this one, and is to end within the time as well.
        step = decide(found, History(waited_s=waited_s + asked_s), budget)
        if not isinstance(step, Wait):
            raise Halt(
                ExitCode(found.exit_code or ExitCode.CONFIG),
                f"the model {model.name} cannot be downloaded",
                why=found.reason,
                remedy=_WITHOUT_HUB if found.outcome is Outcome.HUB else found.remedy,
                log=AttemptFiles(scratch).log,
                see=found.see,
            )
        delay_s = step.delay_s
        pause(delay_s, waited_s, f"{found.reason.rstrip('.')}. {_INSTEAD}")


def fetch_model(
    name: str,
    revision: str | None,
    backend: str,
    scratch: Path,
    on_wait: Callable[[], None],
    environment: Mapping[str, str] | None = None,
    timeout_s: float = math.inf,
) -> ModelSource | Verdict:
    """The snapshot, or why the child that asks the hub has none.

    `scratch` is the folder of that child's result, fault and log. Raises OSError, TimeoutError, and what `on_wait`
    raises.
    """
    files = AttemptFiles(scratch)
    make_folder(scratch, durable=False)
    for leftover in (files.result, files.fault):
        leftover.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "chunkvisor_worker.fetch", str(scratch), name, revision or "", backend]
    returncode = run_child(command, files.log, on_wait, environment, timeout_s)
    try:
        found = json.loads(read_bounded(files.result) or b"")
        return ModelSource(str(found["path"]), str(found["revision"]))
    except (ValueError, KeyError, TypeError):
        return verdict_of_child(returncode, files.fault, files.log)


def pinned_source(cache: Path, model: ModelConfig) -> ModelSource | None:
    """The commit of the hub that this workdir has fixed for the model, or None."""
    pin = read_pin(cache, model.name, model.revision)
    return ModelSource(pin.path, pin.revision) if pin is not None else None


def source_at_hand(model: ModelConfig, cache: Path) -> ModelSource | None:
    """Where the model's files are, if that can be told without asking the hub or reading them; else None.

    Raises Halt (78) where `model.name` is a path without a model, or nothing that a hub could have.
    """
    if model.is_folder:
        try:
            names = set(os.listdir(model.name))  # noqa: PTH208 - the names alone are wanted
        except OSError as error:
            raise config_error(f"the model folder {model.name} cannot be read: {error.strerror}") from None
        require_model(model.name, names)
        return ModelSource(model.name, model.revision)
    if model.name.startswith("/") and os.path.isfile(model.name):  # noqa: PTH113 - Path.is_file raises for long names
        raise config_error(f"{model.name} is a file; model.name is the folder of a model", remedy=NAME_REMEDY)
    if (problem := name_problem(model.name)) is not None:
        raise config_error(problem, remedy=NAME_REMEDY)
    pinned = pinned_source(cache, model)
    return pinned if pinned is not None and pinned.path and Path(pinned.path).is_dir() else None


def revision_at_hand(model: ModelConfig, cache: Path, *, read: bool = False) -> str:
    """The revision that a run would resolve, if that can be told without asking the hub; else "". Raises Halt, OSError.

    A folder of which no run here has noted the files is read only where that is asked for.
    """
    if not model.is_folder:
        source = None if model.is_plugin else source_at_hand(model, cache)
        return (source.revision if source is not None else model.revision) or ""
    stamps = read_stamps(cache)
    return LocalModel.read(Path(model.name), stamps).revision if stamps or read else ""


def pin_source(cache: Path, model: ModelConfig, source: ModelSource) -> None:
    """Fix a commit of the hub for this workdir. Raises OSError."""
    if source.path is not None and source.revision is not None:
        write_pin(cache, Snapshot(model.name, model.revision, source.path, source.revision))
