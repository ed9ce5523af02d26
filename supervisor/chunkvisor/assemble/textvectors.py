"""The vectors of an output's texts, in order: those encoded here from its chunks, the others from where they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chunkvisor.assemble.chunkreader import ChunkReader
from chunkvisor.decide.bisect import BadText
from chunkvisor.store.artifact import Vectors
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.reuse import ENCODED, Reuse, Where

_AHEAD_TEXTS = 1 << 16
"""Of as many texts it is read at a time where their vectors are."""


class TakenDamagedError(Exception):
    """Vectors that were to be taken over are not what they were."""


class RowReader(Protocol):
    """Vectors by number."""

    dimension: int

    def read(self, rows: npt.NDArray[np.int64], /) -> Vectors:
        """Those of the rows, in that order. Raises OSError, ValueError."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What is taken over, and from whom."""

    reuse: Reuse
    readers: Sequence[RowReader]
    """Of each place of the plan."""
    without: Mapping[int, BadText] = field(default_factory=dict)
    """Texts of the output that have no vector there either."""


class TextVectors:
    """From the first text to the last, once; a context."""

    def __init__(self, ledger: Ledger, taken: Taken | None) -> None:
        self._chunks = ChunkReader(ledger)
        self._taken = taken
        self._next = 0
        self._where: Where = np.empty(0, dtype=np.void)
        self._where_first = 0

    def __enter__(self) -> "TextVectors":
        return self

    def __exit__(self, *error: object) -> None:
        """Close what is open."""
        self._chunks.__exit__(*error)

    @property
    def at_end(self) -> bool:
        """Whether all vectors were handed out."""
        return self._chunks.at_end and (self._taken is None or self._next == self._taken.reuse.texts)

    def fill(self, room: Vectors) -> None:
        """The next vectors, as many as there is room for.

        Raises ChunkDamagedError, TakenDamagedError, OSError.
        """
        if self._taken is None:
            self._chunks.fill(room)
            return
        where = self._expected(len(room))
        encoded = where["place"] == ENCODED
        if encoded.all():
            self._chunks.fill(room)
        else:
            if count := int(np.count_nonzero(encoded)):
                new = np.empty((count, room.shape[1]), dtype="<f4")
                self._chunks.fill(new)
                room[encoded] = new
            for number in range(len(self._taken.readers)):
                if (hits := where["place"] == number).any():
                    room[hits] = self._read(number, where["row"][hits])
        self._next += len(room)

    def _read(self, number: int, rows: npt.NDArray[np.int64]) -> Vectors:
        assert self._taken is not None
        try:
            return self._taken.readers[number].read(rows)
        except (ValueError, FileNotFoundError) as error:
            raise TakenDamagedError(f"{self._taken.reuse.places[number].words}: {error}") from error

    def _expected(self, count: int) -> Where:
        """Where the next texts' vectors are."""
        assert self._taken is not None
        if self._next + count > self._where_first + len(self._where):
            stop = min(self._taken.reuse.texts, self._next + max(count, _AHEAD_TEXTS))
            self._where, self._where_first = self._taken.reuse.where(self._next, stop), self._next
        first = self._next - self._where_first
        return self._where[first : first + count]
