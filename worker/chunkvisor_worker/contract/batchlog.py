"""Which texts of an attempt have their vectors, batch by batch: what remains of its work however it ends.

The worker adds a line when a batch begins and one when its vectors are written. Neither is synced: the lines outlive
the process, not the machine. A line that is torn, and all after it, are as if they had never been.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path

from chunkvisor_worker.contract.files import read_bounded
from chunkvisor_worker.contract.messages import Facts
from chunkvisor_worker.contract.wire import from_json


@dataclass(frozen=True, slots=True)
class Begun:
    """A batch begins."""

    batch: int
    rows: tuple[int, ...]
    """Positions in the file of vectors."""


@dataclass(frozen=True, slots=True)
class Written:
    """The vectors of a batch are in the file."""

    batch: int
    digest: str
    """xxh3-64 of them, in the order of the batch's rows."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What a log says."""

    facts: Facts | None = None
    """None where no batch was written."""
    written: tuple[tuple[tuple[int, ...], str], ...] = ()
    """(rows, digest) of each batch whose vectors are in the file."""
    under_way: tuple[int, ...] = ()
    """Rows of the batches that had begun and were not written."""
    canary: Facts | None = None
    """As they were found when the spec's canary got its vector; None = it got none. Its batch has no rows, so that its
    vector is taken for no text's."""


class BatchLog:
    """The worker's end of the log. Each method raises OSError."""

    def __init__(self, file: FileIO) -> None:
        """`file` is open for appending, and unbuffered."""
        self._file = file
        self._begun = 0
        self._written = 0

    def begin(self, rows: Sequence[int]) -> None:
        """A batch begins; batches are written in the order in which they began. The canary's has no rows."""
        self._say(Begun(self._begun, tuple(rows)))
        self._begun += 1

    def opened(self, facts: Facts) -> None:
        """The file of vectors is there, before its first batch is written; or the canary has its vector."""
        self._say(facts)

    def written(self, digest: str) -> None:
        """The vectors of the oldest batch that is under way are in the file."""
        self._say(Written(self._written, digest))
        self._written += 1

    def _say(self, line: Begun | Written | Facts) -> None:
        self._file.write(json.dumps(asdict(line), separators=(",", ":")).encode() + b"\n")


def read_batch_log(path: Path) -> BatchRecord:
    """What the log says; nothing at all where there is none."""
    facts: Facts | None = None
    begun: dict[int, tuple[int, ...]] = {}
    written = []
    canary: Facts | None = None
    for line in (read_bounded(path) or b"").splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        if (batch := from_json(Begun, line)) is not None:
            begun[batch.batch] = batch.rows
        elif (done := from_json(Written, line)) is not None and facts is not None and done.batch in begun:
            if rows := begun.pop(done.batch):
                written.append((rows, done.digest))
            else:
                canary = facts
        elif (found := from_json(Facts, line)) is not None:
            facts = found
        else:
            break
    return BatchRecord(facts, tuple(written), tuple(row for rows in begun.values() for row in rows), canary)
