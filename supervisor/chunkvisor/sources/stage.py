"""The child process that reads the sources of one request and writes its staged table.

The parent starts it, see `child.py`; no other process imports DuckDB. If the parent is killed, the
kernel kills it as well. The record (`table.json`) is written last, when the table is whole and on
disk.
"""

import ctypes
import errno
import hashlib
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import duckdb

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.sources import readers
from chunkvisor.sources.remote import download
from chunkvisor.sources.resolve import (
    IngestRequest,
    SourceFile,
    SourceFormat,
    resolve,
    signature,
)
from chunkvisor.sources.sql import SqlReader, is_disk_fault
from chunkvisor.sources.table import Spool, TableFiles, TableRecord, TableSource, seal_table
from chunkvisor.store.disk import disk_halt, halt_for
from chunkvisor_worker.contract.exits import DISK_ERRNOS
from chunkvisor_worker.contract.files import sync, write_atomic
from chunkvisor_worker.contract.wire import from_json


def stage(request: IngestRequest, folder: Path) -> None:
    """Write the table of the request into the existing folder.

    Raises Halt, OSError or duckdb.Error.
    """
    sources = resolve(request.sources)
    state = signature(sources)
    paths = TableFiles(folder)
    scratch = folder / "scratch"
    scratch.mkdir()
    # A column or template of text files needs no database, which takes 30 ms to make.
    by_sql = request.sql is not None or request.has_rows_file
    by_sql |= any(source.format is SourceFormat.PARQUET for source in sources)
    database = SqlReader(request, scratch) if by_sql else None
    files = list[TableSource]()
    rows_read = 0
    rows_kept = 0  # of those that were read, the rows that `where` keeps
    wanted = _rows_of_part(request, sources, scratch, by_sql=by_sql)
    spool = Spool(paths, scratch)
    for source in sources:
        rows_left = (request.max_rows or sys.maxsize) - rows_read
        if not rows_left or rows_kept == wanted.stop:
            break
        local = _fetched(source, scratch)
        first_row = spool.rows
        for place, text in _utf8_texts(database, local, request, rows_left):
            rows_read += 1
            if text is not None:
                if rows_kept in wanted:
                    spool.append(text, place)
                rows_kept += 1
        if source.is_elsewhere:
            local.path.unlink()
        has_lines = source.format is not SourceFormat.PARQUET
        files.append(TableSource(source.place, has_lines, first_row, spool.rows - first_row))
    if database is not None and request.has_rows_file and spool.rows:
        database.write_rows(paths.rows, wanted)
    distinct = spool.write_files()
    shutil.rmtree(scratch)
    for name, now in signature(sources).items():
        if now != state[name]:
            raise Halt(
                ExitCode.TRY_AGAIN,
                f"{name} was changed while it was being read.",
                "Run again when nothing writes to it.",
            )
    for path in folder.glob("*.*"):
        sync(path)
    record = TableRecord(spool.rows, distinct, spool.empty, tuple(files))
    seal_table(folder, record)


def _rows_of_part(
    request: IngestRequest, sources: Sequence[SourceFile], scratch: Path, *, by_sql: bool
) -> range:
    """Return the numbers of the rows to take, of those that `where` keeps.

    For a part, such as the third of eight, all rows are read once more to count them.
    """
    if request.part is None:
        return range(sys.maxsize)
    counting = scratch / "counting"
    counting.mkdir()
    database = SqlReader(request, counting) if by_sql else None
    count = 0
    for source in sources:
        texts = _utf8_texts(database, _fetched(source, scratch), request, sys.maxsize)
        count += sum(text is not None for _, text in texts)
    part, parts = request.part
    return range(count * (part - 1) // parts, count * part // parts)


def _fetched(source: SourceFile, scratch: Path) -> SourceFile:
    """Return the file where it can be read: one that is elsewhere is fetched once."""
    if not source.is_elsewhere:
        return source
    local = scratch / f"fetched-{hashlib.sha256(source.place.encode()).hexdigest()}"
    if not local.exists():
        download(source.place, local)
    return replace(source, path=local)


def _utf8_texts(
    database: SqlReader | None, file: SourceFile, request: IngestRequest, limit: int
) -> Iterator[tuple[int, bytes | None]]:
    """Yield line (or row of parquet) and text of the first `limit` rows of the file.

    The text is in UTF-8, and None for a row that `where` leaves out. `database` is None if none is
    needed.

    Raises Halt (78) for bad input, OSError, duckdb.Error.
    """
    rows: Iterator[tuple[int, str | None]]
    if database is not None:
        rows = database.texts(file, limit)
    else:
        columns, compose = readers.composer(request)
        read = readers.read_rows(file, columns, request.skip_blank, limit)
        rows = ((line, compose(file, line, cells)) for line, cells in read)
    for place, text in rows:
        if text is None:
            yield place, None
            continue
        data = readers.utf8_of(file, place, text)
        if len(data) > readers.MAX_TEXT_BYTES:
            most = f"{readers.MAX_TEXT_BYTES:,}"
            raise file.error(
                f"the text has {len(data):,} bytes of UTF-8, more than the {most} that one may "
                f"have.",
                place,
                "Correct or shorten it in the source, or use sql: left(column, 100000).",
            )
        yield place, data


def _as_halt(error: BaseException, request: IngestRequest | None, folder: Path) -> Halt | None:
    """Turn an error into the Halt that the user reads; None if it is a bug of chunkvisor."""
    if isinstance(error, Halt):
        return error
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        return Halt(
            ExitCode.MACHINE,
            f"The sources do not fit in {request.memory_limit_bytes if request else 0:,} bytes of "
            f"memory.",
            "Raise ingest.memory_limit.",
            why=str(error).split("\n", 1)[0],
        )
    if isinstance(error, OSError):
        return halt_for(error, folder)
    # DuckDB's own files are in the scratch folder.
    if isinstance(error, duckdb.IOException) or is_disk_fault(error):
        known = (*DISK_ERRNOS, errno.EFBIG, errno.EMFILE)
        words = str(error)
        number = next((each for each in known if os.strerror(each) in words), errno.EIO)
        return disk_halt(OSError(number, words), folder)
    return None


def main(arguments: list[str]) -> int:
    """Stage the request in `FOLDER/request.json`; `arguments` are `FOLDER [PARENT_PID]`.

    Without PARENT_PID, it does not end with its parent: so tests call it in their own process.

    Return an exit code of `chunkvisor`. A failure that is not a bug is explained in
    `FOLDER/answer.json`; the traceback of any failure goes to standard error, which is the log.
    """
    os.umask(0o077)
    folder = Path(arguments[0])
    request = None
    if len(arguments) > 1:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != int(arguments[1]):  # the parent had ended before that call
            return ExitCode.TERMINATED
    try:
        request = from_json(IngestRequest, (folder / "request.json").read_bytes())
        assert request is not None
        stage(request, folder)
    # Whatever it is, the log gets its traceback and the parent a code.
    except Exception as error:  # noqa: BLE001
        halt = _as_halt(error, request, folder)
        # A full disk may have room for neither; then the parent has only the exit code.
        with suppress(OSError):
            traceback.print_exc()
        with suppress(OSError):
            if halt is not None:
                write_atomic(folder / "answer.json", [json.dumps(halt.details()).encode()])
        return halt.code if halt is not None else ExitCode.BUG
    return ExitCode.COMPLETE


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with suppress(OSError):
        sys.stderr.flush()
    # Skip Python's teardown, in which DuckDB's bindings write about their own leaks to the log.
    os._exit(code)
