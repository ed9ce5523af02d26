"""Encodes the first rows of a large source while the rest of it is still read.

They are an output of their own for the ordinary loop, in a folder of its own, `head/`; only that it is never joined.
Texts are numbered in the order of their first rows, so its whole chunks are the first chunks of the output, and become
these when all rows are staged: see `headtaken`. A run that is killed leaves a head that the next one goes on with.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from chunkvisor.config.choices import Dtype
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.output import HeadDone, HeadLeft
from chunkvisor.events.run import Note
from chunkvisor.ingest.child import stage_table
from chunkvisor.ingest.headsize import begins_cheaply, head_rows
from chunkvisor.ingest.reading import Reading
from chunkvisor.ingest.remote import shown
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.disk import DISK_ERRNOS
from chunkvisor.store.fixed import Fixed, Staged, StagedRecord, make_state, read_head, write_fixed, write_staged
from chunkvisor.store.identity import UNREAD
from chunkvisor.store.layout import Layout
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.supervise.begin import chunk_size
from chunkvisor.supervise.candidates import sources_first
from chunkvisor.supervise.fixedbefore import identity_for
from chunkvisor.supervise.opening import Begun, Opening
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.prepare import open_head
from chunkvisor_worker.contract.files import remove_folder


@dataclass(frozen=True, slots=True)
class Head:
    """Of whichever output of a run has one."""

    opening: Opening
    devices: int
    """Workers that compute at a time."""
    encode: Callable[[OutputRun, Callable[[], bool]], None]
    """Works on an output until nothing is left of it, or the other holds, which is asked again and again until then."""
    wake: Callable[[], None]
    """Ends the sleep under way, from any thread."""

    def read(self, layout: OutputLayout, request: IngestRequest, folder: Path) -> StagedTable:
        """Stage all rows into the folder, like `stage_table`; where it is worth it, encode the first ones meanwhile.

        Raises what staging and encoding raise.
        """
        opening = self.opening
        rows = self._rows(layout, request)
        if rows is None:
            return stage_table(request, folder, opening.on_wait)
        with closing(Reading(request, folder, self.wake)) as reading:
            head = self._begin(layout, replace(request, max_rows=rows, columns=()), reading)
            if head is not None:
                self._work(head, reading)
            return reading.table(opening.on_wait)

    def _work(self, head: OutputRun, reading: Reading) -> None:
        """Until all is read, or nothing is left to do."""

        def is_over() -> bool:
            if (over := reading.over) and head.left:
                self.opening.emit(HeadLeft(head.name))
            return over

        if head.left and (problem := self._encode(head, is_over)):
            why = f"no more of the first rows is encoded while the rest is read ({problem})"
            self.opening.emit(Note(f"{head.name}: {why}"))
        elif not reading.over:
            self.opening.emit(HeadDone(head.name, head.rows))

    def _encode(self, head: OutputRun, until: Callable[[], bool]) -> str:
        """What of a full or failing disk ended it, if that did: the work on all rows meets it again, and judges it."""
        try:
            self.encode(head, until)
        except Halt as halt:
            if halt.code is not ExitCode.DISK:
                raise
            return halt.what
        except OSError as error:
            if error.errno not in DISK_ERRNOS:
                raise
            return str(error)
        return ""

    def _rows(self, layout: OutputLayout, request: IngestRequest) -> int | None:
        """How many rows the head has; None where there is to be none."""
        wanted = self.opening.config.ingest.head
        in_int8 = self.opening.config.model.dtype is Dtype.INT8  # quantised by texts of all the source
        if wanted is None or in_int8 or not begins_cheaply(request) or not self._encodes_all(layout):
            return None
        if wanted != "auto":
            return wanted
        if (before := read_head(layout)) is not None:
            return before.identity.rows
        size = self.opening.config.effective_chunk_size(layout.name)
        return head_rows(request, self.devices, 0 if size == "auto" else size)

    def _encodes_all(self, layout: OutputLayout) -> bool:
        """Whether none of its texts can have a vector elsewhere: of those that have, chunks would be cut otherwise."""
        config = self.opening.config
        if not config.reuse:
            return True
        workdir = Layout(layout.workdir)
        finished = any(workdir.outputs.glob("*/done.json")) or any(workdir.workdir.glob(".*.before"))
        if config.reuse_from or finished:
            return False
        unread = {name: identity_for(self.opening, name, "", UNREAD, None) for name in config.outputs}
        return sources_first(config, unread)[0] == layout.name

    def _begin(self, layout: OutputLayout, request: IngestRequest, reading: Reading) -> OutputRun | None:
        """The head, ready to run; None where its rows do not fill a chunk, or all is read by then.

        What an earlier run has left of it is removed where it is of other rows or settings.
        """
        opening, head, fresh = self.opening, layout.head, layout.head_table
        table = stage_table(request, fresh, opening.on_wait)
        identity, fixed = identity_for(opening, layout.name, table.digest, table.rows, None), read_head(layout)
        size = chunk_size(opening, layout, identity)
        if fixed is None or (fixed.identity.fingerprint, fixed.chunk_size) != (identity.fingerprint, size):
            remove_folder(head.state)
            fixed = Fixed(identity, size)
        distinct = table.distinct - table.distinct % size
        if not distinct or reading.over:
            remove_folder(fresh)
            return None
        make_state(head)
        remove_folder(head.table)
        fresh.rename(head.table)
        files = tuple(shown(file.path) for file in table.files)
        # The texts behind the last whole chunk are in another company there.
        staged = Staged(table.rows, distinct, table.digest, files)
        write_staged(head, StagedRecord({}, staged))
        write_fixed(head, fixed)
        return open_head(opening, Begun(head, fixed, staged), replace(table, folder=head.table))
