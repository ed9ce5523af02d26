"""What is done of one output, as the scheduler sees it."""

from collections.abc import Collection
from typing import Protocol

from chunkvisor.decide.bisect import BadText
from chunkvisor_worker.contract.messages import Limits


class Progress(Protocol):
    """What is done of one output; the driver writes it down, the scheduler only reads it."""

    limits: Limits
    """Of the config, before any lesson."""

    @property
    def name(self) -> str:
        """Of the output, as the config has it."""

    @property
    def chunks(self) -> int:
        """Chunks in all."""

    @property
    def left(self) -> int:
        """Chunks that are not committed."""

    @property
    def complete(self) -> bool:
        """Whether all chunks are committed, and the output can be joined."""

    @property
    def has_facts(self) -> bool:
        """Whether the vectors' dimension is known."""

    @property
    def bad_count(self) -> int:
        """Texts in quarantine."""

    def bad_rows(self) -> int:
        """Rows that have one of them: more, where a text stands in several."""

    def rows_of(self, text: int) -> int:
        """Rows that have the text."""

    @property
    def last_bad(self) -> BadText | None:
        """The last of them."""

    @property
    def texts(self) -> int:
        """Distinct texts of the whole output."""

    def bounds(self, chunk: int) -> tuple[int, int]:
        """First text of the chunk, and one past its last."""

    def next_pending(self, start: int) -> int | None:
        """The first chunk from `start` on that is not committed."""

    def missing(self, chunk: int) -> list[tuple[int, int]]:
        """Ranges of texts that have neither vectors nor a verdict, in order, cut where the chunk was taken apart."""

    def cuts(self, chunk: int) -> Collection[int]:
        """Texts before which the chunk was taken apart."""

    def shortest(self, chunk: int, without: Collection[int]) -> int | None:
        """Of the chunk's texts that have neither vectors nor a verdict, the shortest; blank ones count as long.

        None where all of these are in `without`.
        """

    def known_good(self) -> tuple[int, int] | None:
        """(chunk, text) of a text that has a vector; None where there is none yet."""
