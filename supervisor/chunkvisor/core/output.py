"""One output while a run works on it: its texts, which of them are done, and its attempts."""

import errno
import heapq
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from chunkvisor.child import OnWait
from chunkvisor.core.instructions import Task
from chunkvisor.core.policy import Canary, KnownText, OwnText
from chunkvisor.devices.handles import DeviceHandle
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.errors import Halt
from chunkvisor.events.event import Event
from chunkvisor.outputs.forms import Form
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.attempt import AttemptFolder, find_log, write_attempt
from chunkvisor.store.layout import Layout, workdir_gone
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.records import DamagedError
from chunkvisor.units import which_rows
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.messages import Limits, Spec
from chunkvisor_worker.contract.wire import read_message

_READ_FOR_CANARY = 4096  # good texts among which the shortest is chosen as canary, at most


@dataclass(slots=True)
class OutputRun:
    """One output that is not complete yet."""

    ledger: Ledger
    table: StagedTable  # only the texts that are to be encoded, numbered as in the ledger
    job: Spec  # what the specs of all its attempts have in common
    limits: Limits  # batch limits of the config, before any was lowered
    finish: Callable[[OnWait], dict[str, Any]]
    """Joins and publishes the output, in a thread; returns the fields of `OutputComplete`."""
    form: Form  # of its final file
    model: ModelSource  # from which its workers load; its folder must not change meanwhile
    taken: int = 0  # texts whose vectors are taken over from other outputs
    without_blanks: str = ""
    """The condition for `where` that leaves blank texts out, if there is one."""
    waits_for: frozenset[int] = frozenset()
    """Numbers of earlier outputs that encode some of its texts. Until they are done, its ledger has
    a guess of what is left to encode."""
    prepare: "Callable[[OnWait], tuple[OutputRun, list[Event]]] | None" = None
    """If it waits for others: plans it once they are done, in a thread. Returns the planned output,
    and the events to report."""
    joined: bool = False
    committed_here: int = 0  # chunks committed by this run
    texts_here: int = 0  # texts in them that this run has encoded
    saved_before: dict[int, int] = field(default_factory=dict)
    """By chunk that was not committed when this run began: how many of its texts were done."""
    known_good: int | None = None  # a text that has its vector, for canaries; None while none has
    _taken: list[str] | None = None

    def become(self, planned: "OutputRun") -> None:
        """Become the output that `prepare` has made: take over all its fields."""
        for each in fields(self):
            setattr(self, each.name, getattr(planned, each.name))

    @property
    def name(self) -> str:
        """As the config has it."""
        return self.ledger.layout.name

    @property
    def left(self) -> int:
        """Count the chunks that are not committed."""
        return self.ledger.chunks_left

    @property
    def texts(self) -> int:
        """Count the distinct texts."""
        return self.ledger.plan.distinct + self.taken

    @property
    def bad_count(self) -> int:
        """Count the texts in quarantine."""
        return self.ledger.bad_count

    def rows_of(self, text: int) -> int:
        """Count the rows that have the text."""
        return self.table.row_counts([text])[0]

    def is_blank(self, text: int) -> bool:
        """Say whether the text has nothing but white space."""
        return not self.table.texts(text, text + 1)[0].strip()

    def next_pending(self, start: int) -> int | None:
        """Find the first chunk from `start` on that has a text without vector or verdict."""
        if self.waits_for:
            return None
        # A chunk without such a text is not pending: it is committed from its parts, at the latest
        # before the join.
        chunk = self.ledger.next_pending(start)
        while chunk is not None and not self.ledger.pending_texts(chunk):
            chunk = self.ledger.next_pending(chunk + 1)
        return chunk

    def find_known_good(self) -> None:
        """Choose `known_good`, a short text and not a blank one if there is one.

        Raises Halt if texts are damaged.
        """
        if self.known_good is not None:
            return
        good = self.ledger.known_good()[:_READ_FOR_CANARY]
        if good:
            numbered = zip(good, self.read_texts(good), strict=True)
            self.known_good = min(_size(text, number) for number, text in numbered)[2]
        elif self._taken_over():
            self.known_good = self.ledger.plan.distinct

    def _taken_over(self) -> list[str]:
        """Read one text whose vector is taken over from elsewhere, if there is one.

        It can be the canary even if all texts that this output encodes are bad. Since it is not one
        of those, it has the number after the last of them.
        """
        if self._taken is None:
            self._taken = self.table.reused_texts(_READ_FOR_CANARY)[:1]
        return self._taken

    def read_texts(self, texts: Sequence[int]) -> Iterator[str]:
        """Read these texts, which are in order. Raises Halt if they are damaged."""
        first = texts[0]
        if first == self.ledger.plan.distinct:
            yield from self._taken_over()
            return
        wanted = _quick(texts)
        for number, text in enumerate(self.table.each_text(first, texts[-1] + 1), first):
            if number in wanted:
                yield text

    def place_of(self, text: int) -> tuple[int, str]:
        """Return the first row of the text, and its place in the source, such as file and line."""
        row = int(self.table.first_row(text, text + 1)[0])
        return row, self.table.places_of([row])[0]

    def which_rows(self, texts: Sequence[int]) -> str:
        """Name the first row of each of these texts; empty if they cannot be read."""
        if not texts:
            return ""
        start = min(texts)
        try:
            first = self.table.first_row(start, max(texts) + 1)
        except (DamagedError, OSError):  # the run will end when the next worker's texts are read
            return ""
        return which_rows(sorted(int(first[text - start]) for text in texts))

    # --- attempts

    def new_attempt(
        self, task: Task, handle: DeviceHandle, limits: Limits, canary: Canary | None
    ) -> AttemptFolder:
        """Make the folder of an attempt at these texts, with `canary` as in `StartWorker`.

        Raises OSError; Halt if the texts are damaged.
        """
        first = task.texts[0]
        stop = task.texts[-1] + 1
        wanted = _quick(task.texts)
        number, files = self._new_folder(task.chunk)
        good = None
        own = None
        match canary:
            case KnownText(text):
                good = next(self.read_texts([text]))
            case OwnText(rank):
                own = self._shortest(rank, task)
        # The machine of the device may have the model in another folder, and other cores.
        site = handle.site
        model = self.job.model
        if site.model_path is not None:
            model = replace(model, path=site.model_path, hub=site.hub)
        draft = replace(
            self.job,
            chunk=task.chunk,
            attempt=number,
            start=first,
            device=handle.device.kind,
            model=model,
            threads=site.threads or self.job.threads,
            skip=tuple(text - first for text in range(first, stop) if text not in wanted),
            limits=limits,
            fresh=task.cold_start,
            blocking_launches=task.charged_failures[-1:] == (Outcome.DEVICE_FAULT,),
            canary_row=own,
        )
        spec = write_attempt(files, draft, self.read_texts(task.texts), good)
        return AttemptFolder(files, spec, lambda: self.ledger.facts, self.is_blank)

    def _new_folder(self, chunk: int) -> tuple[int, AttemptFiles]:
        """Make the folder of the chunk's next attempt, under a new number. Raises OSError."""
        layout = self.ledger.layout
        folder = layout.attempts_of(chunk)
        folder.mkdir(exist_ok=True)
        before = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
        number = max(before, default=0) + 1
        files = layout.attempt(chunk, number)
        files.folder.mkdir()
        return number, files

    def left_behind(self) -> Iterator[AttemptFolder]:
        """Give the attempts that an earlier run left unjudged; remove those of other settings.

        Raises OSError.
        """
        for folder in sorted(self.ledger.layout.attempts.glob("*/*")):
            files = AttemptFiles(folder)
            if not folder.parent.name.isdecimal() or files.verdict.exists():
                continue
            spec = read_message(Spec, files.spec)
            if not spec or not self._is_ours(spec, int(folder.parent.name), files):
                remove_folder(folder)
                continue
            yield AttemptFolder(files, spec, lambda: self.ledger.facts, self.is_blank)

    def _is_ours(self, spec: Spec, chunk: int, files: AttemptFiles) -> bool:
        wanted = (self.ledger.fingerprint, self.name, chunk)
        if (spec.fingerprint, spec.output, spec.chunk) != wanted:
            return False
        # If the model's folder was touched after the attempt began, it is not known which files its
        # worker has loaded.
        began_ns = files.spec.stat().st_mtime_ns
        return chunk < self.ledger.plan.count and self.model.untouched_since(began_ns)

    def _shortest(self, rank: int, task: Task) -> int:
        """Return the position of the shortest text, after `rank` shorter ones if there are any."""
        sizes = (_size(text, at) for at, text in enumerate(self.read_texts(task.texts)))
        return heapq.nsmallest(rank + 1, sizes)[-1][2]

    def newest_log(self, chunk: int) -> Path | None:
        """Return the newest log of all attempts at the chunk."""
        return find_log(AttemptFiles(self.ledger.layout.attempts_of(chunk)))

    @property
    def workdir(self) -> Path:
        """The workdir of the run."""
        return self.ledger.layout.workdir

    def gone(self, error: OSError) -> Halt | None:
        """Return the end of the run if the error comes from a workdir that is gone."""
        return workdir_gone(Layout(self.workdir)) if error.errno == errno.ENOENT else None


def _quick(texts: Sequence[int]) -> Container[int]:
    """Return the texts in a form that tests membership quickly, unlike a tuple."""
    return texts if isinstance(texts, range) else frozenset(texts)


def _size(text: str, number: int) -> tuple[bool, int, int]:
    """Return a key that sorts texts by length, blank ones last: some models give them zeros."""
    return not text.strip(), len(text), number
