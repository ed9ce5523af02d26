"""Where the model's files are, and which revision of them: resolved once, then fixed for the workdir.

The hub is asked only here, in a child process: workers run offline.
"""

import difflib
import hashlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from chunkvisor.child import run_child
from chunkvisor.config.model import ModelConfig
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.judge import Budget, Verdict, pause_s
from chunkvisor.store.attempt import verdict_of_child
from chunkvisor.store.records import (
    Pin,
    Stamp,
    read_pins,
    read_stamps,
    stamp_file,
    state_of,
    write_pin,
    write_stamps,
)
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, make_folder, read_bounded

NAME_REMEDY = (
    "write model.name as the path of a model's folder, from the root or from the folder of the config (with `encode`, "
    "from the current one), or as its hub id, owner/name"
)
# Files that say what a folder's model is.
_TELLING = frozenset({"config.json", "modules.json"})
_HUB_ID = re.compile(r"(\b[\w\-.]{1,96}\b/)?\b[\w\-.]{1,96}\b", re.ASCII)
_PAGE = re.compile(r"https?://[^/]+/(?P<id>[^/?#]+/[^/?#]+)")
# How only a path begins, here or on Windows.
_IS_PATH = re.compile(r"[/.~\\]|[A-Za-z]:\\")
# So much of a try counts as waiting; one that takes longer was a download, and the next goes on with it.
_ASKED_S = 30.0


@dataclass(slots=True)
class LocalModel:
    """A model folder as it was when the run began."""

    folder: Path
    stamps: dict[str, Stamp]  # of each file, by its path in the folder

    @classmethod
    def read(
        cls,
        folder: Path,
        known: Mapping[str, Stamp],
        on_wait: Callable[[], None] = lambda: None,
        begin: Callable[[], None] | None = None,
    ) -> Self:
        """Stamp all files; those that are untouched since `known`, by full path, are not read again.

        Calls `begin` once, so that the model can be loaded meanwhile, and `on_wait` before each file. Raises Halt
        (78) if the folder holds no model, or if a file is touched between `begin` and the end; OSError.
        """
        files = model_files(folder)
        require_model(folder, {path.name for path in files})
        states = {path: state_of(path) for path in files}
        if begin is not None:
            begin()
        stamps = {}
        for path in files:
            on_wait()
            old = known.get(str(path))
            fresh = old if old is not None and old.untouched(path) else stamp_file(path)
            stamps[path.relative_to(folder).as_posix()] = fresh
        if begin is not None:
            # What has loaded it may have read another content than the digest is of, even if that was put back.
            after = {path: state_of(path) for path in model_files(folder)}
            if touched := [path for path in states | after if states.get(path) != after.get(path)]:
                raise config_error(
                    f"the model folder {folder} was changed while the run began",
                    why=f"{touched[0].relative_to(folder)} was written to: it is not known which model was loaded",
                    remedy="wait until nothing writes to that folder, and run the same command again",
                )
        return cls(folder, stamps)

    @property
    def revision(self) -> str:
        """`sha256:…` over the names and contents of all files."""
        content = json.dumps([[name, stamp.digest] for name, stamp in self.stamps.items()])
        return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"

    def check(self) -> None:
        """Raise Halt (78) if the folder has changed since the run began."""
        try:
            name = self._changed()
        except OSError as error:
            name = f"{error.filename}: {error.strerror}"
        if name is not None:
            raise config_error(
                f"the model folder {self.folder} was changed while the run was under way",
                why=f"{name} is not what it was when the run began; vectors of two models would be mixed in one file",
                remedy="put the folder back as it was, and run the same command again: what was committed before the "
                "change stays; or choose another workdir for the changed model",
            )

    def _changed(self) -> str | None:
        """Find a file that is not what it was, has come or has gone. Raises OSError."""
        names = {path.relative_to(self.folder).as_posix(): path for path in model_files(self.folder)}
        for name, stamp in self.stamps.items():
            if name not in names:
                return name
            if not stamp.untouched(names[name]):
                # It was touched: if it holds the same, its new stamp spares the next look from reading it again.
                fresh = stamp_file(names[name])
                if fresh.digest != stamp.digest:
                    return name
                self.stamps[name] = fresh
        return next((name for name in names if name not in self.stamps), None)

    def settled_since(self, time_ns: int) -> bool:
        """Whether everything in the folder has been in place, as it is, since before that time. Raises OSError.

        By the change times, which no call can set back (inode(7)); those of links and folders show a switch.
        """
        found = [self.folder.lstat(), self.folder.stat()]
        for path in model_files(self.folder):
            found += [path.lstat(), path.stat(), path.parent.lstat()]
        return all(state.st_ctime_ns < time_ns for state in found)


def model_files(folder: Path) -> list[Path]:
    """List the files of a model, sorted by their paths: all but hidden ones and compiled code. Raises OSError."""
    return sorted(_files(folder, frozenset()))


def _files(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    state = folder.stat()
    here = (state.st_dev, state.st_ino)
    if here in above:
        return  # a link that leads back up
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _files(path, above | {here})
        elif path.is_file():
            yield path


def require_model(folder: Path | str, names: Set[str]) -> None:
    """Raise Halt (78) if no file by these names says what the folder's model is."""
    if names.isdisjoint(_TELLING):
        raise config_error(f"{folder} holds no model: it has neither config.json nor modules.json", remedy=NAME_REMEDY)


# --- names


def name_problem(name: str) -> str | None:
    """Say why no hub can have a model of that name, if there is no such folder here; None if one may have it."""
    if (page := _PAGE.match(name)) is not None and _is_hub_id(page["id"]):
        return f"model.name is the address of a page; the model's name there is {page['id']}"
    if _IS_PATH.match(name) or name.endswith("/") or name.count("/") > 1 or "\\" in name:
        return f"there is no model folder {name}"
    if not _is_hub_id(name):
        return (
            f"{name!r} is neither a folder here nor a hub id, which is owner/name, of letters without accents, digits "
            "and single - _ . between them"
        )
    return None


def _is_hub_id(name: str) -> bool:
    """Whether it is what huggingface_hub.utils.validate_repo_id accepts; to import that takes a third of a second."""
    return bool(_HUB_ID.fullmatch(name)) and "--" not in name and ".." not in name and not name.endswith(".git")


def folder_like(name: str, beside: Path) -> Path | None:
    """Find the model folder that may have been meant by a name, as written from `beside`. Raises nothing."""
    wanted = beside / name
    try:
        models = [path for path in wanted.parent.iterdir() if any((path / each).is_file() for each in _TELLING)]
    except OSError:
        return None
    near = difflib.get_close_matches(wanted.name.lower(), {path.name.lower(): path for path in models}, 1)
    return next((path for path in models if path.name.lower() in near), None)


# --- resolving


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A resolved model."""

    path: str | None  # local folder; None for a plug-in
    revision: str | None  # commit hash of the hub, `sha256:…` of a local folder, or what a plug-in's config says
    # The folder as it was resolved; None for a snapshot of the hub, whose files are named by their content.
    local: LocalModel | None = None


def resolve_local(
    model: ModelConfig,
    cache: Path,
    on_wait: Callable[[], None] = lambda: None,
    begin: Callable[[ModelSource], None] | None = None,
) -> ModelSource:
    """Resolve a local folder by the digest of its files; those that are untouched since `cache` are not read again.

    Calls `begin` with what is known before, and `on_wait` before each file, see `LocalModel.read`. Raises Halt (78)
    if the folder holds no model, or is changed meanwhile; OSError if it cannot be read.
    """
    folder = Path(model.name)
    tell = partial(begin, ModelSource(str(folder), None)) if begin is not None else None
    found = LocalModel.read(folder, read_stamps(cache), on_wait, tell)
    write_stamps(cache, {str(folder / name): stamp for name, stamp in found.stamps.items()})
    return ModelSource(str(folder), found.revision, found)


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
    second meanwhile; what they raise ends the download. Raises Halt: 75 if the hub stays out of reach, 78 if the
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
        over = waited_s + asked_s >= budget.wait_timeout_s
        if over or found.outcome not in (Outcome.HUB, Outcome.DISK_FULL):
            offline = (
                "Check the network, the proxy and HF_ENDPOINT, then run the same command again. Without a hub: copy "
                "the model to this machine, and write its folder as model.name."
            )
            raise Halt(
                ExitCode(found.exit_code or ExitCode.CONFIG),
                f"the model {model.name} cannot be downloaded",
                why=found.reason,
                remedy=offline if found.outcome is Outcome.HUB else found.remedy,
                log=AttemptFiles(scratch).log,
                see=found.see,
            )
        delay_s = pause_s(waited_s + asked_s, budget.wait_timeout_s)
        instead = "A model folder on this machine needs no hub: give its path in place of the name"
        pause(delay_s, waited_s, f"{found.reason.rstrip('.')}. {instead}")


def fetch_model(
    name: str,
    revision: str | None,
    backend: str,
    scratch: Path,
    on_wait: Callable[[], None],
    environment: Mapping[str, str] | None = None,
    timeout_s: float = math.inf,
) -> ModelSource | Verdict:
    """Give the snapshot, or say why the child that asks the hub has none.

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
    """Give the commit of the hub that this workdir has fixed for the model, or None."""
    asked = (model.name, model.revision)
    pin = next((each for each in read_pins(cache) if (each.name, each.asked) == asked), None)
    return ModelSource(pin.path, pin.revision) if pin is not None else None


def pin_source(cache: Path, model: ModelConfig, source: ModelSource) -> None:
    """Fix a commit of the hub for this workdir. Raises OSError."""
    if source.path is not None and source.revision is not None:
        write_pin(cache, Pin(model.name, model.revision, source.path, source.revision))


def source_at_hand(model: ModelConfig, cache: Path) -> ModelSource | None:
    """Say where the model's files are, if that is known without asking the hub or reading them.

    Raises Halt (78) if `model.name` is a path without a model, or nothing that a hub could have.
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
    """Say which revision a run would resolve, if that is known without asking the hub; else "". Raises Halt, OSError.

    A folder of which no run here has noted the files is read only if `read` asks for that.
    """
    if not model.is_folder:
        source = None if model.is_plugin else source_at_hand(model, cache)
        return (source.revision if source is not None else model.revision) or ""
    stamps = read_stamps(cache)
    return LocalModel.read(Path(model.name), stamps).revision if stamps or read else ""
