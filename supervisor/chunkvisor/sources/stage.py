"""The child: reads the sources of one request and writes the staged table.

It ends with its parent; the record (`table.json`) is written last, when the table is whole and on disk.
"""

import contextlib
import os
import shutil
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

import duckdb

from chunkvisor.child import answer_parent
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.sources.dedupe import Spool, SpoolFiles, drop_repeats, number_texts
from chunkvisor.sources.fetch import fetch, shown, state_of
from chunkvisor.sources.problems import MAX_TEXT_BYTES, disk_full, input_error, refused, too_deep, too_large
from chunkvisor.sources.readers import NotTextError, composer, read_rows
from chunkvisor.sources.request import IngestRequest
from chunkvisor.sources.resolve import Format, SourceFile, check_unchanged, resolve, signature
from chunkvisor.sources.sql import (
    as_os_error,
    check_condition,
    check_expression,
    connect,
    folded,
    is_disk_fault,
    question,
)
from chunkvisor.sources.sqlrows import RowsTable, parquet_rows, sql_rows
from chunkvisor.sources.table import TableFiles, TableSource, write_record


@contextlib.contextmanager
def at_hand(file: SourceFile, scratch: Path) -> Iterator[SourceFile]:
    """The file where it can be read; one that is fetched goes away afterwards, and messages have its address.

    Raises Halt as `fetch.fetch`, and what is raised inside.
    """
    if file.address is None:
        yield file
        return
    local = scratch / f"fetched{''.join(file.path.suffixes[-2:])}"
    try:
        fetch(file.address, local, int(state_of(file.address)[1]))
        yield replace(file, path=local, address=None)
    except Halt as halt:
        what, why, remedy = (text.replace(str(local), file.address) for text in (halt.what, halt.why, halt.remedy))
        raise Halt(halt.code, what, why=why, remedy=remedy, log=halt.log) from halt
    finally:
        local.unlink(missing_ok=True)


_PLACES_AT_ONCE = 1 << 16


def stage(request: IngestRequest, folder: Path) -> None:
    """Write the table of the request into the existing folder. Raises Halt, OSError or duckdb.Error."""
    sources = resolve(request.sources)
    state = signature(sources)
    scratch = folder / "scratch"
    scratch.mkdir()
    paths, spooled = TableFiles(folder), SpoolFiles(scratch)
    spool, files = _read(request, sources, paths, scratch)
    if not request.numbers_rows:
        paths.places.unlink()
    distinct = number_texts(paths, spooled, spool.batches, request.memory_limit_bytes)
    drop_repeats(paths, spooled, spool.batches)
    shutil.rmtree(scratch)
    check_unchanged(sources, state)
    for path in (*paths.arrays, *paths.there, paths.index):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    write_record(
        folder,
        rows=spool.rows,
        distinct=distinct,
        files=files,
        source_state=state,
        skip_blank=request.skip_blank,
        empty=spool.empty,
    )


def _read(
    request: IngestRequest, sources: list[SourceFile], paths: TableFiles, scratch: Path
) -> tuple[Spool, list[TableSource]]:
    """Spool the texts of all sources, and write what is to be known of their rows: (closed spool, rows by source)."""
    files: list[TableSource] = []
    first = 0
    with ExitStack() as stack:
        # To make a database takes 30 ms, and a column of a text file needs none.
        database = cache(lambda: stack.enter_context(connect(request.memory_limit_bytes, scratch)))
        spool = stack.enter_context(Spool(paths, SpoolFiles(scratch)))
        if request.sql is not None:
            check_expression(database(), request.sql)
        if request.where is not None:
            check_condition(database(), request.where)
        table = RowsTable(database(), request, scratch) if request.has_rows_table else None
        with open(paths.places, "wb") as places:
            read = 0
            for source in sources:
                left = None if request.max_rows is None else request.max_rows - read
                if left == 0:
                    break
                with at_hand(source, scratch) as local:
                    texts = _texts(database, local, request, left, scratch)
                    count = _spool(spool, texts, places)
                    if table is not None:
                        table.add(local, left, count)
                files.append(TableSource(source.path, first, spool.rows_added - first))
                first, read = spool.rows_added, read + count
        if not first:
            raise _no_rows(request, sources)
        if table is not None:
            table.write(paths.rows, first)
    return spool, files


def _no_rows(request: IngestRequest, sources: list[SourceFile]) -> Halt:
    where = f" for which `where` holds ({request.where})" if request.where is not None else ""
    return config_error(
        f"The sources have no rows{where}: {', '.join(shown(source.path) for source in sources[:10])}",
        remedy=f"Correct the sources{' or the condition' if where else ''}, or remove the output.",
    )


def _spool(spool: Spool, texts: Iterable[bytes | None], places: BinaryIO) -> int:
    """Add the text of each row that is not left out, and note where in the file it stands; returns the rows read."""
    read, kept = 0, array("q")
    for text in texts:
        if text is not None:
            spool.add(text)
            kept.append(read)
        read += 1
        if len(kept) >= _PLACES_AT_ONCE:
            kept = _write_places(kept, places)
    _write_places(kept, places)
    return read


def _write_places(kept: "array[int]", places: BinaryIO) -> "array[int]":
    """Write them, and return an empty array."""
    if sys.byteorder == "big":
        kept.byteswap()
    places.write(kept.tobytes())
    return array("q")


def _texts(
    database: Callable[[], duckdb.DuckDBPyConnection],
    file: SourceFile,
    request: IngestRequest,
    limit: int | None,
    scratch: Path,
) -> Iterator[bytes | None]:
    """UTF-8 of the first `limit` rows of the file; None for one that `where` leaves out.

    Raises Halt (exit 78) for bad input, saying where.
    """
    if file.format is Format.PARQUET:
        rows = parquet_rows(database(), file, request, limit, scratch)
    elif request.sql is not None:
        sql = request.sql if request.where is None else folded(request.where, request.sql)
        rows = sql_rows(database(), file, replace(request, sql=sql), limit)
    else:
        held = None if request.where is None else sql_rows(database(), file, question(request), limit)
        rows = _composed(file, request, limit, held)
    unit = "line" if file.format.has_lines else "row"
    for place, text in rows:
        if text is None and request.where is not None:
            yield None
            continue
        try:
            data = (text or "").encode()
        except UnicodeEncodeError as error:
            raise input_error(
                file.path,
                f"the text has a lone surrogate, {text[error.start]!r}, at character {error.start + 1}.",  # type: ignore[index] # None encodes
                why="It is half of a character, which UTF-8 cannot hold.",
                remedy="Correct it in the source; most come from a text that was cut in the middle of an emoji.",
                **{unit: place},
            ) from error
        if len(data) > MAX_TEXT_BYTES:
            raise too_large(file.path, len(data), **{unit: place})
        yield data


def _composed(
    file: SourceFile, request: IngestRequest, limit: int | None, held: Iterator[tuple[int, str | None]] | None
) -> Iterator[tuple[int, str | None]]:
    """Line and text of each row; None for the text of one of which `held` has none."""
    columns, compose = composer(request)
    rows = read_rows(file, columns, skip_blank=request.skip_blank, limit=limit)
    for line, cells in rows:
        if held is not None and next(held)[1] is None:
            yield line, None
            continue
        try:
            yield line, compose(cells)
        except RecursionError as error:
            raise too_deep(file.path, line) from error
        except NotTextError as error:
            raise input_error(
                file.path, str(error), line=line, remedy="Name a column of text, or use sql to convert it."
            ) from error


def _halt_of(error: BaseException, request: IngestRequest | None, folder: Path) -> Halt | None:
    """The message for an error, met on the way into `folder`, that is no bug of ours."""
    if isinstance(error, Halt):
        return error
    if is_disk_fault(error):
        return disk_full(folder, error)
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        return Halt(
            ExitCode.MACHINE,
            f"The sources do not fit in {request.memory_limit_bytes if request else 0:,} bytes of memory for reading.",
            why=str(error).split("\n", 1)[0],
            remedy="Raise ingest.memory_limit.",
        )
    met = as_os_error(error)
    return refused(met, folder) if met is not None else None


def main(arguments: list[str]) -> int:
    """See `answer_parent`; 0 means a whole table."""
    return answer_parent(arguments, IngestRequest, stage, _halt_of)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with suppress(OSError):
        sys.stderr.flush()
    # Without Python's teardown, in which DuckDB's bindings complain about their own leaks.
    os._exit(code)
