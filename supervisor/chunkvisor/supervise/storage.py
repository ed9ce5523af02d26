"""Takes over what workers leave: whole chunks, parts of chunks that are taken apart, verdicts on single texts.

It judges nothing: what comes here is verified, or is to be noted because the scheduler says so.
"""

import contextlib
import errno
import time
from collections.abc import Sequence
from pathlib import Path

from chunkvisor.assemble.numbers import Numbers
from chunkvisor.decide.bisect import BadText
from chunkvisor.decide.verdict import Verdict
from chunkvisor.events.attempt import BatchesKept, ChunkCommitted, ChunkDamaged, DiskFault, PartCommitted
from chunkvisor.events.attempt import Quarantined as QuarantinedEvent
from chunkvisor.events.event import Emit
from chunkvisor.events.model import ModelWarning
from chunkvisor.events.output import OtherVersions
from chunkvisor.store.artifact import BadVectorsError, inspect
from chunkvisor.store.cuttexts import take_cut
from chunkvisor.store.disk import DISK_ERRNOS, check_disk, free_bytes, need_bytes, with_room
from chunkvisor.store.seal import DamagedError
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.stimuli import NotStored, PartsDamaged, Quarantined, Stored
from chunkvisor.supervise.task import Task
from chunkvisor.units import human_bytes, which_rows
from chunkvisor_worker.contract.batchlog import read_batch_log
from chunkvisor_worker.contract.beatfile import read_beat
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.messages import Facts, Result
from chunkvisor_worker.contract.wire import read_message


class Storage:
    """What is done of all outputs, on its way to the disk."""

    def __init__(self, outputs: Sequence[OutputRun], emit: Emit) -> None:
        self._outputs = outputs
        self._emit = emit
        self._first_go_s: float | None = None
        self._warnings = set[str]()
        """Of the libraries, that were said."""
        self._changes = set[tuple[str, str]]()
        """Outputs, and changes of library versions that were said of them."""

    def gone(self, go_s: float) -> None:
        """A gate was opened; rates count from the first."""
        self._first_go_s = self._first_go_s or go_s

    def keep(
        self,
        task: Task,
        files: AttemptFiles,
        holes: tuple[int, ...] = (),
        *,
        failed: bool = False,
        interrupted: bool = False,
    ) -> Stored | NotStored:
        """Take over verified vectors, as a chunk or as a part of one, but for the rows at these positions.

        `failed` says that they are the finished batches of an attempt that left no result, `interrupted` that this was
        stopped or lost. Raises OSError for what has nothing to do with the disk; Halt: 74 where the rest of the output
        cannot fit, 78 where the model's folder has changed.
        """
        output = self._outputs[task.output]
        output.check_model()
        whole = not (holes or failed or task.skip) and (task.start, task.stop) == output.bounds(task.chunk)
        result = None if failed else read_message(Result, files.result)
        try:
            facts = read_batch_log(files.batches).facts if failed else result.facts if result else None
            if facts is None:
                raise OSError(errno.EIO, f"{files.batches if failed else files.result} cannot be read any more")
            self._tell_warnings(facts)
            self._note_versions(output, facts)
            vectors, digest = (files.vectors, result.digest) if result else (files.partial, _digest_of(files.partial))
            ledger = output.ledger
            cut = ledger.layout.cut_texts(ledger.fingerprint)
            take_cut(cut, ledger.plan.distinct, files.cut, task.start, task.stop)
            if whole:
                output.ledger.commit(task.chunk, vectors, digest, facts)
            else:
                output.ledger.fix_facts(facts)
                without = sorted({task.start + row for row in holes}.union(task.skip))
                output.ledger.parts(task.chunk).add(task.start, task.stop, vectors, digest, tuple(without))
        except OSError as error:
            return self._not_stored(task, error)
        if not holes and not failed:
            remove_folder(files.folder)
            with contextlib.suppress(OSError):  # the folders of failed attempts stay, with their logs
                files.folder.parent.rmdir()
        if whole:
            self._committed(output, task.chunk, result)
        elif failed:
            self._emit(_kept(output.name, task, task.texts - len(holes), files, interrupted=interrupted))
        elif result is not None and not holes:
            self._emit(_part(output.name, task, result))
        return Stored(task, whole)

    def _tell_warnings(self, facts: Facts) -> None:
        for text in facts.loaded.notes if facts.loaded is not None else ():
            if text not in self._warnings:
                self._warnings.add(text)
                self._emit(ModelWarning(f"while the model was loaded: {text}"))

    def _note_versions(self, output: OutputRun, facts: Facts) -> None:
        """Say once if the libraries are of other versions than when the output was begun."""
        changed = ", ".join(output.ledger.note_versions(facts))
        if changed and (output.name, changed) not in self._changes:
            self._changes.add((output.name, changed))
            self._emit(OtherVersions(output.name, changed))

    def cut(self, task: Task, at: int) -> None:
        """Note where a chunk is taken apart; that this could not be written costs a later run a few attempts."""
        with contextlib.suppress(OSError):
            self._outputs[task.output].ledger.parts(task.chunk).cut(at)

    def quarantine(self, task: Task, verdict: Verdict) -> Quarantined | NotStored:
        """Note a text that fails alone. Raises OSError as `keep`."""
        output = self._outputs[task.output]
        try:
            output.ledger.parts(task.chunk).add_bad(BadText(task.start, verdict.outcome, verdict.reason))
        except OSError as error:
            return self._not_stored(task, error)
        row, place = self.place_of(task)
        rows = output.rows_of(task.start)
        self._emit(QuarantinedEvent(output.name, row, place, verdict.outcome, verdict.reason, task.chunk, rows))
        return Quarantined(task)

    def place_of(self, task: Task) -> tuple[int, str]:
        """The first row of the task's first text, and where it stands in the source."""
        table = self._outputs[task.output].table
        row = int(table.first_row(task.start, task.stop)[0])
        return row, table.place_of(row)

    def which_rows(self, task: Task, texts: Sequence[int]) -> str:
        """The first rows of these texts of the task, in words; empty where that cannot be read."""
        try:
            first = self._outputs[task.output].table.first_row(task.start, task.stop)
        except (DamagedError, OSError):  # the next worker's texts are read from the same table, and say so
            return ""
        return which_rows(sorted(int(first[text - task.start]) for text in texts))

    def with_need(self, why: str) -> str:
        """Why a run ends on a full disk, and how much its outputs still need, as far as that is known."""
        known = (_still_needed(each) for each in self._outputs if not each.ledger.layout.done.exists())
        needs = [need for need in known if need is not None]
        return f"{why}; what is left to do needs up to {human_bytes(sum(needs))}" if needs else why

    def compose(self, task: Task) -> Stored | NotStored | PartsDamaged:
        """Commit a chunk from its parts. Raises OSError as `keep`."""
        output = self._outputs[task.output]
        ledger, parts = output.ledger, output.ledger.parts(task.chunk)
        assert ledger.facts is not None
        try:
            composed, digest = parts.compose(ledger.facts.dimension)
            ledger.commit(task.chunk, composed, digest, ledger.facts)
        except OSError as error:
            if not parts.missing():
                return self._not_stored(task, error)
            self._emit(ChunkDamaged(output.name, task.chunk, str(error)))
            return PartsDamaged(task.output, task.chunk)
        self._committed(output, task.chunk, None)
        return Stored(task, whole=True)

    def _not_stored(self, task: Task, error: OSError) -> NotStored:
        if error.errno not in DISK_ERRNOS:
            raise error
        if error.errno == errno.EIO:
            self._emit(DiskFault(self._outputs[task.output].name, task.chunk, str(error)))
        workdir = self._outputs[task.output].ledger.layout.workdir
        reason = with_room(f"vectors could not be stored: {error}", workdir)
        return NotStored(task, Verdict(Outcome.DISK_FULL, reason))

    def _committed(self, output: OutputRun, chunk: int, result: Result | None) -> None:
        output.committed_here += 1
        if output.committed_here == 1 and not output.complete:
            check_space(output)
        texts, before = output.ledger.plan.size(chunk), output.saved_before.pop(chunk, 0)
        output.texts_here += texts - before
        rate: float | None = None
        if self._first_go_s is not None:
            elapsed_s = max(1e-6, time.monotonic() - self._first_go_s)
            rate = sum(each.texts_here for each in self._outputs) / elapsed_s
        left = sum(each.ledger.plan.distinct - each.ledger.texts_done for each in self._outputs)
        told = ChunkCommitted(
            output.name,
            chunk,
            texts,
            output.ledger.texts_done + output.taken,
            output.ledger.chunks_done,
            output.ledger.plan.count,
            attempt_ok=result is not None,
            texts_per_s=rate and round(rate, 3),
            eta_s=round(left / rate, 1) if rate else None,
            tokens=result.tokens if result else 0,
            padded_tokens=result.padded_tokens if result else 0,
            phase_s=result.phase_s if result else {},
            texts_before=before,
        )
        self._emit(told)


def check_space(output: OutputRun) -> None:
    """Raises Halt (74) where the rest of the output cannot fit on the disk; needs the facts of a committed chunk."""
    if (need := _still_needed(output)) is not None:
        workdir = output.ledger.layout.workdir
        check_disk(output.name, need, free_bytes(workdir), str(workdir))


def _still_needed(output: OutputRun) -> int | None:
    """Bytes of the rest of the output, at most; None until a chunk is committed."""
    ledger = output.ledger
    if ledger.facts is None:
        return None
    left, dimension = ledger.plan.distinct - ledger.texts_done, ledger.facts.dimension
    beside = 0 if output.form.is_of_rows else Numbers(output.form.dtype, dimension).row_bytes
    return need_bytes(output.table.rows, left, dimension, beside)


def _part(output: str, task: Task, result: Result) -> PartCommitted:
    counts = {"texts": task.texts, "tokens": result.tokens, "padded_tokens": result.padded_tokens}
    return PartCommitted(output, task.chunk, task.start, task.stop, **counts, phase_s=result.phase_s)


def _kept(output: str, task: Task, texts: int, files: AttemptFiles, *, interrupted: bool) -> BatchesKept:
    """What is told of so many texts of an attempt that left no result; its last beat knows their tokens, about."""
    beat = read_beat(files.beat)
    if beat is None or not beat.rows_done:
        return BatchesKept(output, task.chunk, texts, interrupted=interrupted)
    tokens, padded = (
        round(count * min(1.0, texts / beat.rows_done)) for count in (beat.tokens_done, beat.padded_tokens)
    )
    return BatchesKept(output, task.chunk, texts, tokens, padded, interrupted)


def _digest_of(vectors: Path) -> str:
    """Checksum of the file. Raises OSError."""
    try:
        return inspect(vectors).digest
    except BadVectorsError as error:
        raise OSError(errno.EIO, f"{vectors} {error}") from error
