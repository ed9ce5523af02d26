"""The parent's side of reading sources.

Starts the child, waits for it, and puts its table in place.
"""

import errno
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from chunkvisor import child
from chunkvisor.config.model import Config
from chunkvisor.errors import ExitCode, Halt, config_error, halt_of
from chunkvisor.sources.remote import is_remote
from chunkvisor.sources.resolve import IngestRequest, resolve, signature
from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.disk import disk_halt
from chunkvisor.store.layout import Layout, unfinished
from chunkvisor_worker.contract.files import read_bounded, remove_folder
from chunkvisor_worker.contract.wire import write_message


def stage_table(
    request: IngestRequest, folder: Path, on_wait: Callable[[], None], *, may_be_empty: bool = False
) -> StagedTable:
    """Stage the request into `folder`, replacing its contents, and open it.

    Its files are synced, its name is not.

    Calls `on_wait` about ten times a second; what that raises ends the child and is raised again.
    Raises Halt for bad input (78), a full or failing disk (74), too little memory (69, 75), a limit
    of the machine (69) and a bug (1); OSError.
    """
    partial = unfinished(folder)
    remove_folder(partial)
    partial.mkdir(parents=True)
    log = partial / "ingest.log"
    write_message(partial / "request.json", request, durable=False)
    # -P keeps the current folder off sys.path: a csv.py in it would shadow the standard library's.
    command = [
        sys.executable,
        "-P",
        "-m",
        "chunkvisor.sources.stage",
        str(partial),
        str(os.getpid()),
    ]
    if status := child.run_child(command, log, on_wait):
        try:
            halt = halt_of(json.loads(read_bounded(partial / "answer.json") or b""))
        except (ValueError, KeyError, TypeError):
            if status > ExitCode.BUG:  # it had a message, and no room for it
                raise disk_halt(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), partial) from None
            ended = f"was ended by {signal.Signals(-status).name}" if status < 0 else "has failed"
            code = ExitCode.TRY_AGAIN if status == -signal.SIGKILL else ExitCode.BUG
            raise Halt(
                code,
                f"The process that reads the sources {ended}.",
                "If memory was short, free some, or lower ingest.memory_limit. Else please report "
                "it with the log.",
                log=log,
            ) from None
        remove_folder(partial)
        raise halt
    if not may_be_empty and not TableFiles(partial).row_text.stat().st_size:
        remove_folder(partial)
        where = f" for which `where` is true ({request.where})" if request.where is not None else ""
        raise config_error(
            f"The sources have no rows{where}: {', '.join(request.sources[:10])}",
            "Correct them, or remove the output.",
        )
    remove_folder(folder)
    partial.rename(folder)
    return StagedTable.open(folder)


def request_of(config: Config, name: str, max_rows: int | None) -> IngestRequest:
    """Say what the output wants of its source.

    Raises Halt (78) if that has a file of the workdir's state.
    """
    output = config.outputs[name]
    layout = Layout(config.workdir)
    # A run would write into its own source, or read what it has written.
    here = resolve([source for source in output.source if not is_remote(source)])
    if found := next((file.path for file in here if layout.owns(file.path)), None):
        raise config_error(
            f"outputs.{name}.source: {found} is a file that chunkvisor keeps in the workdir for "
            f"itself",
            "Choose another workdir, best an empty folder, or a pattern that does not match it.",
        )
    texts = (
        output.source,
        output.column,
        output.template,
        output.sql,
        output.skip_blank,
        output.where,
        output.columns,
    )
    return IngestRequest(*texts, max_rows, int(config.ingest.memory_limit))


def try_first_row(request: IngestRequest, on_wait: Callable[[], None] = lambda: None) -> None:
    """Read one row as the run will: the files, their columns, the template or the expression.

    Sources elsewhere are only checked to exist. Raises Halt (78) if the run would be refused; the
    run itself reports anything else better. What `on_wait` raises ends it.
    """
    try:
        if any(map(is_remote, request.sources)):
            signature(resolve(request.sources))
            return
        with tempfile.TemporaryDirectory(prefix="chunkvisor-") as scratch:
            # The first row may be one that `where` leaves out.
            first = replace(request, max_rows=1)
            stage_table(
                first, Path(scratch) / "table", on_wait, may_be_empty=request.where is not None
            )
    except Halt as halt:
        if halt.code is ExitCode.CONFIG:
            raise
