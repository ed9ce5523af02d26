"""Cuts the distinct texts of an output into chunks.

Pure: it never touches a file; a chunk is two numbers, whatever the number of rows.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """Chunks of one output, numbered from 0; fixed by the output's first run."""

    distinct: int
    """Distinct texts."""
    chunk_size: int
    """Distinct texts in a chunk; the last may have fewer."""

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.distinct // self.chunk_size)

    def bounds(self, chunk: int) -> tuple[int, int]:
        """(first text, one past the last) of the chunk."""
        return chunk * self.chunk_size, min(self.distinct, (chunk + 1) * self.chunk_size)

    def texts_in(self, chosen: bytearray) -> int:
        """Texts in the chunks that are chosen: one byte a chunk, 1 or 0."""
        count = chosen.count(1)
        lacking = self.count * self.chunk_size - self.distinct if count and chosen[-1] else 0
        return count * self.chunk_size - lacking

    def size(self, chunk: int) -> int:
        """Texts in the chunk."""
        start, stop = self.bounds(chunk)
        return stop - start
