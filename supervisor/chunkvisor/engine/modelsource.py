"""Where the model's files are, and which revision of them: resolved once, then fixed for the workdir.

It never loads a model, and asks the hub only in a child process: workers run offline.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.child import run_child
from chunkvisor.config.model import ModelConfig
from chunkvisor.decide.outcome import Evidence, Verdict, judge
from chunkvisor.decide.policy import Budget, History, decide
from chunkvisor.decide.steps import Wait
from chunkvisor.engine.localmodel import LocalModel
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.store.modelrecord import Snapshot, read_pin, read_stamps, write_pin, write_stamps
from chunkvisor_worker.contract.files import AttemptFiles, read_bounded
from chunkvisor_worker.contract.messages import Fault, read_message


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A resolved model."""

    path: str | None
    """Local folder; None for a plug-in."""
    revision: str | None
    """Commit hash of the hub, `sha256:…` of a local folder, or what a plug-in's config says."""
    local: LocalModel | None = None
    """The folder as it was resolved; None for a snapshot of the hub, whose files are named by their content."""


def resolve_local(model: ModelConfig, cache: Path, on_wait: Callable[[], None] = lambda: None) -> ModelSource:
    """Resolve a local folder by the digest of its files; those that are untouched since `cache` are not read again.

    Calls `on_wait` before each file. Raises Halt (78) where the folder holds no model, OSError where it cannot be read.
    """
    found = LocalModel.read(Path(model.name), read_stamps(cache), on_wait)
    write_stamps(cache, found.by_path())
    return ModelSource(str(found.folder), found.revision, found)


def resolve_hub(
    model: ModelConfig,
    cache: Path,
    scratch: Path,
    budget: Budget,
    pause: Callable[[float, str], None],
    on_wait: Callable[[], None] = lambda: None,
    *,
    anew: bool = False,
) -> ModelSource:
    """Resolve a hub id to a commit and download it, or take the commit that this workdir has already fixed.

    With `anew` the hub is asked in any case, and what is fixed stays as it is: the caller fixes the answer later.

    `pause(seconds, why)` is called between tries while the hub cannot be reached, `on_wait` about ten times a second
    meanwhile; what they raise ends the download. Raises Halt: 75 when the hub stays out of reach, 78 when the model is
    not to be had.
    """
    pinned = None if anew else pinned_source(cache, model)
    if pinned is not None and pinned.path and Path(pinned.path).is_dir():
        return pinned
    revision, backend = pinned.revision if pinned else model.revision, str(model.kwargs.get("backend", "torch"))
    waited_s = 0.0
    while True:
        found, verdict = fetch_model(model.name, revision, backend, scratch, on_wait)
        if found is not None:
            source = ModelSource(found["path"], found["revision"])
            if not anew:
                pin_source(cache, model, source)
            return source
        assert verdict is not None
        step = decide(verdict, History(waited_s=waited_s), budget)
        if not isinstance(step, Wait):
            raise Halt(
                ExitCode(verdict.exit_code or ExitCode.CONFIG),
                f"the model {model.name} cannot be had",
                why=verdict.reason,
                remedy=verdict.remedy,
                log=AttemptFiles(scratch).log,
            )
        pause(step.delay_s, verdict.reason)
        waited_s += step.delay_s


def fetch_model(
    name: str, revision: str | None, backend: str, scratch: Path, on_wait: Callable[[], None]
) -> tuple[dict[str, str] | None, Verdict | None]:
    """(`path` and `revision` of the snapshot, None), or (None, why the child that asks the hub has none).

    `scratch` is the folder of that child's result, fault and log. Raises OSError, and what `on_wait` raises.
    """
    files = AttemptFiles(scratch)
    scratch.mkdir(mode=0o700, exist_ok=True)
    for leftover in (files.result, files.fault):
        leftover.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "chunkvisor_worker.fetch", str(scratch), name, revision or "", backend]
    returncode = run_child(command, files.log, on_wait)
    try:
        found = json.loads(read_bounded(files.result) or b"")
        return {"path": str(found["path"]), "revision": str(found["revision"])}, None
    except (ValueError, KeyError, TypeError):
        return None, judge(Evidence(returncode or 1, fault=read_message(Fault, files.fault)))


def pinned_source(cache: Path, model: ModelConfig) -> ModelSource | None:
    """The commit of the hub that this workdir has fixed for the model, or None."""
    pin = read_pin(cache, model.name, model.revision)
    return ModelSource(pin.path, pin.revision) if pin is not None else None


def pin_source(cache: Path, model: ModelConfig, source: ModelSource) -> None:
    """Fix a commit of the hub for this workdir. Raises OSError."""
    if source.path is not None and source.revision is not None:
        write_pin(cache, Snapshot(model.name, model.revision, source.path, source.revision))
