"""Decides what a run does next: which worker gets which texts, and when.

The loop calls a method for each thing that has happened, and gets the instructions that follow, in
order. The scheduler does nothing itself, and reads nothing but the clock and the outputs.
"""

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from chunkvisor.config.choices import OnBadRow
from chunkvisor.config.model import Config
from chunkvisor.core import policy
from chunkvisor.core.instructions import (
    AskToStop,
    AttemptEnded,
    DropDevice,
    Ending,
    EndRun,
    EndWorker,
    Instruction,
    KeepVectors,
    LowerLimits,
    OpenGate,
    PlanOutput,
    QuarantineTexts,
    ReadDevice,
    ReportFailure,
    ReportSplit,
    ReportWait,
    StartWorker,
    Task,
)
from chunkvisor.core.policy import (
    Canary,
    FailureHistory,
    How,
    KnownText,
    OwnText,
    Repeated,
    place_of_failed_start,
    waiting_device,
)
from chunkvisor.devices.handles import Health, HealthReport
from chunkvisor.errors import ExitCode, StopReason
from chunkvisor.judge import OtherProcesses, Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits
from chunkvisor_worker.contract.rules import AT_WORK

if TYPE_CHECKING:
    from chunkvisor.core.output import OutputRun

_READ_PAUSE_S = 2.0  # between two readings of a device that cannot be used
# If a run has to be over by a certain time, its workers have to be gone earlier: by this share of
# the time that is left, and by this many seconds at most.
RESERVE = 0.2
RESERVE_S = 10.0


class TaskQueue:
    """What is left to encode: chunks that were never begun, and texts that were put back."""

    def __init__(self, outputs: "Sequence[OutputRun]") -> None:
        self._outputs = outputs
        self._next = [0] * len(outputs)  # by output: this chunk and later ones were never begun
        self._again: list[Task] = []  # that were put back, in the order in which they are due
        self._given_up = set[tuple[int, int]]()  # (output, chunk) that are left to the next run

    def put_back(self, task: Task) -> None:
        """Have the texts tried, or tried again, unless their chunk is given up."""
        if (task.output, task.chunk) not in self._given_up:
            insort(
                self._again,
                task,
                key=lambda each: (each.due_s, each.output, each.texts[0], each.texts[-1]),
            )

    def put_back_lost(self, output: int, chunk: int) -> None:
        """Have texts of the chunk tried again: stored vectors of it were damaged and discarded."""
        if chunk < self._next[output]:
            texts = self._outputs[output].ledger.pending_texts(chunk)
            if texts:
                self.put_back(Task(output, chunk, tuple(texts)))

    def leave_to_next_run(self, output: int, chunk: int) -> None:
        """Leave the rest of the chunk to the next run: what is pending, and what is put back."""
        gone = (output, chunk)
        self._given_up.add(gone)
        self._again = [task for task in self._again if (task.output, task.chunk) != gone]

    def pop_next(self, now_s: float, device: int, *, only_device: bool) -> Task | None:
        """Take the next task that may start on this device.

        What failed last on this device is left for others unless it is the `only_device`.
        """
        new = [self._next_chunk(number) for number in range(len(self._outputs))]
        # While no text of the output has a vector, texts that failed wait for a chunk that was
        # never tried: it may show that the model works, and then gives a canary.
        any_new = any(chunk is not None for chunk in new)
        for position in range(bisect_right(self._again, now_s, key=lambda task: task.due_s)):
            task = self._again[position]
            if any_new and task.needs_canary and self._outputs[task.output].known_good is None:
                continue
            if only_device or task.avoid_device != device:
                return self._again.pop(position)
        for number, chunk in enumerate(new):
            if chunk is not None:
                self._next[number] = chunk + 1
                missing = self._outputs[number].ledger.pending_texts(chunk)
                whole = range(*self._outputs[number].ledger.plan.bounds(chunk))
                # A range takes less memory than a tuple of all texts of a chunk.
                return Task(number, chunk, whole if len(missing) == len(whole) else tuple(missing))
        return None

    def pending(self) -> set[int]:
        """Return the outputs of which something is pending, or that are not planned yet."""
        numbers = {task.output for task in self._again}
        for number, output in enumerate(self._outputs):
            if output.waits_for or self._next_chunk(number) is not None:
                numbers.add(number)
        return numbers

    def _next_chunk(self, output: int) -> int | None:
        return self._outputs[output].next_pending(self._next[output])


class GateState(Enum):
    """The gate between a worker and its device; see `core.attempt`."""

    SHUT = "shut"  # the worker may not use the device yet
    OPEN = "open"
    PASSED = "passed"  # the worker has given the device back


@dataclass(slots=True, eq=False)
class WorkerState:
    """One worker, from the instruction to start it until its end is judged."""

    number: int
    task: Task
    device: "DeviceState"
    canary: Canary | None = None
    gate: GateState = GateState.SHUT
    ready: bool = False  # it has come to the gate
    ending: bool = False  # it is being ended, or has ended and is not judged yet
    asked_to_stop: bool = False  # it was asked to end after the current batch
    gate_opened_s: float = -math.inf  # when its gate was opened


@dataclass(slots=True, eq=False)
class DeviceState:
    """One device, until its last worker has ended."""

    number: int
    node: str  # the machine of a cluster that it belongs to; empty for our own
    kind: str  # its model; devices of one kind share what is learnt of batches
    watched: bool  # nvidia-smi can tell its health
    gone: bool = False  # the run continues without it; workers on it may still have to end
    paused_until_s: float = 0.0
    needs_canary: bool = False  # the last attempt on it failed: the next begins with a canary
    cold_start: bool = False  # a worker from a template did not start on it
    suspected_s: float | None = None
    """Since when its health is in doubt: it is read before the next worker gets it."""
    next_reading_s: float = 0.0  # not to be read before; inf = a reading is in progress
    workers: list[WorkerState] = field(default_factory=list)

    def count_workers(self, *gates: GateState) -> int:
        """Count its workers whose gates are in these states."""
        return sum(worker.gate in gates for worker in self.workers)


class Scheduler:
    """Assigns the pending texts of all outputs to workers on all devices."""

    def __init__(
        self,
        outputs: "Sequence[OutputRun]",
        config: Config,
        recall: policy.Recall,
        clock: Callable[[], float],
    ) -> None:
        self._outputs = outputs
        self._clock = clock
        self._workers = config.workers
        self._recovery = config.recovery
        self._failures = FailureHistory(recall)
        self._queue = TaskQueue(outputs)
        self.devices: dict[int, DeviceState] = {}
        self.workers: dict[int, WorkerState] = {}
        self.paused_until_s = 0.0
        self._started = 0
        self._instructions: list[Instruction] = []
        self._unstored: list[KeepVectors | QuarantineTexts] = []  # for want of space on the disk
        self._draining = False
        self._planned = set[int]()  # outputs that waited for others, and now have PlanOutput
        self.last_s = math.inf  # by when the workers have to be gone

    @property
    def finished(self) -> bool:
        """Whether nothing is in progress, and nothing left to do."""
        waiting = self._unstored or self._queue.pending()
        return not self.workers and (self._draining or not waiting)

    @property
    def alive(self) -> list[DeviceState]:
        """The devices that the run works on."""
        return [device for device in self.devices.values() if not device.gone]

    def _take_instructions(self) -> list[Instruction]:
        instructions = self._instructions
        self._instructions = []
        return instructions

    def _add(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)

    def _paused(self, device: DeviceState, now_s: float) -> bool:
        return now_s < max(device.paused_until_s, self.paused_until_s)

    # --- turns: which worker gets which texts, and which its device

    def take_turn(self, held: Collection[int]) -> list[Instruction]:
        """Open gates, and start workers for pending texts on devices that are not `held`."""
        now_s = self._clock()
        if self._draining:
            self._drain(now_s)
            return self._take_instructions()
        self._plan_outputs()
        working = [device for device in self.alive if not self._paused(device, now_s)]
        for device in working:
            self._open_gates(device, now_s)
        # Workers that are prepared ahead take memory of the machine: each time that it ran out, one
        # less is prepared.
        places = self._workers.per_device + max(0, self._workers.standby - self._failures.host_ooms)
        for place in range(places):  # each device gets its first worker before any gets a second
            for device in working:
                if (
                    device.count_workers(GateState.SHUT, GateState.OPEN) <= place
                    and device.number not in held
                ):
                    task = self._queue.pop_next(now_s, device.number, only_device=len(working) == 1)
                    if task:
                        self._start_worker(task, device)
        return self._take_instructions()

    def _plan_outputs(self) -> None:
        """Have each output planned once nothing is left to try of those that it waits for."""
        numbers = range(len(self._outputs))
        waiting = [n for n in numbers if self._outputs[n].waits_for and n not in self._planned]
        if not waiting:
            return
        held = (*self.workers.values(), *self._unstored)
        unsettled = self._queue.pending() | {each.task.output for each in held}
        for number in waiting:
            if unsettled.isdisjoint(self._outputs[number].waits_for):
                self._planned.add(number)
                self._add(PlanOutput(number))

    def _start_worker(self, task: Task, device: DeviceState) -> None:
        canary: Canary | None = None
        if device.needs_canary or task.needs_canary:
            canary = self._canary(task, device)
        # A worker from a template failed to start on this device: the template may be the cause.
        task = replace(task, cold_start=task.cold_start or device.cold_start)
        self._started += 1
        worker = WorkerState(self._started, task, device, canary)
        self.workers[worker.number] = worker
        device.workers.append(worker)
        self._add(StartWorker(worker.number, device.number, task, self._limits(worker), canary))

    def _canary(self, task: Task, device: DeviceState) -> Canary:
        """Choose the canary: a text that is known to be good.

        If there is none, one of the task's own; after each failure another, since it may be bad
        itself.
        """
        if _tries_shortest_first(task):
            chunk = (task.output, task.chunk)
            return OwnText(self._failures.count(Repeated.OOM_SINGLETON, chunk))
        good = self._outputs[task.output].known_good
        if good is not None:
            return KnownText(good)
        failed = self._failures.count(Repeated.CANARY, device.number)
        return OwnText(failed + self._failures.count(Repeated.UNANSWERED))

    def _limits(self, worker: WorkerState) -> Limits:
        limits = self._failures.limits(self._outputs[worker.task.output].limits, worker.device.kind)
        return replace(limits, rows=1, one_text_per_call=True) if worker.task.singly else limits

    def worker_called(self, number: int, *, freed: bool) -> list[Instruction]:
        """Hear that the worker waits at the gate, or (`freed`) has given its device back."""
        worker = self.workers.get(number)
        if worker:
            worker.ready = True
            if freed:
                worker.gate = GateState.PASSED
            self._open_gates(worker.device, self._clock())
        return self._take_instructions()

    def _open_gates(self, device: DeviceState, now_s: float) -> None:
        if self._draining or device.gone or self._paused(device, now_s):
            return
        waiting = [
            each
            for each in device.workers
            if each.ready and each.gate is GateState.SHUT and not each.ending
        ]
        for worker in waiting[
            : max(0, self._workers.per_device - device.count_workers(GateState.OPEN))
        ]:
            # The last failure on it may be its own: it is read before another worker gets it.
            if device.suspected_s is not None:
                if now_s >= device.next_reading_s:
                    device.next_reading_s = math.inf
                    self._add(ReadDevice(device.number))
                return
            worker.gate = GateState.OPEN
            worker.gate_opened_s = now_s
            self._add(OpenGate(worker.number, self._limits(worker)))

    def worker_exited(self, number: int) -> None:
        """Hear that the worker has ended: its gate stays shut. `attempt_finished` follows."""
        self.workers[number].ending = True

    # --- devices

    def device_changed(
        self, number: int, node: str, kind: str, health_report: HealthReport | None, *, gone: bool
    ) -> list[Instruction]:
        """Hear that a device is new, was read, or is gone; None if its health cannot be read."""
        device = self.devices.get(number)
        if device and gone:
            self._lose_device(device)
        elif device and health_report and device.suspected_s is not None:
            self._judge_health(device, health_report, device.suspected_s)
        elif not device and not gone:
            device = DeviceState(number, node, kind, health_report is not None)
            self.devices[number] = device
            if health_report and health_report.health is Health.BROKEN:
                # It is read again before a worker gets it: until then others may join.
                device.suspected_s = self._clock()
        return self._take_instructions()

    def _judge_health(
        self, device: DeviceState, health_report: HealthReport, since_s: float
    ) -> None:
        now_s = self._clock()
        device.next_reading_s = now_s + _READ_PAUSE_S
        ending = None
        if health_report.health is Health.BROKEN:
            verdict = Verdict(Outcome.HARDWARE_FAULT, health_report.why)
            ending = Ending(ExitCode.MACHINE, StopReason.BROKEN, verdict=verdict)
        elif health_report.health is Health.BUSY:
            if now_s - max(since_s, self._failures.success_s) > self._recovery.wait_timeout:
                verdict = Verdict(Outcome.GPU_BUSY, health_report.why)
                ending = Ending(ExitCode.TRY_AGAIN, StopReason.BUSY, verdict=verdict)
        else:
            device.suspected_s = None
            device.next_reading_s = now_s
            self._open_gates(device, now_s)
        if ending:
            self._drop_device(device, ending, local=True)

    def _lose_device(self, device: DeviceState) -> None:
        # It stays in `devices` until the end of its last worker is judged.
        device.gone = True
        for worker in device.workers:
            self._end_worker(worker)
        self._forget_device(device)

    def _forget_device(self, device: DeviceState) -> None:
        if device.gone and not device.workers:
            self.devices.pop(device.number, None)

    def _drop_device(self, device: DeviceState, ending: Ending, *, local: bool) -> None:
        """Continue without the device; end the run if it is the last one here, or not `local`."""
        # A fault of the installation or the disk holds for every device of our own machine.
        codes = (ExitCode.CONFIG, ExitCode.DISK)
        of_machine = ending.why is StopReason.HALTED and ending.code in codes
        if not local or (of_machine and not device.node):
            self._add(EndRun(ending))
        elif not device.gone:
            ending = replace(ending, device=device.number)
            # In a cluster other devices may join.
            is_end = len(self.alive) == 1 and not device.node
            self._add(EndRun(ending) if is_end else DropDevice(ending))
            self._lose_device(device)

    # --- ends

    def attempt_finished(self, end: AttemptEnded) -> list[Instruction]:
        """Hear what became of a worker."""
        now_s = self._clock()
        worker = self.workers.pop(end.worker)
        device = worker.device
        task = worker.task
        device.workers.remove(worker)
        self._forget_device(device)
        verdict = end.verdict
        if not verdict:
            self._queue.put_back(replace(task, cold_start=True))
        elif verdict.outcome is Outcome.COMMITTED:
            # The device works: the next worker needs no canary, and may come from the template.
            device.needs_canary = device.cold_start = False
            self._failures.note_encoded(device.number, device.node)
            self._keep_vectors(end.worker, task)
        else:
            if worker.gate is not GateState.SHUT and verdict.can_touch_gpu and device.watched:
                device.suspected_s = now_s if device.suspected_s is None else device.suspected_s
            rest: Task | None = task
            if end.done:
                # Before the decision, though they are not on the disk yet: else a run could end
                # for want of any vector just when it has got the first.
                self._failures.note_stored(task.output, now_s)
                done = [text for text in task.texts if text in end.done]
                left = [text for text in task.texts if text not in end.done]
                self._keep_vectors(end.worker, task.subset(done, bisecting=True))
                rest = task.subset(left, charged_failures=task.charged_failures) if left else None
            if not rest:
                self._add(ReportFailure(end.worker, task, verdict, None, ()))
            else:
                self._attempt_failed(rest, end, verdict, worker)
        # Only now: what is learnt from the verdict holds for the next worker of the device.
        self._open_gates(device, now_s)
        return self._take_instructions()

    def _keep_vectors(self, worker: int, task: Task) -> None:
        self._failures.forget(Repeated.OOM_SINGLETON, (task.output, task.chunk))
        self._add(KeepVectors(worker, task))

    def _attempt_failed(
        self, task: Task, end: AttemptEnded, verdict: Verdict, worker: WorkerState
    ) -> None:
        """Decide what follows a failed attempt, and do it."""
        failures = self._failures
        device = worker.device
        step = policy.decide(verdict, self._history(task, end, verdict, worker), self._recovery)
        suspects = tuple(text for text in task.texts if text in end.in_flight)
        self._add(ReportFailure(end.worker, task, verdict, step, suspects))
        failures.host_ooms += verdict.outcome is Outcome.HOST_OOM
        if policy.fruitless(step, verdict, len(task.texts)):
            failures.record(Repeated.NO_PROGRESS)
        # A wait (but for a server), a smaller batch and a failed start say nothing of the texts; an
        # encoder that refuses a text says nothing of the device.
        waits = isinstance(step, policy.Wait) and verdict.outcome is not Outcome.HUB
        smaller = isinstance(step, policy.Retry) and step.limit is not None
        in_doubt = verdict.row_can_cause and verdict.outcome is not Outcome.BAD_INPUT
        needs_canary = in_doubt and not (waits or smaller or verdict.before_first_batch)
        device.needs_canary = device.needs_canary or needs_canary
        if verdict.phase in AT_WORK:
            device.cold_start = False
            failures.note_start(device.number, device.node, verdict.outcome)
        if end.any_text_succeeded:
            failures.forget(Repeated.CANARY, device.number)
        again = replace(
            task,
            avoid_device=task.avoid_device if verdict.blameless else device.number,
            cold_start=task.cold_start or verdict.outcome is not Outcome.LOST,
            needs_canary=task.needs_canary or needs_canary,
            due_s=0.0,
        )
        match step:
            case policy.Retry():
                self._retry(step, again, end, verdict, worker)
            case policy.Wait():
                if needs_canary and isinstance(worker.canary, OwnText):
                    failures.record(Repeated.UNANSWERED)
                of_all = waiting_device(verdict, device.number, device.node) is None
                self._pause(step.delay_s, again, verdict, None if of_all else device)
            case policy.Split():
                self._split(step.how, again, end, verdict)
            case policy.Quarantine():
                bad = self._keep_good_vectors(again, end, verdict) or task
                waiting = [each for each in self._unstored if isinstance(each, QuarantineTexts)]
                count = len(bad.texts) + sum(len(each.task.texts) for each in waiting)
                count += sum(each.bad_count for each in self._outputs)
                too_many = count > self._recovery.max_bad_rows
                if too_many or self._recovery.on_bad_row is OnBadRow.FAIL:
                    why = StopReason.BAD_ROWS
                    self._add(EndRun(Ending(ExitCode.CONFIG, why, end.worker, bad, verdict)))
                else:
                    self._add(QuarantineTexts(bad, verdict))
            case policy.GiveUp():
                failures.record(Repeated.GIVEN_UP)
                self._queue.leave_to_next_run(task.output, task.chunk)
            case policy.Stop():
                ending = Ending(step.code, step.why, end.worker, task, verdict)
                self._drop_device(device, ending, local=step.local)
                self._queue.put_back(again)  # for the other devices

    def _pause(
        self, delay_s: float, task: Task | None, verdict: Verdict, device: DeviceState | None
    ) -> None:
        """Pause on the device, or on all (None), and put the task back, if there is one."""
        now_s = self._clock()
        where = device.number if device else None
        waited_s = self._failures.since_first_s(verdict.outcome, where, now_s)
        self._failures.record(verdict.outcome, where, now_s=now_s)
        waits = device or self
        waits.paused_until_s = max(waits.paused_until_s, now_s + delay_s)
        self._add(ReportWait(where, delay_s, waited_s, verdict))
        if task:
            self._queue.put_back(task)

    def _history(
        self, task: Task, end: AttemptEnded, verdict: Verdict, worker: WorkerState
    ) -> policy.History:
        """Gather what the policy wants to know besides the verdict."""
        failures = self._failures
        now_s = self._clock()
        device = worker.device.number
        node = worker.device.node
        start = place_of_failed_start(verdict, device, node)
        starts = 0
        if end.began_s is not None:
            # A worker that was prepared ahead touches the device only from its gate on.
            starts = failures.count(Repeated.START, start, max(end.began_s, worker.gate_opened_s))
        # Each further device may fail as often as a chunk is tried.
        allowed = self._recovery.attempts * max(0, len(self.alive) - 1)
        fruitless = max(0, failures.count(Repeated.NO_PROGRESS) - allowed)
        if any(each.gate is GateState.PASSED for each in self.workers.values()):
            fruitless = 0  # a worker that has given its device back is about to write vectors
        return policy.History(
            texts=len(task.texts),
            charged_failures=task.charged_failures.count(verdict.outcome),
            canary=worker.canary,
            shortest_first=_tries_shortest_first(task),
            any_text_succeeded=end.any_text_succeeded,
            output_has_vectors=bool(end.done) or self._outputs[task.output].known_good is not None,
            succeeded_before=(
                start in failures.working_places
                if verdict.before_first_batch
                else task.output in failures.stored_outputs
            ),
            bisecting=task.bisecting,
            in_flight=sum(text in end.in_flight for text in task.texts),
            singly=task.singly,
            others=end.others,
            waited_s=failures.waited_s(
                verdict.outcome, waiting_device(verdict, device, node), now_s
            ),
            failing_s=failures.since_first_s(Repeated.START, start, now_s),
            failed_starts=starts,
            failed_canaries=failures.count(Repeated.CANARY, device, worker.gate_opened_s),
            given_up=failures.count(Repeated.GIVEN_UP),
            without_progress=fruitless,
            oom_singletons=failures.count(Repeated.OOM_SINGLETON, (task.output, task.chunk)),
        )

    def _retry(
        self,
        step: policy.Retry,
        task: Task,
        end: AttemptEnded,
        verdict: Verdict,
        worker: WorkerState,
    ) -> None:
        now_s = self._clock()
        device = worker.device
        due_s = now_s + step.delay_s if step.delay_s else 0.0
        if step.charge:
            task = replace(task, charged_failures=(*task.charged_failures, verdict.outcome))
        if step.limit:
            limit = self._failures.lower_limit(device.kind, step.limit)
            if limit:
                # If others held memory of the device, later runs need not know the limit.
                lasting = end.others in (OtherProcesses.UNKNOWN, OtherProcesses.NONE)
                self._add(LowerLimits(device.kind, limit, lasting))
        if step.counts is Repeated.OOM_SINGLETON:
            self._failures.record(Repeated.OOM_SINGLETON, (task.output, task.chunk))
        elif step.counts is Repeated.CANARY:
            self._failures.record(Repeated.CANARY, device.number, worker.gate_opened_s, now_s)
        elif step.counts is Repeated.START:
            if end.began_s is None:  # the template may be what is broken
                device.cold_start = True
            else:
                start = place_of_failed_start(verdict, device.number, device.node)
                self._failures.record(
                    Repeated.START, start, max(end.began_s, worker.gate_opened_s), now_s
                )
            device.paused_until_s = max(device.paused_until_s, due_s)
            # The device is free earlier than these texts are due: others are tried first, and show
            # whether the device, the model or chance was the cause.
            due_s += step.delay_s
        self._queue.put_back(replace(task, due_s=due_s))

    def _split(self, how: How, task: Task, end: AttemptEnded, verdict: Verdict) -> None:
        """Take the texts apart, and have the pieces tried."""
        texts = list(task.texts)
        if how is How.BAD:
            bad = self._keep_good_vectors(task, end, verdict)
            assert bad, verdict
            pieces = [replace(bad, singly=True)]
        elif how is How.SUSPECTS:
            suspects = [text for text in texts if text in end.in_flight]
            others = [text for text in texts if text not in end.in_flight]
            several = len(suspects) > 1
            suspected = task.subset(suspects, bisecting=True, singly=several)
            if not several and end.any_text_succeeded:
                # It was alone in its batch, in a proven attempt: that is its first failure.
                suspected = replace(suspected, charged_failures=(verdict.outcome,))
            pieces = [suspected]
            if others:
                pieces.append(task.subset(others, bisecting=True))
        else:
            middle = len(texts) // 2
            halves = (texts[:middle], texts[middle:])
            pieces = [task.subset(half, bisecting=True, singly=False) for half in halves]
        for piece in pieces:
            self._queue.put_back(piece)
        self._add(ReportSplit(task, tuple(pieces), how))

    def _keep_good_vectors(self, task: Task, end: AttemptEnded, verdict: Verdict) -> Task | None:
        """Have the good vectors stored; return a task of the texts with bad ones, if any."""
        if not verdict.bad_rows:
            return None
        bad = {task.texts[0] + row for row in verdict.bad_rows}
        good = [text for text in task.texts if text not in bad]
        if good:
            self._keep_vectors(end.worker, task.subset(good, bisecting=True))
        return task.subset(sorted(bad), bisecting=True)

    @property
    def unstored(self) -> set[int]:
        """The workers whose vectors wait for space on the disk."""
        return {each.worker for each in self._unstored if isinstance(each, KeepVectors)}

    def store_again(self) -> list[Instruction]:
        """Have what waits for space on the disk stored, once the pause is over."""
        now_s = self._clock()
        if not self._unstored or self._draining or now_s < self.paused_until_s:
            return []
        for device in self.alive:  # no device waits while something is stored
            self._open_gates(device, now_s)
        again = [*self._take_instructions(), *self._unstored]
        self._unstored.clear()
        return again

    def stored(
        self, instruction: KeepVectors | QuarantineTexts, problem: Verdict | None
    ) -> list[Instruction]:
        """Hear that vectors or verdicts are stored, or (`problem`) why they are not.

        What a full disk did not take is stored once there is space; after any other error the
        texts are encoded again.
        """
        now_s = self._clock()
        task = instruction.task
        output = self._outputs[task.output]
        if problem:
            if problem.has_no_space:
                self._unstored.append(instruction)
            waited_s = self._failures.waited_s(problem.outcome, None, now_s)
            step = policy.decide(problem, policy.History(waited_s=waited_s), self._recovery)
            if isinstance(step, policy.Wait):
                again = None if problem.has_no_space else task
                self._pause(step.delay_s, again, problem, None)
            else:
                ending = Ending(ExitCode.DISK, StopReason.HALTED, task=task, verdict=problem)
                self._add(EndRun(ending))
            return self._take_instructions()
        self._failures.note_stored(task.output, now_s)
        if output.bad_count >= output.texts:
            self._add(EndRun(Ending(ExitCode.CONFIG, StopReason.ALL_BAD, task=task)))
        return self._take_instructions()

    def chunk_invalidated(self, output: int, chunk: int) -> None:
        """Hear that stored vectors of the chunk were damaged, and are discarded."""
        self._queue.put_back_lost(output, chunk)

    # --- the end of a run

    def stop(self, until_s: float | None) -> list[Instruction]:
        """Start nothing new; be over by `until_s` (None = as long as it takes, -inf = at once)."""
        self._draining = True
        if until_s is not None:
            left_s = max(0.0, until_s - self._clock())
            self.last_s = until_s - min(RESERVE * left_s, RESERVE_S)
        self._drain(self._clock())
        return self._take_instructions()

    def _drain(self, now_s: float) -> None:
        """End workers that have no device yet; if time is limited, have the others stop in time."""
        for worker in self.workers.values():
            if worker.gate is GateState.SHUT or now_s >= self.last_s:
                self._end_worker(worker)
            elif (
                worker.gate is GateState.OPEN
                and self.last_s < math.inf
                and not (worker.asked_to_stop or worker.ending)
            ):
                worker.asked_to_stop = True
                self._add(AskToStop(worker.number))

    def _end_worker(self, worker: WorkerState) -> None:
        if not worker.ending:
            worker.ending = True
            self._add(EndWorker(worker.number))


def _tries_shortest_first(task: Task) -> bool:
    """Say whether the shortest of the texts is tried first.

    After a lack of GPU memory, that shows whether their length is the cause.
    """
    return len(task.texts) > 1 and Outcome.GPU_OOM in task.charged_failures
