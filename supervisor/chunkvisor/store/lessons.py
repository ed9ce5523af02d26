"""The lessons of a workdir about batches, on disk: what one run paid for, no later one pays for again.

Lessons hold for one model on one kind of device. A damaged file is an empty one.
"""

import contextlib
from pathlib import Path
from typing import Any

from chunkvisor.store.seal import DamagedError, read_sealed, write_sealed


class LessonFile:
    """The lessons for one model, by kind of device (`Device.model`)."""

    def __init__(self, path: Path, key: str) -> None:
        """`key` names the model."""
        self._path = path
        self._key = key

    def get(self, kind: str) -> tuple[int, int | None] | None:
        """Say how many rows and padded tokens (None = not known) a batch may have on devices of the kind."""
        values: object = None
        with contextlib.suppress(OSError):
            values = self._read().get(self._key_of(kind))
        match values:
            case [int() as rows, (int() | None) as tokens]:
                return rows, tokens
        return None

    def save(self, kind: str, rows: int, tokens: int | None) -> None:
        """Keep it; on a full disk the run has it in mind all the same."""
        with contextlib.suppress(OSError):
            write_sealed(self._path, {**self._read(), self._key_of(kind): [rows, tokens]})

    def _read(self) -> dict[str, Any]:
        try:
            return read_sealed(self._path) or {}
        except DamagedError:
            return {}

    def _key_of(self, kind: str) -> str:
        return f"{kind}|{self._key}" if kind else self._key
