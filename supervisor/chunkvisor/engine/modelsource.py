"""Finds the model's files and their revision, which is then fixed for the workdir.

Only here is the hub asked, in a child process: workers run offline.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chunkvisor.child import OnWait, python_command, run_child
from chunkvisor.config.model import ModelConfig
from chunkvisor.engine.modelfolder import Repository, check_code, outside_of, repository_of
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.judge import Verdict, pause_s
from chunkvisor.store.attempt import verdict_of_child
from chunkvisor.store.records import Pin, Stamp, read_models, stamp_file, write_record
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import (
    AttemptFiles,
    make_folders,
    read_json,
    remove_folder,
)
from chunkvisor_worker.contract.messages import NO_WEIGHTS, ModelSpec
from chunkvisor_worker.contract.secrets import digested

NAME_REMEDY = (
    "Write model.name as the path of a model's folder, from the root or from the folder of the "
    "config (with `encode`, from the current one), or as its hub id, owner/name."
)
_OFFLINE = (
    "Check the network, the proxy and HF_ENDPOINT, then run the same command again. Without a hub: "
    "copy the model to this machine, and write its folder as model.name."
)
# What huggingface_hub.utils.validate_repo_id accepts, whose import takes a third of a second.
_HUB_ID = re.compile(r"(?!.*(--|\.\.))(?!.*\.git$)(\b[\w\-.]{1,96}\b/)?\b[\w\-.]{1,96}\b", re.ASCII)


@dataclass(slots=True)
class ModelSource:
    """A resolved model."""

    path: str | None  # local folder; None for a plug-in
    revision: str | None
    """Commit hash of the hub, `sha256:…` of a local folder, or what a plug-in's config says."""
    # The stamp of each file of a local folder, by the file's full path. A snapshot of the hub has
    # none, since it does not change.
    stamps: dict[str, Stamp] = field(default_factory=dict)
    # What its files name outside its folder, by hub id or path.
    outside: dict[str, "ModelSource"] = field(default_factory=dict)
    hub: str | None = None  # folder of a cache in which workers find its commits, if it exists

    @property
    def revisions(self) -> dict[str, str]:
        """Return the revisions of what its files name outside its folder."""
        return {name: str(each.revision) for name, each in self.outside.items()}

    def spec(self, model: ModelConfig) -> ModelSpec:
        """Return what workers get."""
        found: dict[str, Any] = {"path": self.path, "revision": self.revision, "hub": self.hub}
        said = model.model_dump(include={*ModelSpec.__dataclass_fields__} - {*found}, mode="json")
        said["kwargs"] = digested(model.kwargs)
        return ModelSpec(**said, **found, outside=self.revisions)

    def check_unchanged(self) -> None:
        """Raise Halt (78) if a local folder has changed since the run began."""
        for each in self.outside.values():
            each.check_unchanged()
        if not self.stamps:
            return
        try:
            found = _stamp_files(Path(str(self.path)), self.stamps)
            before = {(path, stamp.digest) for path, stamp in self.stamps.items()}
            now = {(path, stamp.digest) for path, stamp in found.items()}
            changed = sorted(path for path, _ in before ^ now)
            # A file that was touched and holds the same has a new stamp: it is not read again.
            if not changed:
                self.stamps = found
        except OSError as error:
            changed = [f"{error.filename}: {error.strerror}"]
        if changed:
            raise config_error(
                f"the model folder {self.path} was changed during the run",
                "Put the folder back as it was, and run the same command again: what was committed "
                "before the change stays. Or choose another workdir for the changed model.",
                why=f"{changed[0]} is not what it was when the run began; vectors of two models "
                "would be mixed in one file",
            )

    def untouched_since(self, time_ns: int) -> bool:
        """Say whether no file has been touched since, by change times, which cannot be set back."""
        return all(stamp.ctime_ns < time_ns for stamp in self.stamps.values())


def _stamp_files(
    folder: Path, known: Mapping[str, Stamp], on_wait: OnWait = lambda: None
) -> dict[str, Stamp]:
    """Return a stamp of each file in the folder, reading those that were touched since `known`."""
    stamps = dict[str, Stamp]()
    for path in _files_of(folder):
        on_wait()
        old = known.get(str(path))
        stamps[str(path)] = old if old and old.untouched(path) else stamp_file(path)
    return stamps


def _files_of(folder: Path) -> Iterator[Path]:
    """Yield the files of a model, sorted by their paths: all but hidden ones and compiled code.

    Raises OSError.
    """
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _files_of(path)
        elif path.is_file():
            yield path


def _require_model(folder: Path) -> None:
    """Raise Halt (78) if no file says what the folder's model is."""
    if not any(os.access(folder / name, os.R_OK) for name in ("config.json", "modules.json")):
        raise config_error(
            f"{folder} holds no model: it has neither config.json nor modules.json that you may "
            "read",
            NAME_REMEDY,
        )


# --- resolving


def resolve_local(folder: Path, cache: Path, on_wait: OnWait = lambda: None) -> ModelSource:
    """Resolve a local folder to `sha256:…` over the names and contents of its files.

    Files that are untouched since `cache` was written are not read again. Calls `on_wait` before
    each file. Raises OSError if the folder cannot be read.
    """
    record = read_models(cache)
    stamps = _stamp_files(folder, record.stamps, on_wait)
    write_record(cache, replace(record, stamps=record.stamps | stamps))
    files = [(os.path.relpath(path, folder), stamp.digest) for path, stamp in stamps.items()]
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return ModelSource(str(folder), f"sha256:{digest}", stamps)


def resolve_hub(
    wanted: Repository,
    what: str,
    cache: Path,
    scratch: Path,
    timeout_s: float,
    pause: Callable[[float, float, str], None],
    on_wait: OnWait = lambda: None,
    *,
    anew: bool = False,
) -> ModelSource:
    """Resolve a hub id to a commit, and download it.

    A commit that this workdir has fixed is taken, unless `anew` asks for the newest, which is then
    fixed. `pause(seconds, waited_s, why)` is called between tries, `on_wait` often meanwhile; what
    they raise ends the download. Raises OSError, Halt: 75 if the hub stays out of reach, 78 if
    it does not have `what`.
    """
    pinned = None if anew else pinned_source(cache, wanted)
    if pinned and pinned.path:
        return pinned
    fixed = replace(wanted, asked=pinned.revision) if pinned else wanted
    failed_s: float | None = None
    while True:
        found = fetch_model(fixed, scratch, on_wait)
        if isinstance(found, ModelSource):
            record = read_models(cache)
            asked = (wanted.name, wanted.asked)
            others = (each for each in record.pins if (each.name, each.asked) != asked)
            pin = Pin(*asked, str(found.path), str(found.revision))
            write_record(cache, replace(record, pins=(*others, pin)))
            return found
        failed_s = failed_s or time.monotonic()
        waited_s = time.monotonic() - failed_s
        if waited_s >= timeout_s or found.outcome not in (Outcome.HUB, Outcome.DISK_FULL):
            raise Halt(
                ExitCode(found.exit_code or ExitCode.CONFIG),
                f"{what} cannot be downloaded",
                _OFFLINE if found.outcome is Outcome.HUB else found.remedy,
                why=f"{found.reason.rstrip('.')}; and there is no folder of that name here",
                log=AttemptFiles(scratch).log,
                see=found.see,
            )
        instead = "A model folder on this machine needs no hub: give its path in place of the name"
        pause(pause_s(waited_s, timeout_s), waited_s, f"{found.reason.rstrip('.')}. {instead}")


def fetch_model(
    wanted: Repository,
    scratch: Path,
    on_wait: OnWait,
    environment: Mapping[str, str] | None = None,
) -> ModelSource | Verdict:
    """Download a snapshot in a child process; return it, or the verdict on that child.

    `scratch` is the folder of the child's result, fault and log. Raises OSError, and what
    `on_wait` raises.
    """
    files = AttemptFiles(scratch)
    scratch.mkdir(exist_ok=True)
    for leftover in (files.result, files.fault):
        leftover.unlink(missing_ok=True)
    arguments = (scratch, wanted.name, wanted.asked or "", wanted.backend)
    command = python_command("chunkvisor_worker.fetch", *arguments)
    returncode = run_child(command, files.log, on_wait, environment)
    found = read_json(files.result)
    if found:
        return ModelSource(str(found["path"]), str(found["revision"]))
    name = f"{wanted.name} --revision {wanted.asked}" if wanted.asked else wanted.name
    verdict = verdict_of_child(returncode, files.fault, files.log)
    return replace(verdict, remedy=verdict.remedy.replace("OWNER/NAME", name))


def pinned_source(cache: Path, wanted: Repository) -> ModelSource | None:
    """Return the commit that this workdir has fixed, if any; its path is None if it is gone."""
    asked = (wanted.name, wanted.asked)
    pin = next((each for each in read_models(cache).pins if (each.name, each.asked) == asked), None)
    if not pin:
        return None
    return ModelSource(pin.path if Path(pin.path).is_dir() else None, pin.revision)


def resolve_outside(
    source: ModelSource,
    model: ModelConfig | ModelSpec,
    fetch: Callable[[Repository, str], ModelSource],
    hub: Path,
    read: Callable[[Path], ModelSource] = lambda folder: ModelSource(str(folder), None),
) -> None:
    """Find what the model's files name outside its folder, and what the files there name.

    `read` gets each that is a folder, `fetch` each other, and words for it. For workers, `hub`
    becomes a cache with these commits as the newest, whatever is downloaded later. Raises what they
    raise, and Halt (78) as `check_code`.
    """
    waiting = [Path(str(source.path))]
    snapshots = list[Path]()
    while waiting:
        for each in outside_of(waiting.pop(), model):
            if each.name in source.outside:
                continue
            if Path(each.name).is_dir():
                found = read(Path(each.name))
            elif each.name == model.name:  # at the commit that is loaded
                found = ModelSource(source.path, source.revision)
            else:
                found = fetch(each, f"{each.name}, which {model.name} needs,")
            place = Path(str(found.path))
            if not Path(each.name).is_dir():
                snapshots.append(place)
            source.outside[each.name] = found
            if each.backend != NO_WEIGHTS:
                check_code(place, model)
                waiting.append(place)
    remove_folder(hub)
    source.hub = str(hub)
    # A snapshot is at HUB/models--OWNER--NAME/snapshots/COMMIT; refs/main next to `snapshots` names
    # the newest commit. All other repositories are those of the cache in use.
    for snapshot in snapshots:
        place = hub / snapshot.parents[1].name / "refs"
        make_folders(place)
        (place / "main").write_text(snapshot.name)
    for repository in snapshots[0].parents[2].iterdir() if snapshots else ():
        place = hub / repository.name
        if place.exists():
            (place / "snapshots").symlink_to(repository / "snapshots")
        else:
            place.symlink_to(repository)


def known_source(model: ModelConfig, cache: Path) -> ModelSource | None:
    """Return where the model's files are, if that is known without the hub.

    Raises Halt (78) if `model.name` is a path without a model, or neither path nor hub id.
    """
    if model.is_folder:
        _require_model(Path(model.name))
        found: ModelSource | None = ModelSource(model.name, None)
    elif _HUB_ID.fullmatch(model.name):
        found = pinned_source(cache, repository_of(model))
    else:
        raise config_error(
            f"there is no model folder {model.name} here, and no hub id looks like that",
            NAME_REMEDY,
        )
    if not found or not found.path:
        return None
    found.hub = str(cache.with_name("hub"))
    return found
