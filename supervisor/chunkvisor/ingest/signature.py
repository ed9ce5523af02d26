"""The state of source files: it tells whether one was touched since."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.ingest.remote import state_of
from chunkvisor.ingest.sources import Format, SourceFile, unreachable

Signature: TypeAlias = list[list[str | int]]

_BESIDE_DATABASES = (".wal", "-wal", "-journal")
"""What DuckDB (the first) and SQLite keep beside a database: changes that are not in it yet, or not for good."""


def signature(files: Sequence[SourceFile]) -> Signature:
    """[path, size_bytes, mtime_ns, ctime_ns, inode] of each file: the same as long as no source was touched.

    Raises Halt (exit 78) where a file is missing.
    """
    return [state for file in files for state in _states(file)]


def _states(file: SourceFile) -> Signature:
    if file.address is not None:
        return [state_of(file.address)]
    return [_state(file.path), *map(_stat, beside(file))]


def beside(file: SourceFile) -> list[Path]:
    """Files that hold changes to a database which are not in it yet; a file of another format has none."""
    if file.format is not Format.DATABASE:
        return []
    found = [Path(os.path.realpath(file.path) + suffix) for suffix in _BESIDE_DATABASES]
    return [path for path in found if _stat(path)[1]]


def check_unchanged(files: Sequence[SourceFile], before: Signature) -> None:
    """Raise Halt (exit 75) where a file is not as it was."""
    now = signature(files)
    if now != before:
        path = next((each[0] for each in (*now, *before) if each not in before or each not in now), files[0].path)
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"{path} was changed while it was being read.",
            remedy="Run again when nothing writes to it.",
        )


def _state(path: Path) -> list[str | int]:
    try:
        return _as_list(path, path.stat())
    except OSError as error:
        raise unreachable(path, error) from error


def _stat(path: Path) -> list[str | int]:
    """The same of a file that may go away at any time."""
    try:
        return _as_list(path, path.stat())
    except OSError:
        return [str(path), 0, 0, 0, 0]


def _as_list(path: Path, now: os.stat_result) -> list[str | int]:
    return [str(path), now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]
