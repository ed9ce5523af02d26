"""Takes over what workers leave: whole chunks, parts of chunks that are taken apart, and verdicts on single texts.

It never judges: what comes here is verified, or is to be split or quarantined because the policy says so.
"""

import contextlib
import errno
import shutil
import time
from collections.abc import Callable, Sequence

from chunkvisor.decide.bisect import BadText, halves
from chunkvisor.decide.lastwords import BadRows, all_bad, too_bad
from chunkvisor.decide.outcome import Verdict
from chunkvisor.events.event import Emit
from chunkvisor.store.attempt import free_bytes
from chunkvisor.store.diskneed import DISK_ERRNOS, check_disk, need_bytes
from chunkvisor.store.lessonbook import LessonBook
from chunkvisor.supervise.backlog import Backlog, Task
from chunkvisor.supervise.joiner import Joiner
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Result, read_message

Obey = Callable[[Task, int, AttemptFiles, Verdict], None]
"""Carries out what the policy says of an attempt that could not be stored."""


class Keeper:
    """What is done of all outputs, on its way to the disk."""

    def __init__(
        self,
        outputs: Sequence[OutputRun],
        backlog: Backlog,
        joiner: Joiner,
        book: LessonBook,
        bad_rows: BadRows,
        emit: Emit,
        on_success: Callable[[Task], None],
        obey: Obey,
    ) -> None:
        self._outputs = outputs
        self._backlog = backlog
        self._joiner = joiner
        self._book = book
        self._bad_rows = bad_rows
        self._emit = emit
        self._on_success = on_success
        self._obey = obey
        self._first_go_s: float | None = None
        self._without_facts: set[tuple[int, int]] = set()
        """(output, chunk) of chunks that hold nothing but bad texts, while the dimension is not known yet."""

    def gone(self, go_s: float) -> None:
        """A gate was opened; rates count from the first."""
        self._first_go_s = self._first_go_s or go_s

    def keep(self, task: Task, attempt: int, files: AttemptFiles, device: str = "") -> None:
        """Take over the verified vectors of an attempt, as a whole chunk or as a part of one.

        `device` is the kind of device on which it was made, whose lessons a whole chunk confirms; empty = not known.
        """
        output = self._outputs[task.output]
        whole = (task.start, task.stop) == output.ledger.plan.bounds(task.chunk)
        try:
            result = read_message(Result, files.result)
            if result is None:
                raise OSError(errno.EIO, f"{files.result} cannot be read any more")
            if whole:
                output.ledger.commit(task.chunk, files.vectors, result.digest, result.facts)
            else:
                output.ledger.fix_facts(result.facts)
                output.ledger.parts(task.chunk).add(task.start, task.stop, files.vectors, result.digest)
        except OSError as error:
            self._on_disk_error(task, attempt, files, error)
            return
        shutil.rmtree(files.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # the folders of failed attempts stay, with their logs
            files.folder.parent.rmdir()
        self._on_success(task)
        if whole:
            self._book.confirm(device)
            self._committed(output, task.output, task.chunk, result)
        else:
            self._emit("part_committed", output=output.name, chunk=task.chunk, start=task.start, stop=task.stop)
            self.finish_if_known(task.output, task.chunk)
        for number, chunk in sorted(self._without_facts):
            if self._outputs[number].ledger.facts is not None:
                self._without_facts.discard((number, chunk))
                self.finish_if_known(number, chunk)

    def split(self, task: Task, files: AttemptFiles, bad_rows: tuple[int, ...]) -> None:
        """Take the texts apart: keep all rows but the bad ones and try those alone, or try both halves."""
        output, now = self._outputs[task.output], time.monotonic()
        ranges = list(halves(task.start, task.stop)) if not bad_rows else []
        if bad_rows and (result := read_message(Result, files.result)) is not None:
            holes = tuple(task.start + row for row in bad_rows)
            try:
                output.ledger.fix_facts(result.facts)
                parts = output.ledger.parts(task.chunk)
                parts.add(task.start, task.stop, files.vectors, result.digest, holes)
            except OSError as error:
                self._on_disk_error(task, 0, files, error)
                return
            ranges = [(text, text + 1) for text in holes]
        for start, stop in ranges:
            self._backlog.put_back(Task(now, task.output, task.chunk, start, stop, fresh=True, avoid=task.avoid))
        self._emit("chunk_split", output=output.name, chunk=task.chunk, texts=task.stop - task.start, parts=len(ranges))

    def quarantine(self, task: Task, verdict: Verdict, files: AttemptFiles) -> None:
        """Note a text that fails alone. Raises Halt (78) where the config allows no more of them."""
        output = self._outputs[task.output]
        row = int(output.table.first_row(task.start, task.stop)[0])
        place = output.table.place_of(row)
        count = 1 + sum(each.ledger.bad_count for each in self._outputs)
        if self._bad_rows.fail or count > self._bad_rows.limit:
            raise too_bad(output.name, place, count, verdict, files, self._bad_rows)
        try:
            output.ledger.parts(task.chunk).add_bad(BadText(task.start, verdict.outcome, verdict.reason))
        except OSError as error:
            self._on_disk_error(task, 0, files, error)
            return
        self._on_success(task)
        self._emit(
            "quarantined", output=output.name, row=row, place=place, outcome=verdict.outcome, reason=verdict.reason
        )
        self.finish_if_known(task.output, task.chunk)

    def finish_if_known(self, number: int, chunk: int) -> None:
        """Commit a chunk that was taken apart once each of its texts has a vector or a verdict."""
        output = self._outputs[number]
        ledger, parts = output.ledger, output.ledger.parts(chunk)
        if not parts.begun or parts.missing():
            return
        if ledger.facts is None:
            # Of a slice: others may have good ones; until then its chunks stay in parts.
            if ledger.bad_count >= ledger.plan.distinct:
                raise all_bad(output.name, parts.bad)
            self._without_facts.add((number, chunk))
            return
        try:
            composed, digest = parts.compose(ledger.facts.dimension)
            ledger.commit(chunk, composed, digest, ledger.facts)
        except OSError as error:
            self._not_finished(number, chunk, error)
            return
        self._committed(output, number, chunk, None)

    def _not_finished(self, number: int, chunk: int, error: OSError) -> None:
        """The parts could not be joined: have a damaged one computed again, or wait for the disk."""
        ledger, now = self._outputs[number].ledger, time.monotonic()
        if missing := ledger.parts(chunk).missing():
            self._emit("chunk_damaged", output=self._outputs[number].name, chunk=chunk, why=str(error))
            for start, stop in missing if self._backlog.handed_out(number, chunk) else ():
                self._backlog.put_back(Task(now, number, chunk, start, stop))
            return
        nothing = ledger.plan.bounds(chunk)[0]
        files = AttemptFiles(ledger.layout.attempts_of(chunk))
        self._on_disk_error(Task(now, number, chunk, nothing, nothing), 0, files, error)

    def _committed(self, output: OutputRun, number: int, chunk: int, result: Result | None) -> None:
        output.committed_here += 1
        if output.committed_here == 1 and not output.ledger.complete:
            check_space(output)
        output.texts_here += output.ledger.plan.size(chunk)
        self._tell_commit(output, chunk, result)
        self._joiner.submit_if_complete(number)

    def _on_disk_error(self, task: Task, attempt: int, files: AttemptFiles, error: OSError) -> None:
        if error.errno not in DISK_ERRNOS:
            raise error
        self._obey(task, attempt, files, Verdict(Outcome.DISK_FULL, f"vectors could not be stored: {error}"))

    def _tell_commit(self, output: OutputRun, chunk: int, result: Result | None) -> None:
        rate: float | None = None
        if self._first_go_s is not None:
            elapsed_s = max(1e-6, time.monotonic() - self._first_go_s)
            rate = sum(each.texts_here for each in self._outputs) / elapsed_s
        left = sum(each.ledger.texts - each.ledger.texts_done for each in self._outputs)
        self._emit(
            "chunk_committed",
            output=output.name,
            chunk=chunk,
            texts=output.ledger.plan.size(chunk),
            texts_done=output.ledger.texts_done,
            attempt_ok=result is not None,
            chunks_done=output.ledger.chunks_done,
            chunks=len(output.ledger.share),
            texts_per_s=rate and round(rate, 3),
            eta_s=rate and round(left / rate, 1),
            tokens=result.tokens if result else 0,
            padded_tokens=result.padded_tokens if result else 0,
            phase_s=result.phase_s if result else {},
        )


def check_space(output: OutputRun) -> None:
    """Raises Halt (74) where the rest of the output cannot fit on the disk; needs the facts of a committed chunk."""
    ledger = output.ledger
    if ledger.facts is not None:
        left = ledger.texts - ledger.texts_done
        need = need_bytes(output.table.rows, left, ledger.facts.dimension)
        check_disk(output.name, need, free_bytes(ledger.layout.workdir), str(ledger.layout.workdir))
