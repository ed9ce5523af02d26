"""The loop: reports to the scheduler what happens, does what it says, and tells people and the journal.

It decides nothing. What happens is gathered once a turn; calls of workers are also answered before anything that takes
milliseconds, so that no device waits until another attempt's texts are written.
"""

import contextlib
import errno
import heapq
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec

from chunkvisor import words
from chunkvisor.config.choices import OnBadRow
from chunkvisor.config.choices import Start as StartKind
from chunkvisor.config.model import Config, RecoveryConfig
from chunkvisor.devices.stations import Opinion, Station, Stations
from chunkvisor.engine.engine import Engine, Worker
from chunkvisor.engine.process import trim_log
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events import event
from chunkvisor.heart import policy
from chunkvisor.heart.output import OutputRun
from chunkvisor.heart.policy import Lesson
from chunkvisor.heart.run import Run, WaitTeller
from chunkvisor.heart.scheduler import AttemptEnded, Ending, Scheduler, Work
from chunkvisor.heart.store import Keeper
from chunkvisor.judge import (
    NODE_LOST,
    ONE_ROW,
    STATUS_LOST,
    EndedBy,
    Evidence,
    Pulse,
    Verdict,
    judge,
)
from chunkvisor.store.attempt import Salvage, drop_bulk, gather, last_log, look, write_attempt
from chunkvisor.store.disk import of_start, with_room
from chunkvisor.store.layout import Layout, workdir_gone
from chunkvisor.store.records import LessonFile
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.exits import Outcome, WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.messages import Limits, Phase, Spec
from chunkvisor_worker.contract.wire import read_batch_log, read_beat, write_message

_P = ParamSpec("_P")
_PAUSE_S = 0.25  # the loop looks around so often, even if no worker calls

GRACE_S = 5.0  # between one signal and the next, stronger one
_LOOK_S = 0.25  # between two looks at the beat of a worker that does not call for it


@dataclass(slots=True)
class Slot:
    """A running worker, and until all that follows from its end is done, one that has ended."""

    number: int  # its name with the scheduler
    work: Work
    station: Station
    files: AttemptFiles
    spec: Spec
    worker: Worker
    limits: Limits
    started_s: float = field(default_factory=time.monotonic)
    ended_by: EndedBy = EndedBy.ITSELF
    ended_why: str = ""
    leaving: bool = False  # it was asked to end after the current batch
    go_s: float | None = None  # when it got its device
    freed_s: float | None = None  # when it needed the device no longer
    has_result: bool = False  # it has left one, right or wrong
    pulse: Pulse = field(init=False)
    _idle_s: float = 0.0  # how long the device had nothing to do before this worker's `go`
    _ready_s: float | None = None
    _looked_s: float = 0.0
    _signals: list[signal.Signals] = field(default_factory=list)
    _next_signal_s: float = 0.0

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.started_s, self.started_s)

    @property
    def names(self) -> tuple[str, int, int]:
        """Output, chunk and attempt, for the journal."""
        return self.spec.output, self.spec.chunk, self.spec.attempt

    @property
    def has_device(self) -> bool:
        """Whether it had its `go`, and has not given its device back."""
        return self.go_s is not None and self.freed_s is None

    @property
    def _at_gate(self) -> bool:
        return self._ready_s is not None and self.go_s is None and self.ended_by is EndedBy.ITSELF

    def heard(self, now_s: float) -> bool | None:
        """Say whether it has given its device back, or (False) waits for it; None = it neither does nor did."""
        # At the gate there is no beat to come.
        if self.worker.has_called() or not (self._at_gate or now_s - self._looked_s < _LOOK_S):
            self._look(now_s)
        if self._at_gate:
            return False
        return True if self.freed_s is not None else None

    def _look(self, now_s: float) -> None:
        self._looked_s = now_s
        self.pulse = self.pulse.seen(read_beat(self.files.beat), now_s)
        if self._ready_s is None and self.pulse.phase is Phase.READY:
            self._ready_s = now_s
        if (
            self.pulse.beat is not None
            and self.pulse.beat.freed
            and self.ended_by is EndedBy.ITSELF
        ):
            self._free(now_s)
        trim_log(self.files.log)

    def _free(self, now_s: float) -> None:
        """Note that the device has nothing to do from now on, if it has had something."""
        if self.has_device:
            self.freed_s = self.station.freed_s = now_s

    def go(self, limits: Limits) -> None:
        """Let it use the device, with the batch limits of the moment."""
        self.go_s, self.limits = time.monotonic(), limits
        # Idle time is the device's, between one worker and the next: the figure that warm workers are there for.
        self._idle_s = self.go_s - (self.station.freed_s or self.go_s)
        self.pulse = self.pulse.let_go(self.go_s, self.go_s - (self._ready_s or self.go_s))
        self.worker.go(limits)

    def attend(self, now_s: float, recovery: RecoveryConfig) -> None:
        """End it if it has made no progress for too long; take the next step of an end that has begun."""
        if (
            self.ended_by is EndedBy.ITSELF
            and not self._at_gate
            and (why := self.pulse.overdue(now_s, recovery))
        ):
            self.end(EndedBy.HANG, why, now_s)
        self._next_signal(now_s)

    def end(self, by: EndedBy, why: str, now_s: float) -> None:
        """Begin to end it, politely first; or take the next step of an end that has begun."""
        if self.ended_by is EndedBy.ITSELF:
            self.ended_by, self.ended_why, self._next_signal_s = by, why, now_s
            # SIGABRT: faulthandler writes the Python stack of a hung worker to its log.
            first = signal.SIGABRT if by is EndedBy.HANG else signal.SIGTERM
            # One that was asked to leave, and has not, has had its politeness.
            self._signals = [signal.SIGKILL] if self.leaving else [first, signal.SIGKILL]
        self._next_signal(now_s)

    def _next_signal(self, now_s: float) -> None:
        if self._signals and now_s >= self._next_signal_s:
            number = self._signals.pop(0)
            if number is signal.SIGABRT:
                # The stack in the log begins with "Fatal Python error: Aborted", as if the worker had crashed.
                with (
                    contextlib.suppress(OSError),
                    open(self.files.log, "a", encoding="utf-8") as log,
                ):
                    log.write(
                        f"chunkvisor ends this worker: {self.ended_why}. It is asked for its stack.\n"
                    )
            self.worker.signal(number)
            self._next_signal_s = now_s + GRACE_S

    def stuck(self, now_s: float) -> bool:
        """Whether even SIGKILL has not ended it for long: it hangs in the kernel (D state)."""
        return (
            self.ended_by is not EndedBy.ITSELF
            and not self._signals
            and now_s > self._next_signal_s + 12 * GRACE_S
        )

    def figures(self, now_s: float) -> dict[str, Any]:
        """Say what the worker, which has ended, did with its time, for the journal; seconds and counts."""
        self._free(now_s)
        self._look(now_s)
        beat, busy_s = self.pulse.beat, (self.freed_s or 0.0) - (self.go_s or 0.0)
        # The device computes from the first batch on: until then a context is made, and weights are copied.
        opening_s = beat.opening_s if beat and self.go_s is not None else 0.0
        return {
            "device": self.station.number,
            "startup_s": round((self._ready_s or now_s) - self.started_s, 4),
            "idle_s": round(self._idle_s + opening_s, 4),
            "busy_s": round(busy_s - opening_s, 4),
            "texts": beat.rows_done if beat else 0,
            "tokens": beat.tokens_done if beat else 0,
            "padded_tokens": beat.padded_tokens if beat else 0,
        }


class Loop:
    """Runs the pending chunks of all outputs on all devices; it is the scheduler's hands."""

    def __init__(
        self,
        outputs: Sequence[OutputRun],
        config: Config,
        lessons: LessonFile,
        engine: Engine,
        run: Run,
    ) -> None:
        """The caller closes the engine."""
        self._outputs, self._engine, self._workers, self._recovery = (
            outputs,
            engine,
            config.workers,
            config.recovery,
        )
        self._lessons, self._signals, self._emit, self._tick = (
            lessons,
            run.signals,
            run.emit,
            run.tick,
        )
        self._stations = Stations(self._seen, run.emit)
        self._store = Keeper(outputs, run, config.recovery.wait_timeout)
        self._waits = WaitTeller(run.emit, config.recovery.wait_timeout)
        self._opened = False  # the engine
        self._scheduler = Scheduler(outputs, config, lessons.get, self, time.monotonic)
        self._given_up: list[words.GivenUp] = []
        self._slots: dict[int, Slot] = {}  # running workers, by number
        self._ended: dict[int, Slot] = {}  # those that have ended in this turn
        self._news: list[partial[None]] = []  # what has become of devices since the last turn
        self._drains: tuple[str, float | None] | None = (
            None  # (why, until when) the run ends, as reported last
        )

    def run(self) -> list[words.GivenUp]:
        """Work until nothing is pending, or the run is asked to stop; returns the chunks given up.

        Raises Halt if every further worker would fail; OSError. Whatever happens, no worker is left behind.
        """
        try:
            self._store.adopt()
            self._turn()
            while not self._scheduler.finished or self._store.joining:
                self._sleep()
                self._turn()
        finally:
            self._end_all()
            self._store.close()
        return self._given_up

    def _pending(self) -> int:
        return sum(output.left for output in self._outputs)

    def _seen(self, station: Station, opinion: Opinion | None, gone: bool) -> None:
        node, kind = station.site.node, station.device.model
        self._news.append(
            partial(self._scheduler.seen, station.number, node, kind, opinion, gone=gone)
        )

    # --- turns

    def _turn(self) -> None:
        self._heed_signals()
        if (
            not self._opened and self._pending()
        ):  # at the beginning, or once a chunk is found damaged
            self._opened = True
            self._engine.open(
                self._stations, self._pending, self._workers.per_device + self._workers.standby
            )
        self._engine.attend()
        self._stations.attend(self._pids)
        news, self._news = self._news, []
        for happened in news:
            self._tell(happened)
        for slot in list(self._slots.values()):
            self._attend(slot, time.monotonic())
        if time.monotonic() >= self._scheduler.last_s:
            self._store.stop()
        for output, chunk in self._store.attend():
            self._scheduler.lost(output, chunk)
        self._tick()
        self._tell(self._scheduler.tick)
        for (
            slot
        ) in self._ended.values():  # of a failed attempt, record and log are what is left to read
            if slot.files.verdict.exists():
                drop_bulk(slot.files)
        self._ended.clear()

    def _heed_signals(self) -> None:
        signals = self._signals
        if signals.draining and self._drains != (drains := (signals.why, signals.until_s)):
            self._drains = drains
            how = "finishing the chunks in progress"
            if signals.until_s is not None:
                how = f"saving within {human_time(max(0.0, signals.until_s - time.monotonic()))} what they have done"
            self._emit(event.Draining(signals.why, how))
            self._tell(self._scheduler.stop, signals.until_s)
        if signals.stopping:
            self._tell(self._scheduler.stop, -math.inf)

    def _sleep(self) -> None:
        watched = (fd for slot in self._slots.values() for fd in slot.worker.watched())
        self._signals.sleep(_PAUSE_S, [*self._engine.watched(), *watched])

    def _tell(self, what: Callable[_P, None], *args: _P.args, **named: _P.kwargs) -> None:
        """Tell the scheduler, and do what it says, to the end."""
        what(*args, **named)
        todo = deque(self._scheduler.take())
        while todo:
            todo.popleft()()
            todo.extend(self._scheduler.take())

    def _answer_calls(self) -> None:
        """Give devices that were given back meanwhile to the next worker."""
        now_s = time.monotonic()
        for slot in self._slots.values():
            if (freed := slot.heard(now_s)) is not None:
                self._tell(self._scheduler.called, slot.number, freed=freed)

    def _pids(self) -> dict[int, frozenset[int]]:
        """Name the workers that have each device, or have just given it back."""
        pairs = [
            (slot.station.number, slot.worker.pid)
            for slot in self._slots.values()
            if slot.go_s is not None
        ]
        return {number: frozenset(pid for at, pid in pairs if at == number) for number, _ in pairs}

    # --- workers

    def _attend(self, slot: Slot, now_s: float) -> None:
        returncode = slot.worker.poll()
        if returncode is not None:
            self._conclude(slot, returncode, now_s)
            return
        if (freed := slot.heard(now_s)) is not None:
            self._tell(self._scheduler.called, slot.number, freed=freed)
        slot.attend(now_s, self._recovery)
        if slot.stuck(now_s):
            raise Halt(
                ExitCode.MACHINE,
                f"worker {slot.worker.pid} of {slot.spec.output} chunk {slot.work.chunk} cannot be killed",
                why="it hangs inside the kernel (D state): the GPU driver or the disk is stuck",
                remedy="Reboot the machine, then run the same command again.",
                log=slot.files.log,
            )

    def _conclude(self, slot: Slot, returncode: int, now_s: float) -> None:
        """Judge a worker that has ended."""
        del self._slots[slot.number]
        self._ended[slot.number] = slot
        self._emit(event.WorkerEnded(*slot.names, returncode, **slot.figures(now_s)))
        # The end of a warm worker that never had the device is its template's doing, not a text's.
        unused = slot.worker.warm and slot.go_s is None and slot.ended_by is EndedBy.ITSELF
        if unused and returncode in (WorkerExit.TAINTED_TEMPLATE, STATUS_LOST):
            remove_folder(slot.files.folder)
            self._tell(self._scheduler.ended, AttemptEnded(slot.number, None))
            return
        if returncode == NODE_LOST:
            # That its device was dropped is how we heard of it, and not why it ended.
            slot.ended_by, slot.ended_why = EndedBy.ITSELF, f"{slot.station} was lost"
        elif returncode == WorkerExit.ORPHANED and slot.leaving and slot.ended_by is EndedBy.ITSELF:
            slot.ended_by = EndedBy.STOP
        elif returncode == 0:
            # After any other end the verdict comes before the next `go`: it may have something to teach.
            self._tell(self._scheduler.called, slot.number, freed=True)
        self._answer_calls()  # all of its vectors are read now
        others = (
            each
            for each in self._slots.values()
            if each.has_device and each.station is slot.station
        )
        siblings = frozenset(each.worker.pid for each in others)
        ended = _judged(slot, returncode, self._outputs[slot.work.output], siblings, self._emit)
        if slot.go_s is not None:
            slot.station.alone = False  # what is on it may have changed since the last look
        self._tell(self._scheduler.ended, ended)

    def _end_all(self) -> None:
        """End the workers that are left after a halt: politely, then by force; gives up on one in the kernel."""
        slots = self._slots
        while slots and not all(slot.stuck(time.monotonic()) for slot in slots.values()):
            now_s = time.monotonic()
            for slot in list(slots.values()):
                if slot.worker.poll() is None:
                    slot.end(EndedBy.STOP, "", now_s)
                else:
                    del slots[
                        slot.number
                    ]  # if it got done after all, the next run finds its result
            if slots:
                self._sleep()
                with contextlib.suppress(Halt):
                    self._engine.attend()

    # --- what the scheduler asks

    def holding(self, device: int) -> bool:
        """Say whether nothing is to be started there yet."""
        return self._engine.holding(self._stations[device])

    # --- what the scheduler wants done. Raises Halt; OSError

    def start(
        self, worker: int, device: int, work: Work, limits: Limits, canary: int | None
    ) -> None:
        """Start a worker; `canary` is the text that makes its first batch, or OWN and less; None = as they come."""
        self._answer_calls()
        station, output = self._stations[device], self._outputs[work.output]
        first, last = work.texts[0], work.texts[-1] + 1
        wanted = work.texts if isinstance(work.texts, range) else frozenset(work.texts)
        try:
            number, files = output.ledger.new_attempt(work.chunk)
            good = (
                next(output.texts_of([canary]))
                if canary is not None and canary > policy.OWN
                else None
            )
            job, site = output.job, station.site
            draft = replace(
                job,
                chunk=work.chunk,
                attempt=number,
                start=first,
                device=station.device.kind,
                # Another machine may have the model elsewhere, and other cores.
                model=job.model
                if site.model_path is None
                else replace(job.model, path=site.model_path),
                threads=site.threads or job.threads,
                skip=tuple(text - first for text in range(first, last) if text not in wanted),
                limits=limits,
                canary=good,
                canary_row=_shortest(canary, work, output)
                if canary is not None and good is None
                else None,
            )
            spec = write_attempt(files, draft, output.texts_of(work.texts))
            # CUDA_LAUNCH_BLOCKING=1, so that the traceback names the kernel that failed.
            blocking = work.tries[-1:] == (Outcome.DEVICE_FAULT,)
            process = self._engine.start(
                station, files, spec, fresh=work.fresh, blocking_launches=blocking
            )
        except OSError as error:
            workdir = output.ledger.layout.workdir
            if error.errno == errno.ENOENT and (gone := workdir_gone(Layout(workdir))):
                raise gone from error
            outcome, remedy = of_start(error)
            reason = f"no worker could be started: {error}"
            if outcome is Outcome.DISK_FULL:
                reason = with_room(reason, workdir)
            # A batch of one row, so that the policy does not take it for a matter of batches.
            verdict = Verdict(outcome, reason, remedy, limits=ONE_ROW, batch_rows=1)
            self._scheduler.ended(AttemptEnded(worker, verdict))
            return
        slot = Slot(worker, work, station, files, spec, process, limits)
        self._slots[worker] = slot
        kind = StartKind.WARM if process.warm else StartKind.FRESH
        self._emit(event.AttemptStarted(*slot.names, process.pid, station.number, str(kind)))

    def go(self, worker: int, limits: Limits) -> None:
        """Let the worker have its device."""
        slot = self._slots[worker]
        slot.go(limits)
        self._store.first_go_s = self._store.first_go_s or slot.go_s
        self._emit(event.Go(*slot.names, limits.rows, limits.tokens))

    def end(self, worker: int) -> None:
        """End the worker."""
        if worker in self._slots:
            self._slots[worker].end(EndedBy.STOP, "", time.monotonic())

    def leave(self, worker: int) -> None:
        """Ask the worker to end after the current batch."""
        if worker in self._slots:
            slot = self._slots[worker]
            slot.leaving = True
            slot.worker.leave()
            self._emit(event.WorkerLeaving(*slot.names))

    def look(self, device: int) -> None:
        """Look at the device; the scheduler hears what that shows."""
        self._stations[device].ask()

    def keep(self, worker: int, work: Work) -> None:
        """Store the vectors of these texts, which the worker has left."""
        self._answer_calls()
        slot = self._ended[worker]
        self._stored(
            work, self._store.keep(work, slot.spec, slot.files, salvaged=not slot.has_result)
        )

    def quarantine(self, work: Work, verdict: Verdict) -> None:
        """Note that the text gets no vector."""
        self._answer_calls()
        self._stored(work, self._store.quarantine(work, verdict))

    def _stored(self, work: Work, problem: Verdict | None) -> None:
        self._scheduler.stored(work, problem)
        if problem is None and not self._store.compose(work.output, work.chunk):
            self._scheduler.lost(work.output, work.chunk)

    # --- what the scheduler tells

    def failed(
        self,
        worker: int,
        work: Work,
        verdict: Verdict,
        step: policy.Step | None,
        under_way: tuple[int, ...],
    ) -> None:
        """Report that an attempt has failed, and what follows; no step: nothing has to, as all its texts are done."""
        ledger, slot = self._outputs[work.output].ledger, self._ended.get(worker)
        if slot is not None:
            (output, chunk, attempt), files = slot.names, slot.files
        else:  # it could not be started: the folder of the chunk has the logs of those before
            output, chunk, attempt = ledger.layout.name, work.chunk, 0
            files = AttemptFiles(ledger.layout.attempts_of(chunk))
        if verdict.asked_for:
            remove_folder(files.folder)
        elif slot is not None:
            with contextlib.suppress(OSError):  # on a full disk the journal may still have it
                write_message(files.verdict, verdict, durable=False)
        kind = (
            event.AttemptInterrupted
            if verdict.asked_for
            else event.PartFailed
            if work.part
            else event.AttemptFailed
        )
        failed = kind(
            output,
            chunk,
            attempt,
            verdict.outcome,
            verdict.reason,
            start=work.texts[0],
            stop=work.texts[-1] + 1,
            rule=verdict.rule,
            phase=str(verdict.phase or ""),
            log=str(last_log(files) or ""),
            then=what_follows(step, verdict) if step is not None else "",
            rows=self._outputs[work.output].which_rows(under_way),
        )
        self._emit(failed)
        if isinstance(step, policy.GiveUp):
            self._given_up.append(words.GivenUp(output, chunk, verdict, files))
            self._emit(event.ChunkSetAside(output, chunk, verdict.reason))
        # Who held the memory all through the wait stays: the next batch does not wait for them again.
        in_vain = verdict.outcome is Outcome.GPU_OOM and not isinstance(step, policy.Wait)
        if in_vain and verdict.figures is not None and slot is not None:
            slot.station.get_used_to(verdict.figures.others_bytes)

    def taken_apart(self, work: Work, pieces: Sequence[Work], how: policy.How) -> None:
        """Report that the texts are tried in these pieces."""
        output = self._outputs[work.output]
        left = sorted(text for piece in pieces for text in piece.texts)
        alone = {policy.How.BAD: left, policy.How.SUSPECTS: list(pieces[0].texts)}.get(how, [])
        rows = output.which_rows(alone or left)
        self._emit(event.ChunkSplit(output.name, work.chunk, len(left), rows, again=work.part))

    def waits(self, device: int | None, delay_s: float, waited_s: float, verdict: Verdict) -> None:
        """Report that the run waits, for one device or (None) for all."""
        self._waits.tell(delay_s, waited_s, verdict.reason, verdict.outcome, device)

    def learnt(self, kind: str, lesson: Lesson, *, lasting: bool) -> None:
        """Report that batches on devices of this kind are no larger from now on; `lasting`: in later runs as well."""
        if lasting:
            self._lessons.save(kind, *lesson)
        # With one kind of GPU, its name would only be noise.
        several = len({station.device.model for station in self._stations.alive}) > 1
        self._emit(
            event.LimitsLowered(lesson.rows, lesson.tokens, f" on {kind}" if several else "")
        )

    def drop(self, ending: Ending) -> None:
        """Do without a device."""
        if ending.device is not None:
            # If it is the last of a cluster, the run ends so unless another one joins.
            last = len(self._stations.alive) == 1
            self._stations.leave(ending.device, self._with_log(ending, dropped=not last))

    def halt(self, ending: Ending) -> None:
        """End the run."""
        raise self._with_log(ending, dropped=False)

    def _with_log(self, ending: Ending, *, dropped: bool) -> Halt:
        halt = self._in_words(ending, dropped=dropped)
        if halt.log is None and ending.worker in self._ended:
            halt.log = last_log(self._ended[ending.worker].files)
        return halt

    def _in_words(self, ending: Ending, *, dropped: bool) -> Halt:
        work, verdict = ending.work, ending.verdict
        output = self._outputs[work.output if work is not None else 0]
        if ending.why == "all bad":
            return words.all_bad(output.name, next(reversed(output.ledger.bad_texts()), None))
        assert verdict is not None, ending
        if ending.why == "bad rows" and work is not None:
            count = 1 + sum(each.bad_count for each in self._outputs)
            most = (
                None if self._recovery.on_bad_row is OnBadRow.FAIL else self._recovery.max_bad_rows
            )
            _, where = output.place_of(work.texts[0])
            return words.too_bad(output.name, where, count, verdict, most)
        device = str(self._stations[ending.device]) if ending.device is not None else "this machine"
        at = output.name, work.chunk if work is not None else 0, output.texts
        return words.end_in_words(ending.why, ending.code, verdict, at, device, dropped=dropped)


def _judged(
    slot: Slot, returncode: int, output: OutputRun, siblings: frozenset[int], emit: event.Emit
) -> AttemptEnded:
    """Say what became of the attempt, and what it has left; `siblings` are our other workers on its device, by pid."""
    facts, is_blank = output.ledger.facts, output.blank_test(slot.spec)
    oom_kills = slot.worker.oom_kills()
    end = Evidence(
        returncode, slot.ended_by, slot.ended_why, oom_kills=oom_kills, limits=slot.limits
    )
    verdict = judge(gather(slot.files, slot.spec, facts, is_blank, end))
    if returncode not in (0, STATUS_LOST) and verdict.outcome is Outcome.COMMITTED:
        emit(event.LateCrash(output.name, slot.work.chunk, returncode))
    slot.has_result = verdict.outcome in (Outcome.COMMITTED, Outcome.BAD_OUTPUT)
    # With a result, what is wrong is known; if its form is wrong, no batch of it can be believed.
    left = Salvage() if slot.has_result else look(slot.files, slot.spec, facts, is_blank)
    if (
        verdict.outcome is Outcome.DISK_FULL and not slot.station.site.node
    ):  # the disks of another machine are not ours
        temporary = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - what is there
        verdict = replace(
            verdict, reason=with_room(verdict.reason, output.ledger.layout.workdir, temporary)
        )
    canary = read_batch_log(slot.files.batches).canary
    # A canary of another dimension than the vectors before shows a model that is not the one that made them.
    passed = canary is not None and (facts is None or facts.dimension == canary.dimension)
    some_good = 0 < len(verdict.bad_rows) < len(slot.work.texts)
    return AttemptEnded(
        slot.number,
        verdict,
        slot.station.company(verdict.figures, siblings),
        # A first try from a template proves little: the next one, in a new interpreter, tells more.
        began_s=slot.started_s if slot.work.fresh or not slot.worker.warm else None,
        done=frozenset(slot.spec.start + row for row in left.done),
        under_way=frozenset(slot.spec.start + row for row in left.under_way),
        proven=bool(left.done) or some_good or passed,
    )


def _shortest(canary: int, work: Work, output: OutputRun) -> int:
    """Find the position of the shortest text, or one of the next; blank ones count as long: they may have no vector."""
    sizes = (
        (not text.strip(), len(text), at) for at, text in enumerate(output.texts_of(work.texts))
    )
    return heapq.nsmallest(policy.OWN - canary + 1, sizes)[-1][2]


def what_follows(step: policy.Step, verdict: Verdict) -> str:
    """Say what the run does next, in a few words; empty if the next event says it better."""
    match step:
        case policy.Retry(lesson=lesson) if lesson is not None:
            most = (
                counted(lesson.rows, "row")
                if lesson.tokens is None
                else counted(lesson.tokens, "token")
            )
            return f"retrying with batches of at most {most}"
        case policy.Retry(delay_s=delay_s):
            soon = f" in {human_time(delay_s)}" if delay_s >= 1 else ""
            if step.charge and verdict.outcome is Outcome.DEVICE_FAULT:
                return (
                    f"retrying{soon}, with CUDA_LAUNCH_BLOCKING=1 so that the log names the place"
                )
            return f"{'starting another worker' if step.note == 'start' else 'retrying'}{soon}"
        case policy.Split(how=how):
            return how.value
    return ""
