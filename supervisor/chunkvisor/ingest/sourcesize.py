"""How many rows a source has and how large the copy of its texts will be, told from its first rows and its size."""

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chunkvisor.ingest.child import stage_table
from chunkvisor.ingest.lines import lines
from chunkvisor.ingest.readers import read_rows
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.sources import Compression, Format, SourceFile, resolve

SAMPLE_ROWS = 1000
_SCRATCH_ROW_BYTES = 32
"""What staging notes of each row beside its text, until the texts are de-duplicated: see `spool.SpoolFiles`."""


@dataclass(frozen=True, slots=True)
class SourceSize:
    """Of one output; texts that repeat later count as if they did not."""

    rows: int
    staged_bytes: int
    """What the copy of the texts takes in the workdir while the source is read, and about that afterwards."""
    exact: bool = False
    """The rows are counted; else they are estimated."""


def measure_source(request: IngestRequest) -> SourceSize | None:
    """By its first 1,000 rows, which are read as a run will; None where they tell nothing of the others.

    That is so of files elsewhere, and of compressed ones. Raises Halt where they cannot be read, OSError.
    """
    files = resolve(request.sources)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-") as scratch:
        counted = _rows_of(files, Path(scratch), skip_blank=request.skip_blank)
        if counted is None:
            return None
        rows, read, exact = counted
        table = stage_table(replace(request, max_rows=read), Path(scratch) / "table", lambda: None)
        sample_bytes = sum(path.stat().st_size for path in table.folder.iterdir())
    if not table.rows:
        return None  # `where` leaves none of the first out
    kept = round(rows * table.rows / read)
    return SourceSize(
        kept,
        kept * (sample_bytes // table.rows + _SCRATCH_ROW_BYTES),
        exact=rows == read or (exact and not request.numbers_rows),
    )


def _rows_of(files: Sequence[SourceFile], scratch: Path, *, skip_blank: bool) -> tuple[float, int, bool] | None:
    """(rows of all files, how many of them a sample has, whether they are counted); None where it cannot be told."""
    if not files or any(file.address or file.compression is not Compression.NONE for file in files):
        return None
    formats = {file.format for file in files}
    if formats == {Format.PARQUET}:
        rows = _rows_of_parquet(files, scratch)
        return (rows, min(rows, SAMPLE_ROWS), True) if rows else None
    if not all(form.has_lines for form in formats):
        return None
    first = files[0]
    starts = [row[0] for row in read_rows(first, (), skip_blank=skip_blank, limit=SAMPLE_ROWS + 1)]
    if not starts:
        return None
    whole = len(starts) <= SAMPLE_ROWS
    sizes = [file.path.stat().st_size for file in files]
    if whole:
        return len(starts) * sum(sizes) / sizes[0], len(starts), len(files) == 1
    ends_before = starts[SAMPLE_ROWS]
    read_bytes = sum(len(line) for _, line in itertools.takewhile(lambda each: each[0] < ends_before, lines(first)))
    return SAMPLE_ROWS * sum(sizes) / read_bytes, SAMPLE_ROWS, False


def _rows_of_parquet(files: Sequence[SourceFile], scratch: Path) -> int:
    import duckdb  # late: most configs have another source

    from chunkvisor.ingest.parquet import rows_in

    try:
        with duckdb.connect() as connection:
            return sum(rows_in(connection, file, scratch) for file in files)
    except duckdb.Error:  # whoever reads the rows says it better
        return 0
