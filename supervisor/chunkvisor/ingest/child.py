"""The parent's side of an ingest: starts the child, waits for it, and puts its table in place."""

import signal
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from chunkvisor.child import ask_child
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.ingest.jsonlines import read_objects
from chunkvisor.ingest.problem import disk_full, refused
from chunkvisor.ingest.readers import TEXT_COLUMN, csv_columns
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.sources import Format, SourceFile
from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.outputlayout import unfinished
from chunkvisor.store.seal import DamagedError
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
    partial.mkdir(mode=0o700, parents=True)
    answer = ask_child("chunkvisor.ingest.stage", request, partial, partial / _LOG, on_wait)
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
