"""The state of source files: it tells whether one was touched since."""

from collections.abc import Sequence
from typing import TypeAlias

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.ingest.remote import state_of
from chunkvisor.ingest.sources import SourceFile, unreachable

Signature: TypeAlias = list[list[str | int]]


def signature(files: Sequence[SourceFile]) -> Signature:
    """[path, size_bytes, mtime_ns, ctime_ns, inode] of each file: the same as long as no source was touched.

    Raises Halt (exit 78) where a file is missing.
    """
    return [_state(file) for file in files]


def _state(file: SourceFile) -> list[str | int]:
    if file.address is not None:
        return state_of(file.address)
    try:
        now = file.path.stat()
    except OSError as error:
        raise unreachable(file.path, error) from error
    return [str(file.path), now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]


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
