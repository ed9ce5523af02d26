"""A look at the first row of a source, before anything is begun that costs more."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.ingest.child import stage_table
from chunkvisor.ingest.remote import is_remote
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.signature import signature
from chunkvisor.ingest.sources import resolve


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
