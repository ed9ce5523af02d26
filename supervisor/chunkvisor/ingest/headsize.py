"""How many of the first rows of a source are encoded while the rest of it is still read."""

from chunkvisor.errors import Halt
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.sources import resolve
from chunkvisor.ingest.sourcesize import measure_source

_LARGE_BYTES = 200_000_000
"""Smaller sources are not even looked at: they are read in seconds."""
_LONG_S = 15.0
"""A template loads for a third of that; what is read sooner is read first."""
_ROWS_PER_S, _BYTES_PER_S = 400_000, 100_000_000
"""Both take their time: 14.7 million lines in 45 s, see docs/explanation/performance.md."""
_DEVICE_ROWS_PER_S = 2_000
"""Of a device, generously: to read a row too many costs a few microseconds, one too few an idle device."""
_CHUNKS = 3
"""The last is seldom whole: some texts stand in several rows."""
_SHARE = 20
"""Reading the head takes this part of the time for the whole, at most, in which nothing is encoded."""


def head_rows(request: IngestRequest, devices: int, chunk_size: int) -> int | None:
    """As many as so many devices encode meanwhile, about, or some chunks for each of them where these are large.

    None where the source is read soon, or none can tell.
    """
    try:
        if sum(file.path.stat().st_size for file in resolve(request.sources)) < _LARGE_BYTES:
            return None
        size = measure_source(request)
    except (Halt, OSError):  # whoever reads the source says it better
        return None
    if size is None:
        return None
    reading_s = size.rows / _ROWS_PER_S + size.staged_bytes / _BYTES_PER_S
    if reading_s < _LONG_S:
        return None
    wanted = max(reading_s * devices * _DEVICE_ROWS_PER_S, _CHUNKS * devices * chunk_size)
    return int(min(wanted, reading_s * _ROWS_PER_S / _SHARE))


def begins_cheaply(request: IngestRequest) -> bool:
    """Whether the first rows can be read without the others, and are the first rows of the table.

    Not those of a query, a condition or an expression, which DuckDB may answer by reading all; not those of a file
    elsewhere, which is fetched as a whole; and windows have other numbers than the rows. Raises Halt where one is gone.
    """
    if request.query is not None or request.sql is not None or request.numbers_rows:
        return False
    return not any(file.address for file in resolve(request.sources))
