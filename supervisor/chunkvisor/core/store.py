"""Stores what workers leave (whole chunks, parts of chunks), and joins complete outputs.

It decides nothing: vectors that come here are verified, and the scheduler says which texts are
given up. A chunk is committed as soon as each of its texts has a vector or is given up. Outputs are
joined in a thread, one after the other; that thread only reads the ledger. The scheduler hears
only of chunks that turn out to be damaged.
"""

import errno
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from chunkvisor.child import OnWait
from chunkvisor.core.instructions import Task
from chunkvisor.core.output import OutputRun
from chunkvisor.core.run import Run
from chunkvisor.events import event
from chunkvisor.judge import Evidence, Verdict, judge
from chunkvisor.messages import chunks_damaged_again
from chunkvisor.outputs.forms import VectorType
from chunkvisor.outputs.join import ChunkDamagedError
from chunkvisor.store.attempt import AttemptFolder
from chunkvisor.store.disk import check_disk, disk_halt, need_bytes, verdict_of
from chunkvisor.store.identity import BadText
from chunkvisor_worker.contract.exits import DISK_ERRNOS, Outcome
from chunkvisor_worker.contract.messages import Facts, Result

MAX_DAMAGED = 3  # with more damaged chunks of one output, disk or memory cannot be trusted
PAUSE_S = 5.0  # before a join that met a full disk is tried again


class ResultStore:
    """Stores the vectors of all outputs, and makes their final files."""

    def __init__(
        self,
        outputs: Sequence[OutputRun],
        run: Run,
        wait_timeout_s: float,
        pool: Executor | None = None,
    ) -> None:
        self._outputs = outputs
        self._emit = run.emit
        self._signals = run.signals
        self._clock = run.clock
        self._wait_timeout_s = wait_timeout_s
        self.first_gate_opened_s: float | None = None  # rates count from then on
        self._warned = set[str]()  # warnings that were reported: each is reported once
        # One join at a time: two would share the disk, and both would take longer.
        self._pool = pool or ThreadPoolExecutor(1, thread_name_prefix="join")
        self._join: tuple[int, Future[Any]] | None = None  # (output, its join) that is in progress
        self._to_plan = set[int]()  # outputs that are to be planned
        self._damaged: Counter[int] = Counter()  # damaged chunks, by output
        self._full_s: float | None = None  # since when joins have met a full disk
        self._again_s = 0.0  # no join begins before
        self._stopped = False

    # --- what workers leave

    def keep(self, task: Task, folder: AttemptFolder, *, salvaged: bool) -> Verdict | None:
        """Store verified vectors of these texts, as a whole chunk or as a part of one.

        `salvaged`: the attempt left no result, and its vectors are those of finished batches.
        Returns a verdict if the disk is full or failing, else None. Raises OSError for any other
        error; Halt: 74 if the rest of the output cannot fit, 78 if the model's folder has changed.
        """
        output = self._outputs[task.output]
        # If the folder has changed, it is not known which files the workers have loaded since.
        output.model.check_unchanged()
        ledger = output.ledger
        spec = folder.spec
        whole = not salvaged and len(task.texts) == ledger.plan.size(task.chunk)
        result = None
        try:
            if salvaged:
                facts = folder.facts_of_batches()
            else:
                result = folder.result()
                facts = result.facts if result else None
            if not facts:
                raise OSError(errno.EIO, f"{folder.files.folder} cannot be read any more")
            self._warn(output, facts)
            # Before the vectors: once these are stored, a kill would lose the lengths, which only
            # the attempt has.
            folder.keep_cut_lengths(
                ledger.layout.cut_texts(ledger.fingerprint), ledger.plan.distinct
            )
            if whole and result:
                ledger.commit(task.chunk, folder.files.vectors, result.digest, facts)
            else:
                ledger.fix_facts(facts)
                vectors = folder.files.partial if salvaged else folder.files.vectors
                ledger.parts(task.chunk).add_vectors(spec.start, vectors, task.texts)
            output.find_known_good()
        except OSError as error:
            return self._not_stored(task, error)
        complete = result is not None and len(task.texts) == spec.stop - spec.start - len(spec.skip)
        # An attempt of which all is stored is removed; one that failed stays, to be read by people.
        if complete:
            folder.remove()
        if whole:
            self._committed(output, task.chunk, result)
        elif result and complete:
            counts = len(task.texts), result.tokens
            self._emit(event.PartCommitted(output.name, task.chunk, spec.start, spec.stop, *counts))
        else:
            beat = folder.beat()  # its count of tokens is about that of these texts
            tokens = beat.tokens_done if beat else 0
            self._emit(event.BatchesKept(output.name, task.chunk, len(task.texts), tokens))
        return None

    def _warn(self, output: OutputRun, facts: Facts) -> None:
        """Report, once each, what libraries warned of, and versions other than at the beginning."""
        notes = facts.loaded.notes if facts.loaded else ()
        warnings = [f"while the model was loaded: {note}" for note in notes]
        changed = ", ".join(output.ledger.note_versions(facts))
        if changed:
            warnings.append(
                f"{output.name}: some rows were computed with other library versions: {changed}; "
                "the manifest names all"
            )
        for text in warnings:
            if text not in self._warned:
                self._warned.add(text)
                self._emit(event.Warned(text))

    def quarantine(self, task: Task, verdict: Verdict) -> Verdict | None:
        """Store that these texts get no vector; returns and raises as `keep`."""
        output = self._outputs[task.output]
        bad = [
            BadText(text, verdict.outcome, _reason_of(output, text, verdict)) for text in task.texts
        ]
        try:
            output.ledger.parts(task.chunk).add_bad(*bad)
        except OSError as error:
            return self._not_stored(task, error)
        for each in bad:
            row, place = output.place_of(each.text)
            rows = output.rows_of(each.text)
            self._emit(
                event.Quarantined(
                    output.name, row, place, each.outcome, each.reason, task.chunk, rows
                )
            )
        return None

    def _not_stored(self, task: Task, error: OSError) -> Verdict:
        if error.errno not in DISK_ERRNOS:
            raise error
        output = self._outputs[task.output]
        if error.errno == errno.EIO:
            words = "the disk reported an error, and the chunk is stored again"
            self._emit(event.Alarmed(f"{output.name} chunk {task.chunk}: {words}: {error}"))
        return verdict_of(error, "vectors could not be stored", output.workdir)

    def commit_parts(self, number: int, chunk: int) -> bool:
        """Commit a chunk from its parts if each of its texts has a vector or is given up.

        Returns False if a part is damaged. Without any vector, whose dimension the file needs, and
        on a full disk, the chunk waits: `poll` tries again before the join. Raises OSError as
        `keep`.
        """
        output = self._outputs[number]
        ledger = output.ledger
        if not ledger.facts or ledger.committed(chunk) or output.ledger.pending_texts(chunk):
            return True
        try:
            if not ledger.commit_parts(chunk):
                what = f"{output.name} chunk {chunk}: stored vectors are damaged"
                self._emit(event.Warned(f"{what}, and will be computed again"))
                return False
        except OSError as error:
            if error.errno not in DISK_ERRNOS:
                raise
            return True
        self._committed(output, chunk, None)
        return True

    def _committed(self, output: OutputRun, chunk: int, result: Result | None) -> None:
        ledger = output.ledger
        before = output.saved_before.pop(chunk, 0)
        texts = ledger.plan.size(chunk)
        output.texts_here += texts - before
        rate: float | None = None
        # The start-up, which comes once, is left out: it would make estimates too long for hours.
        if self.first_gate_opened_s is not None:
            done = sum(each.texts_here for each in self._outputs)
            rate = round(done / max(1e-6, self._clock() - self.first_gate_opened_s), 3)
        committed = event.ChunkCommitted(
            output.name,
            chunk,
            texts,
            ledger.texts_done + output.taken,
            ledger.chunks_done,
            ledger.plan.count,
            attempt_ok=result is not None,
            texts_per_s=rate,
            tokens=result.tokens if result else 0,
            phase_s=result.phase_s if result else {},
            texts_before=before,
        )
        self._emit(committed)
        # The first chunk shows the dimension, and so how much space the rest needs: a run that
        # cannot fit ends now, and not after hours.
        output.committed_here += 1
        if output.committed_here == 1 and output.left:
            _check_space(output)

    # --- what an earlier run left

    def adopt(self) -> None:
        """Store the good vectors of attempts that an earlier run left unjudged; remove the rest.

        Raises Halt, OSError.
        """
        for number, output in enumerate(self._outputs):
            _check_space(output)
            for folder in output.left_behind():
                if not self._adopted(Task(number, folder.spec.chunk, ()), output, folder):
                    folder.remove()
            output.saved_before = output.ledger.saved()
            output.find_known_good()

    def _adopted(self, task: Task, output: OutputRun, folder: AttemptFolder) -> bool:
        """Store the good vectors of the attempt; True if all of its vectors are."""
        spec = folder.spec
        skipped = frozenset(spec.start + row for row in spec.skip)
        texts = [text for text in range(spec.start, spec.stop) if text not in skipped]
        if not frozenset(output.ledger.pending_texts(task.chunk)).issuperset(texts):
            return False
        verdict = judge(folder.evidence_of_end(Evidence(None, limits=spec.limits)))
        complete = verdict.outcome is Outcome.COMMITTED
        if not complete:
            texts = [spec.start + row for row in folder.salvage().done]
        if texts:
            self.keep(task.subset(texts), folder, salvaged=not complete)
            self.commit_parts(task.output, task.chunk)
        return complete

    # --- joins

    @property
    def joining(self) -> bool:
        """Whether an output is being joined, or will be as soon as there is space."""
        return self._join is not None or (self._full_s is not None and not self._signals.draining)

    def poll(self) -> list[tuple[int, int]]:
        """See what became of the join in progress, and begin the next.

        Returns (output, chunk) of each chunk that turned out to be damaged. Raises Halt (74) if the
        disk stays full, or damages one chunk after the other; OSError for an error that is not the
        disk's.
        """
        lost = list[tuple[int, int]]()
        if self._join and self._join[1].done():
            number, future = self._join
            self._join = None
            lost += self._join_ended(number, future)
        for number, output in enumerate(self._outputs):
            if self._stopped or self._join or self._clock() < self._again_s:
                break
            if number in self._to_plan and output.prepare:
                if not self._signals.draining:
                    self._begin_join(number, output.prepare)
                continue
            if not self._is_ready(number):
                continue
            # Chunks that `commit_parts` could not commit before.
            damaged = [
                chunk
                for chunk in range(output.ledger.plan.count)
                if not self.commit_parts(number, chunk)
            ]
            if damaged:
                lost += [self._count_damaged(number, chunk) for chunk in damaged]
            elif output.left:
                self._wait_for_space(
                    output, OSError(errno.ENOSPC, "no space left on device to put a chunk together")
                )
            else:
                self._emit(event.Assembling(output.name, output.ledger.plan.count))
                self._begin_join(number, output.finish)
        return lost

    def plan(self, number: int) -> None:
        """Have the output planned by `OutputRun.prepare`, in the thread of the joins."""
        self._to_plan.add(number)
        self._signals.wake()

    def _begin_join(self, number: int, job: Callable[[OnWait], Any]) -> None:
        future = self._pool.submit(job, self._still_wanted)
        self._join = number, future
        future.add_done_callback(lambda _: self._signals.wake())

    def stop(self) -> None:
        """Join nothing more; the next run begins a half-made file again."""
        self._stopped = True

    def close(self) -> None:
        """Join nothing more, and wait for the join in progress to end."""
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _is_ready(self, number: int) -> bool:
        output = self._outputs[number]
        if output.joined or output.waits_for or (output.left and not output.ledger.facts):
            return False
        # Outputs that wait for its vectors take them from its chunks, which a join may remove: a
        # final file may be rounded.
        is_awaited = any(number in each.waits_for for each in self._outputs)
        return not is_awaited and output.next_pending(0) is None

    def _join_ended(self, number: int, future: Future[Any]) -> list[tuple[int, int]]:
        output = self._outputs[number]
        try:
            if output.prepare:
                planned, told = future.result()
                output.become(planned)
                for each in told:
                    self._emit(each)
            else:
                self._emit(event.OutputComplete(output.name, **future.result()))
                output.joined = True
            self._full_s = None
        except ChunkDamagedError as error:
            words = (
                f"{output.name} chunk {error.chunk} is damaged and will be computed again: "
                f"{error.why}"
            )
            self._emit(event.Warned(words))
            output.ledger.discard(error.chunk)
            return [self._count_damaged(number, error.chunk)]
        except InterruptedError:
            self._stopped = True
        except OSError as error:
            if error.errno not in DISK_ERRNOS:
                raise
            self._wait_for_space(output, error)
        return []

    def _wait_for_space(self, output: OutputRun, error: OSError) -> None:
        now_s = self._clock()
        self._full_s = now_s if self._full_s is None else self._full_s
        if now_s - self._full_s >= self._wait_timeout_s:
            raise disk_halt(error, output.ledger.layout.workdir)
        self._emit(event.Warned(f"{output.name}: waiting for disk space: {error}"))
        self._again_s = now_s + PAUSE_S

    def _count_damaged(self, number: int, chunk: int) -> tuple[int, int]:
        self._damaged[number] += 1
        if self._damaged[number] > MAX_DAMAGED:
            raise chunks_damaged_again(self._outputs[number].name, chunk)
        return number, chunk

    def _still_wanted(self) -> None:
        if self._stopped or self._signals.stopping:
            raise InterruptedError("stopped while joining chunks")


def _reason_of(output: OutputRun, text: int, verdict: Verdict) -> str:
    """Say why the text has no vector; if it is blank, also how its rows are left out."""
    if not output.is_blank(text):
        return verdict.reason
    reason = f"{verdict.reason}; the text is blank"
    if output.without_blanks:
        where = f"outputs.{output.name}.where={output.without_blanks}"
        reason = f"{reason}: `--set {shlex.quote(where)}` leaves such rows out"
    return reason


def _check_space(output: OutputRun) -> None:
    """Raise Halt (74) if the rest of the output cannot fit on the disk, once a chunk is known."""
    ledger = output.ledger
    if not ledger.facts:
        return
    left = ledger.plan.distinct - ledger.texts_done
    dimension = ledger.facts.dimension
    form = output.form
    second_form = 0 if form.is_float32_npy else VectorType(form.dtype, dimension).row_bytes
    bad = output.table.row_counts([each.text for each in ledger.bad_texts()])
    rows = output.table.rows
    need = need_bytes(rows, left, dimension, second_form, sum(bad))
    check_disk(output.name, need, 4 * dimension * rows, output.workdir)
