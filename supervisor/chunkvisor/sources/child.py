"""Starts the child process that reads sources, waits for it, and puts its table in place."""

import errno
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

from chunkvisor import child
from chunkvisor.config.load import RowChoice
from chunkvisor.config.model import Config
from chunkvisor.errors import ExitCode, Halt, config_error, halt_of
from chunkvisor.judge import describe_exit
from chunkvisor.sources.remote import is_remote
from chunkvisor.sources.resolve import IngestRequest, resolve, signature
from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.attempt import last_line, read_tail, verdict_of_child
from chunkvisor.store.disk import disk_halt
from chunkvisor.store.layout import Layout, unfinished
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import read_json, remove_folder
from chunkvisor_worker.contract.wire import write_message

# Signals of a crash. Any other was most likely sent from outside, such as by the kernel for lack of
# memory.
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


def stage_table(
    request: IngestRequest, folder: Path, on_wait: child.OnWait, *, may_be_empty: bool = False
) -> StagedTable:
    """Make the table of the request in `folder`, which it replaces, and open it.

    The files are synced to disk, the folder's name is not. `on_wait` is called 50 times a second;
    if it raises, the child is ended and the exception is raised. `may_be_empty`: a table
    without rows is allowed.

    Raises Halt for bad input (78), a full or failing disk (74), too little memory (69, 75), a limit
    of the machine (69) and a bug (1); OSError.
    """
    partial = unfinished(folder)
    remove_folder(partial)
    partial.mkdir(parents=True)
    log = partial / "ingest.log"
    write_message(partial / "request.json", request)
    command = child.python_command("chunkvisor.sources.stage", partial, os.getpid())
    status = child.run_child(command, log, on_wait)
    if status:
        answer = read_json(partial / "answer.json")
        if not answer:
            raise _halt_without_answer(status, partial, log)
        remove_folder(partial)
        raise halt_of(answer)
    if not may_be_empty and not TableFiles(partial).row_text.stat().st_size:
        remove_folder(partial)
        where = f" for which `where` is true ({request.where})" if request.where is not None else ""
        remedy = "Correct them, or remove the output."
        if request.part is not None:
            where += ", or fewer than parts"
            remedy = "Take fewer parts."
        raise config_error(
            f"The sources have no rows{where}: {', '.join(request.sources[:10])}", remedy
        )
    remove_folder(folder)
    partial.rename(folder)
    return StagedTable.open(folder)


def _halt_without_answer(status: int, partial: Path, log: Path) -> Halt:
    """Return the Halt for a child that ended with `status`, a code or minus a signal's number.

    It has left no explanation in answer.json: it was killed, or crashed, or the disk was full.
    """
    if status > ExitCode.BUG:  # the child had an explanation, and the disk no room for it
        return disk_halt(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), partial)
    verdict = verdict_of_child(status, partial / "fault.json", log)
    code = ExitCode.BUG
    remedy = "Please report it with the log."
    if verdict.outcome is Outcome.HOST_OOM:
        code = ExitCode.MACHINE
        remedy = f"{verdict.remedy} The limit is that of `ulimit -v`, if there is one."
    elif status < 0 and -status not in _CRASHES:
        code = ExitCode.TRY_AGAIN
        remedy = (
            "Run the same command again. If memory was short, free some, or lower "
            "ingest.memory_limit."
        )
    return Halt(
        code,
        "the process that reads the sources failed",
        remedy,
        why=f"{describe_exit(status)}; {last_line(read_tail(log)) or 'it wrote no log'}",
        log=log,
    )


def request_of(config: Config, name: str, rows: RowChoice) -> IngestRequest:
    """Return what the child is to read for the output of that name.

    Raises Halt (78) if one of its sources is a file that chunkvisor keeps in the workdir.
    """
    output = config.outputs[name]
    layout = Layout(config.workdir)
    # Else a run would write into its own source, or read what it has written.
    for file in resolve([source for source in output.source if not is_remote(source)]):
        if layout.owns(file.path):
            raise config_error(
                f"outputs.{name}.source: {file.path} is a file that chunkvisor keeps in the "
                f"workdir for itself",
                "Choose another workdir, best an empty folder, or a pattern that does not match "
                "it.",
            )
    return IngestRequest(
        output.source,
        output.column,
        output.template,
        output.sql,
        output.skip_blank,
        output.where,
        output.columns,
        rows.first,
        rows.part,
        int(config.ingest.memory_limit),
    )


def try_first_row(request: IngestRequest, on_wait: child.OnWait = lambda: None) -> None:
    """Read one row as the run will, so that a wrong column or expression is refused at once.

    If one of the sources is an address, no row is read: only that all sources exist is checked.

    Raises Halt (78) if the run would be refused. It ignores other trouble, of which the run says
    more. `on_wait` is as in `stage_table`.
    """
    try:
        if any(map(is_remote, request.sources)):
            signature(resolve(request.sources))
            return
        with tempfile.TemporaryDirectory(prefix="chunkvisor-") as scratch:
            first_row = replace(request, max_rows=1, part=None)
            may_be_empty = request.where is not None  # it may leave out that one row
            stage_table(first_row, Path(scratch) / "table", on_wait, may_be_empty=may_be_empty)
    except Halt as halt:
        if halt.code is ExitCode.CONFIG:
            raise
