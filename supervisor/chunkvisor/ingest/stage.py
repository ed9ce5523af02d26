"""The child: reads the sources of one request and writes the staged table.

It ends with its parent; the record (`table.json`) is written last, when the table is whole and on disk.
"""

import ctypes
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb

from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.ingest.batches import sql_rows
from chunkvisor.ingest.database import connect, is_disk_fault
from chunkvisor.ingest.dedupe import drop_repeats, number_texts
from chunkvisor.ingest.expression import check_expression
from chunkvisor.ingest.parquet import parquet_rows
from chunkvisor.ingest.problem import MAX_TEXT_BYTES, input_error, too_deep, too_large
from chunkvisor.ingest.readers import read_rows
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.sources import Format, SourceFile, resolve, signature
from chunkvisor.ingest.spool import Spool, SpoolFiles
from chunkvisor.ingest.table import TableFiles, TableSource, write_record
from chunkvisor.ingest.values import NotTextError, composer
from chunkvisor_worker.contract.files import sync_folder, write_atomic
from chunkvisor_worker.contract.messages import from_json

_PR_SET_PDEATHSIG = 1


def stage(request: IngestRequest, folder: Path) -> None:
    """Write the table of the request into the existing folder. Raises Halt, OSError or duckdb.Error."""
    sources = resolve(request.sources)
    state = signature(sources)
    scratch = folder / "scratch"
    scratch.mkdir()
    paths, spooled = TableFiles(folder), SpoolFiles(scratch)
    files: list[TableSource] = []
    first = 0
    with connect(request.memory_limit_bytes, scratch) as reader, Spool(paths, spooled) as spool:
        if request.sql is not None:
            check_expression(reader, request.sql)
        for source in sources:
            left = None if request.max_rows is None else request.max_rows - first
            if left == 0:
                break
            count = 0
            for text in _texts(reader, source, request, left, scratch):
                spool.add(text)
                count += 1
            files.append(TableSource(source.path, first, count))
            first += count
    if not spool.rows:
        raise config_error(
            f"The sources have no rows: {', '.join(str(source.path) for source in sources[:10])}",
            remedy="Correct the sources, or remove the output.",
        )
    distinct = number_texts(paths, spooled, spool.batches, request.memory_limit_bytes)
    drop_repeats(paths, spooled, spool.batches)
    shutil.rmtree(scratch)
    _check_unchanged(sources, state)
    for path in paths.arrays:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    write_record(
        folder,
        rows=spool.rows,
        distinct=distinct,
        files=files,
        source_state=state,
        skip_blank=request.skip_blank,
    )
    sync_folder(folder)


def _texts(
    reader: duckdb.DuckDBPyConnection, file: SourceFile, request: IngestRequest, limit: int | None, scratch: Path
) -> Iterator[bytes]:
    """UTF-8 of the first `limit` rows of the file. Raises Halt (exit 78) for bad input, saying where."""
    if file.format is Format.PARQUET:
        rows = parquet_rows(reader, file, request, limit, scratch)
    elif request.sql is not None:
        rows = sql_rows(reader, file, request, limit)
    else:
        rows = _composed(file, request, limit)
    unit = "row" if file.format is Format.PARQUET else "line"
    for place, text in rows:
        try:
            data = (text or "").encode()
        except UnicodeEncodeError as error:
            raise input_error(
                file.path,
                f"the text has a lone surrogate, {text[error.start]!r}, at character {error.start + 1}.",  # type: ignore[index] # None encodes
                why="It is half of a character, which UTF-8 cannot hold.",
                remedy="Mend it in the source; it mostly comes from a text that was cut in the middle of an emoji.",
                **{unit: place},
            ) from error
        if len(data) > MAX_TEXT_BYTES:
            raise too_large(file.path, len(data), **{unit: place})
        yield data


def _composed(file: SourceFile, request: IngestRequest, limit: int | None) -> Iterator[tuple[int, str | None]]:
    columns, compose = composer(request)
    rows = read_rows(file, columns, skip_blank=request.skip_blank, limit=limit)
    for line, cells in rows:
        try:
            yield line, compose(cells)
        except RecursionError as error:
            raise too_deep(file.path, line) from error
        except NotTextError as error:
            raise input_error(
                file.path, str(error), line=line, remedy="Name a column of text, or use sql to convert it."
            ) from error


def _check_unchanged(sources: list[SourceFile], state: list[list[str | int]]) -> None:
    for before, after in zip(state, signature(sources), strict=True):
        if before != after:
            raise Halt(
                ExitCode.TRY_AGAIN,
                f"{before[0]} was changed while it was being read.",
                remedy="Run again when nothing writes to it.",
            )


def _die_with_parent(parent_pid: int) -> None:
    """Have the kernel end this process with its parent; only the parent's exit before this call needs a look."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(ExitCode.TERMINATED)


def _halt_of(error: BaseException, request: IngestRequest | None) -> Halt | None:
    """The message for an error that is no bug of ours."""
    if isinstance(error, Halt):
        return error
    if is_disk_fault(error):
        return Halt(
            ExitCode.DISK,
            f"The disk is full or failing while the sources are read: {error}",
            remedy="Free space, or move the workdir to another disk.",
        )
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        return Halt(
            ExitCode.MACHINE,
            f"The sources do not fit in {request.memory_limit_bytes if request else 0:,} bytes of memory for reading.",
            why=str(error).split("\n", 1)[0],
            remedy="Raise ingest.memory_limit.",
        )
    return None


def main(arguments: list[str]) -> int:
    """`REQUEST.json OUT_DIR [PARENT_PID]`; the exit code is that of `chunkvisor`, and 0 means a whole table."""
    os.umask(0o077)
    request_path, folder = Path(arguments[0]), Path(arguments[1])
    if len(arguments) > 2:
        _die_with_parent(int(arguments[2]))
    request = None
    try:
        request = from_json(IngestRequest, request_path.read_bytes())
        assert request is not None
        stage(request, folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, the log gets its traceback and the parent a code
        with suppress(OSError):  # on a full disk there is no room for it, which must not change the exit code
            traceback.print_exc()
        halt = _halt_of(error, request)
        if halt is None:
            return ExitCode.BUG
        with suppress(OSError):  # on a full disk the exit code has to do
            write_atomic(TableFiles(folder).error, json.dumps(halt.details()).encode())
        return halt.code
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with suppress(OSError):
        sys.stderr.flush()
    # Without Python's teardown, in which DuckDB's bindings complain about their own leaks.
    os._exit(code)
