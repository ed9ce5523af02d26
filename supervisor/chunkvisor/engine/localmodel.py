"""A model in a local folder: the digest of its files, and whether they still are what they were.

Links are followed, to folders as well: what a worker would load is what counts.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from chunkvisor.engine.modelname import NAME_REMEDY
from chunkvisor.errors import Halt, config_error
from chunkvisor.store.stamp import Stamp, stamp_file, state_of

_TELLING = frozenset({"config.json", "modules.json"})
"""Files that tell what a folder's model is."""


@dataclass(slots=True)
class LocalModel:
    """The folder as it was when the run began."""

    folder: Path
    stamps: dict[str, Stamp]
    """Of each file, by its path in the folder."""

    @classmethod
    def read(
        cls,
        folder: Path,
        known: dict[str, Stamp],
        on_wait: Callable[[], None] = lambda: None,
        begin: Callable[[], None] | None = None,
    ) -> Self:
        """Stamp all files; those that are untouched since `known`, by full path, are not read again.

        Calls `begin` once, so that somebody may load the model meanwhile, and `on_wait` before each file. Raises Halt
        (78) where the folder holds no model, or where a file is touched between `begin` and the end; OSError.
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
            # Whoever loads it may have read another content than the digest is of, even if that was put back.
            after = {path: state_of(path) for path in model_files(folder)}
            if touched := [path for path in states | after if states.get(path) != after.get(path)]:
                raise _touched(folder, touched[0])
        return cls(folder, stamps)

    @property
    def revision(self) -> str:
        """`sha256:…` over the names and contents of all files."""
        content = json.dumps([[name, stamp.digest] for name, stamp in self.stamps.items()])
        return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"

    def by_path(self) -> dict[str, Stamp]:
        """The stamps, by full path."""
        return {str(self.folder / name): stamp for name, stamp in self.stamps.items()}

    def changed(self) -> str | None:
        """A file that is not what it was, has come or has gone; None where there is none. Raises OSError.

        A file that was touched and holds the same is read once more, and stamped anew.
        """
        names = {path.relative_to(self.folder).as_posix(): path for path in model_files(self.folder)}
        for name, stamp in self.stamps.items():
            if name not in names:
                return name
            if not stamp.untouched(names[name]):
                fresh = stamp_file(names[name])
                if fresh.digest != stamp.digest:
                    return name
                self.stamps[name] = fresh
        return next((name for name in names if name not in self.stamps), None)

    def check(self) -> None:
        """Raises Halt (78) where the folder has changed since the run began."""
        try:
            name = self.changed()
        except OSError as error:
            name = f"{error.filename}: {error.strerror}"
        if name is not None:
            raise config_error(
                f"the model folder {self.folder} was changed while the run was under way",
                why=f"{name} is not what it was when the run began; vectors of two models would be mixed in one file",
                remedy="put the folder back as it was, and run the same command again: what was committed before the "
                "change stays; or choose another workdir for the changed model",
            )

    def settled_since(self, time_ns: int) -> bool:
        """Whether everything in the folder has been in place, as it is, since before that time. Raises OSError.

        By the change times, which no call can set back (inode(7)); those of links and folders tell of a switch.
        """
        found = [self.folder.lstat(), self.folder.stat()]
        for path in model_files(self.folder):
            found += [path.lstat(), path.stat(), path.parent.lstat()]
        return all(state.st_ctime_ns < time_ns for state in found)


def folder_like(name: str, beside: Path) -> Path | None:
    """The model folder that may have been meant by a name that is none, as written from `beside`. Raises nothing."""
    wanted = beside / name
    try:
        models = [path for path in wanted.parent.iterdir() if any((path / each).is_file() for each in _TELLING)]
    except OSError:
        return None
    near = difflib.get_close_matches(wanted.name.lower(), {path.name.lower(): path for path in models}, 1)
    return next((path for path in models if path.name.lower() in near), None)


def require_model(folder: Path | str, names: Set[str]) -> None:
    """Raises Halt (78) where no file by these names tells what the folder's model is."""
    if names.isdisjoint(_TELLING):
        raise config_error(f"{folder} holds no model: it has neither config.json nor modules.json", remedy=NAME_REMEDY)


def _touched(folder: Path, path: Path) -> Halt:
    return config_error(
        f"the model folder {folder} was changed while the run began",
        why=f"{path.relative_to(folder)} was written to meanwhile: nobody could say which model had been loaded",
        remedy="wait until nothing writes to that folder, and run the same command again",
    )


def model_files(folder: Path) -> list[Path]:
    """The files of a model, sorted by their paths: all but hidden ones and compiled code. Raises OSError."""
    return sorted(_files(folder, frozenset()))


def _files(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    state = folder.stat()
    here = (state.st_dev, state.st_ino)
    if here in above:
        return  # a link that leads back up
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            path = folder / entry.name
            if path.is_dir():
                yield from _files(path, above | {here})
            elif path.is_file():
                yield path
