"""The child: reads the sources of one request and writes the staged table.

It ends with its parent; the record (`table.json`) is written last, when the table is whole and on disk.
"""

import contextlib
import errno
import os
import shutil
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import duckdb

from chunkvisor.child import answer_parent
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.sources.dedupe import Spool
from chunkvisor.sources.readers import MAX_TEXT_BYTES, composer, input_error, read_rows
from chunkvisor.sources.resolve import IngestRequest, SourceFile, SourceFormat, fetch, resolve, signature
from chunkvisor.sources.sql import SqlReader, is_disk_fault
from chunkvisor.sources.table import TableFiles, TableRecord, TableSource, seal_table
from chunkvisor.store.disk import disk_halt, refusal


def stage(request: IngestRequest, folder: Path) -> None:
    """Write the table of the request into the existing folder. Raises Halt, OSError or duckdb.Error."""
    sources = resolve(request.sources)
    state = signature(sources)
    paths, scratch = TableFiles(folder), folder / "scratch"
    scratch.mkdir()
    # To make a database takes 30 ms, and a column of a text file needs none.
    database = cache(lambda: SqlReader(request, scratch))
    if request.sql is not None or request.where is not None:
        database()
    files, read, spool = list[TableSource](), 0, Spool(paths, scratch)
    with open(paths.places, "wb") as places:
        for source in sources:
            left = None if request.max_rows is None else request.max_rows - read
            if left == 0:
                break
            first, number = spool.rows, -1
            with _at_hand(source, scratch) as local:
                for number, text in enumerate(_texts(database, local, request, left)):
                    if text is not None:
                        spool.add(text)
                        if request.where is not None:
                            places.write(array("q", [number]).tobytes())
            read += number + 1
            files.append(TableSource(source.place, first, spool.rows - first))
    if request.has_rows_table and spool.rows:
        database().write_rows(paths.rows)
    if request.where is None:
        paths.places.unlink()
    distinct = spool.finish()
    shutil.rmtree(scratch)
    for place, now in signature(sources).items():
        if now != state[place]:
            what = f"{place} was changed while it was being read."
            raise Halt(ExitCode.TRY_AGAIN, what, remedy="Run again when nothing writes to it.")
    for path in folder.glob("*.*"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    record = TableRecord(
        rows=spool.rows,
        distinct=distinct,
        empty=spool.empty,
        signature=state,
        skip_blank=request.skip_blank,
        files=tuple(files),
    )
    seal_table(folder, record)


@contextlib.contextmanager
def _at_hand(file: SourceFile, scratch: Path) -> Iterator[SourceFile]:
    """Give the file where it can be read; one that is fetched goes away afterwards, and messages have its address."""
    if not file.is_elsewhere:
        yield file
        return
    local = scratch / f"fetched{''.join(file.path.suffixes[-2:])}"
    try:
        fetch(file.place, local)
        yield replace(file, path=local)
    except Halt as halt:
        halt.what = halt.what.replace(str(local), file.place)
        raise
    finally:
        local.unlink(missing_ok=True)


def _texts(
    database: Callable[[], SqlReader], file: SourceFile, request: IngestRequest, limit: int | None
) -> Iterator[bytes | None]:
    """Yield UTF-8 of the first `limit` rows of the file; None for one that `where` leaves out. Raises Halt (78)."""
    is_parquet = file.format is SourceFormat.PARQUET
    rows: Iterator[tuple[int, str | None]]
    if is_parquet or request.sql is not None or request.has_rows_table:
        rows = database().texts(file, limit)
    else:
        columns, compose = composer(request)
        read = read_rows(file, columns, skip_blank=request.skip_blank, limit=limit)
        rows = ((line, compose(file.path, line, cells)) for line, cells in read)
    for place, text in rows:
        if text is None:
            yield None
            continue
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            what = f"the text has a lone surrogate, {error.object[error.start]!r}, at character {error.start + 1}."
            remedy = "It is half of a character, mostly of an emoji that was cut in two. Correct it in the source."
            raise input_error(file.path, what, line=place, remedy=remedy) from error
        if len(data) > MAX_TEXT_BYTES:
            what = f"the text has {len(data):,} bytes of UTF-8, more than the {MAX_TEXT_BYTES:,} that one may have."
            remedy = "Correct or shorten it in the source, or use sql: left(column, 100000)."
            raise input_error(file.path, what, line=place, unit="row" if is_parquet else "line", remedy=remedy)
        yield data


def _in_words(error: BaseException, request: IngestRequest | None, folder: Path) -> Halt | None:
    """Return the message for an error that is not a bug of ours."""
    if isinstance(error, Halt):
        return error
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        what = f"The sources do not fit in {request.memory_limit_bytes if request else 0:,} bytes of memory."
        why = str(error).split("\n", 1)[0]
        return Halt(ExitCode.MACHINE, what, why=why, remedy="Raise ingest.memory_limit.")
    if isinstance(error, OSError):
        return refusal(error, folder)
    if isinstance(error, duckdb.IOException) or is_disk_fault(error):  # of DuckDB's own files in the scratch folder
        return disk_halt(OSError(errno.ENOSPC, str(error)), folder)
    return None


def main(arguments: list[str]) -> int:
    """See `answer_parent`; 0 means a whole table."""
    return answer_parent(arguments, IngestRequest, stage, _in_words)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    # Without Python's teardown, in which DuckDB's bindings complain about their own leaks.
    os._exit(code)
