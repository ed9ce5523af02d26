"""The parent's side of reading sources: starts the child, waits for it, and puts its table in place."""

import itertools
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from chunkvisor.child import ask_child
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.sources.fetch import is_remote
from chunkvisor.sources.problems import disk_full, refused
from chunkvisor.sources.readers import TEXT_COLUMN, csv_columns, lines, read_objects, read_rows
from chunkvisor.sources.request import IngestRequest
from chunkvisor.sources.resolve import Compression, Format, SourceFile, resolve, signature
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.layout import unfinished
from chunkvisor.store.records import DamagedError
from chunkvisor_worker.contract.files import remove_folder

_LINES = 100
"""Of JSON that are looked at."""
_LOG = "ingest.log"
"""What the child prints, in the folder."""

_NO_COLUMN = "\N{NULL}"
"""No file has a column of this name, so asking for it gives the message that lists those it has."""


def stage_table(request: IngestRequest, folder: Path, on_wait: Callable[[], None]) -> StagedTable:
    """Stage the request into `folder`, replacing what is there, and open it; its files are synced, its name is not.

    Calls `on_wait` about ten times a second; what that raises ends the child and is raised again. Raises Halt for
    bad input (78), a full or failing disk (74), too little memory (69, 75), a limit of the machine (69) and a bug (1);
    OSError where `folder` cannot be made.
    """
    partial = unfinished(folder)
    remove_folder(partial)
    partial.mkdir(parents=True)
    answer = ask_child("chunkvisor.sources.stage", request, partial, partial / _LOG, on_wait)
    if answer.status:
        halt = answer.halt or _halt(request, partial, answer.status)
        if halt.log is None:
            remove_folder(partial)
        raise halt
    remove_folder(folder)
    partial.rename(folder)
    try:
        return StagedTable.open(folder)
    except DamagedError as error:
        met = error.__cause__
        raise (refused(met, folder) if isinstance(met, OSError) else None) or Halt(
            ExitCode.DISK,
            f"The texts that were just written to {folder} cannot be read back.",
            why=str(error),
            remedy="Look at the kernel's log for errors of the disk (dmesg), or move the workdir to another disk.",
        ) from error


def columns_in_words(file: SourceFile, scratch: Path) -> str:
    """`The columns are: 'a', 'b'.`, for a person who has not said which one holds the text.

    `scratch` is an existing folder to work in. Raises Halt for bad input, OSError.
    """
    match file.format:
        case Format.PARQUET:
            request = IngestRequest((str(file.path),), column=_NO_COLUMN, max_rows=1)
            try:
                stage_table(request, scratch / "columns", lambda: None)
            except Halt as halt:
                return halt.remedy
            raise AssertionError("a column without a name was found")
        case Format.CSV | Format.TSV:
            columns = csv_columns(file)
        case Format.JSONL:
            columns = list(dict.fromkeys(key for _, item in islice(read_objects(file), _LINES) for key in item))
        case Format.TXT:
            columns = [TEXT_COLUMN]
    return f"The columns are: {', '.join(map(repr, columns))}."


def _halt(request: IngestRequest, partial: Path, status: int) -> Halt:
    """Of a child that has not said what was wrong."""
    log = partial / _LOG
    if status == ExitCode.DISK:
        return disk_full(partial)
    if status in (ExitCode.MACHINE, ExitCode.CONFIG):  # its message could not be written either
        return Halt(
            ExitCode(status),
            f"The process that reads the sources was refused what it needs in {partial}.",
            why="It could not leave a message; its log has the error.",
            remedy="Read the log, correct what it names, then run the same command again.",
            log=log,
        )
    if status == -signal.SIGKILL:
        return Halt(
            ExitCode.TRY_AGAIN,
            "The process that reads the sources was killed.",
            why="The machine's memory was probably short; the process itself keeps to about "
            f"{request.memory_limit_bytes:,} bytes.",
            remedy="Free memory, or lower ingest.memory_limit, and run again.",
            log=log,
        )
    ended = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
    return Halt(
        ExitCode.BUG, f"The process that reads the sources {ended}.", remedy="Please report it with the log.", log=log
    )


def try_first_row(request: IngestRequest, on_wait: Callable[[], None] = lambda: None) -> None:
    """Read one row as the run will: the files, their columns, the template or the expression.

    Takes half a second. Of sources elsewhere, which would have to be fetched whole, it is only seen that they are
    there. Raises Halt (78) where the run would be refused; whatever else is wrong, the reading of all rows says better.
    What `on_wait` raises ends it, too.
    """
    try:
        if any(map(is_remote, request.sources)):
            signature(resolve(request.sources))
            return
        with tempfile.TemporaryDirectory(prefix="chunkvisor-") as scratch:
            stage_table(replace(request, max_rows=1), Path(scratch) / "table", on_wait)
    except Halt as halt:
        if halt.code is ExitCode.CONFIG:
            raise


SAMPLE_ROWS = 1000
_SCRATCH_ROW_BYTES = 32
"""What staging notes of each row beside its text, until the texts are de-duplicated: see `dedupe.SpoolFiles`."""


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

    from chunkvisor.sources.sqlrows import rows_in

    try:
        with duckdb.connect() as connection:
            return sum(rows_in(connection, file, scratch) for file in files)
    except duckdb.Error:  # whoever reads the rows says it better
        return 0
