"""Says what a run does next.

Pure: it learns what happens, and looks only at the clock and the outputs.

Whatever it hears, it answers with instructions, in order.
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
    AskToLeave,
    AttemptEnded,
    DropDevice,
    Ending,
    EndRun,
    EndWorker,
    Instruction,
    KeepVectors,
    LookAtDevice,
    LowerLimits,
    OpenGate,
    PlanOutput,
    QuarantineTexts,
    StartWorker,
    Task,
    TellFailure,
    TellSplit,
    TellWait,
)
from chunkvisor.core.policy import (
    Canary,
    FailureHistory,
    How,
    KnownText,
    OwnText,
    Repeated,
    cause_of,
    start_of,
)
from chunkvisor.devices.handles import Health, HealthReport
from chunkvisor.errors import ExitCode, StopReason
from chunkvisor.judge import OtherProcesses, Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, Phase

if TYPE_CHECKING:
    from chunkvisor.core.output import OutputRun

LOOK_PAUSE_S = 2.0  # between two looks at a device that is not fit
# of the time until a run has to end, kept for what follows the last worker; at most
RESERVE, RESERVE_S = (
    0.2,
    10.0,
)


class TaskQueue:
    """What is pending: a position in each output, and what was put back."""

    def __init__(self, outputs: "Sequence[OutputRun]") -> None:
        self._outputs = outputs
        self._next = [0] * len(outputs)
        self._again: list[Task] = []
        self._left: set[tuple[int, int]] = set()  # chunks left to the next run

    def put_back(self, task: Task) -> None:
        """Have the texts tried, or tried again."""
        if (task.output, task.chunk) not in self._left:
            insort(
                self._again,
                task,
                key=lambda each: (each.due_s, each.output, each.texts[0], each.texts[-1]),
            )

    def lost(self, output: int, chunk: int) -> None:
        """Note that something stored of the chunk is gone."""
        if chunk < self._next[output] and (texts := self._outputs[output].missing(chunk)):
            self.put_back(Task(output, chunk, tuple(texts)))

    def leave(self, output: int, chunk: int) -> None:
        """Leave what is pending of the chunk to the next run, and what still comes back."""
        self._left.add((output, chunk))
        self._again = [task for task in self._again if (task.output, task.chunk) != (output, chunk)]

    def take(self, now_s: float, device: int, *, alone: bool) -> Task | None:
        """Take the next that may start on this device.

        What failed last on this device is left for others unless the device is `alone`.
        """
        # While no text of the output has a vector, a chunk that failed may be bad throughout:
        # another one may show that the model works, and gives a canary.
        any_new = self._any_new()
        for position in range(bisect_right(self._again, now_s, key=lambda task: task.due_s)):
            task = self._again[position]
            if any_new and task.needs_canary and self._outputs[task.output].known_good is None:
                continue
            if alone or task.avoid_device != device:
                return self._again.pop(position)
        for number, output in enumerate(self._outputs):
            if (chunk := output.next_pending(self._next[number])) is not None:
                self._next[number] = chunk + 1
                # A range costs nothing to hold; a tuple of the texts of 50,000 chunks would.
                missing, whole = output.missing(chunk), range(*output.bounds(chunk))
                return Task(number, chunk, whole if len(missing) == len(whole) else tuple(missing))
        return None

    def pending(self) -> set[int]:
        """Name the outputs of which something is pending, or that are not planned yet."""
        return {task.output for task in self._again} | {
            number
            for number, output in enumerate(self._outputs)
            if output.waits_for or output.next_pending(self._next[number]) is not None
        }

    def _any_new(self) -> bool:
        return any(
            output.next_pending(at) is not None
            for output, at in zip(self._outputs, self._next, strict=True)
        )


class GateState(Enum):
    """Where a worker stands before its device."""

    SHUT = "shut"
    OPEN = "open"
    PASSED = "passed"  # it has given its device back


@dataclass(slots=True, eq=False)
class WorkerState:
    """From the order to start it to its judged end."""

    number: int
    task: Task
    device: "DeviceState"
    canary: Canary | None = None
    gate: GateState = GateState.SHUT
    ready: bool = False
    ending: bool = False  # or ended already, and not judged yet
    leaving: bool = False
    go_s: float = -math.inf


@dataclass(slots=True, eq=False)
class DeviceState:
    """One device, until its last worker has ended."""

    number: int
    node: str  # the machine of a cluster that it belongs to; empty for our own
    kind: str
    watched: bool  # there is something to look with
    gone: bool = False
    paused_until_s: float = 0.0
    needs_canary: bool = False  # the last attempt on it failed: the next begins with a canary
    cold_start: bool = False  # a worker from a template did not start on it
    suspected_s: float | None = None
    """Since when it is to be looked at before the next worker gets it."""
    look_s: float = 0.0  # when it may be looked at; inf = it is being looked at
    workers: list[WorkerState] = field(default_factory=list)

    def at(self, *gates: GateState) -> int:
        """Count its workers that stand there."""
        return sum(worker.gate in gates for worker in self.workers)


class Scheduler:
    """Runs the pending texts of all outputs on all devices."""

    def __init__(
        self,
        outputs: "Sequence[OutputRun]",
        config: Config,
        recall: Callable[[str], tuple[int, int | None] | None],
        clock: Callable[[], float],
    ) -> None:
        """`recall` has what earlier runs learnt of each kind of device."""
        self._outputs, self._clock = outputs, clock
        self._workers, self._recovery = config.workers, config.recovery
        self._failures = FailureHistory(recall)
        self._queue = TaskQueue(outputs)
        self.devices: dict[int, DeviceState] = {}
        self.workers: dict[int, WorkerState] = {}
        self.paused_until_s = 0.0
        self._started = 0
        self._instructions: list[Instruction] = []
        self._draining = False
        self._planned = set[int]()  # outputs whose turn was told
        self.last_s = math.inf  # when the workers have to be gone

    @property
    def finished(self) -> bool:
        """Whether nothing is in progress, and nothing left to do."""
        return not self.workers and (self._draining or not self._queue.pending())

    @property
    def alive(self) -> list[DeviceState]:
        """The devices that are left to the run."""
        return [device for device in self.devices.values() if not device.gone]

    def _take_instructions(self) -> list[Instruction]:
        said, self._instructions = self._instructions, []
        return said

    def _add(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)

    # --- turns: who gets which texts, and who its device

    def tick(self, held: Collection[int] = ()) -> list[Instruction]:
        """Take a turn; on devices that are `held`, nothing is to be started yet."""
        now_s, alive = self._clock(), self.alive
        if self._draining:
            self._drain(now_s)
            return self._take_instructions()
        self._plan_outputs()
        working = [each for each in alive if now_s >= max(each.paused_until_s, self.paused_until_s)]
        for device in working:
            self._open_gates(device, now_s)
        # Each time that memory of the machine ran out, one worker less is prepared ahead.
        places = self._workers.per_device + max(0, self._workers.standby - self._failures.host_ooms)
        for place in range(places):  # every device gets its first worker before any gets a second
            for device in working:
                if device.at(GateState.SHUT, GateState.OPEN) > place or device.number in held:
                    continue
                if (
                    task := self._queue.take(now_s, device.number, alone=len(working) == 1)
                ) is not None:
                    self._start(task, device)
        return self._take_instructions()

    def _plan_outputs(self) -> None:
        """Say once of each output that waits for others that these are settled.

        What is given up is settled, too.
        """
        waiting = {number for number, each in enumerate(self._outputs) if each.waits_for}
        if not waiting - self._planned:
            return
        unsettled = self._queue.pending() | {each.task.output for each in self.workers.values()}
        for number in sorted(waiting - self._planned):
            if unsettled.isdisjoint(self._outputs[number].waits_for):
                self._planned.add(number)
                self._add(PlanOutput(number))

    def _start(self, task: Task, device: DeviceState) -> None:
        canary: Canary | None = None
        if device.needs_canary or task.needs_canary:
            canary = self._canary(task, device)
        # A template that failed to start on a device may be what is broken: the next worker gets a
        # new interpreter.
        task = replace(task, cold_start=task.cold_start or device.cold_start)
        self._started += 1
        worker = WorkerState(self._started, task, device, canary)
        self.workers[worker.number] = worker
        device.workers.append(worker)
        self._add(StartWorker(worker.number, device.number, task, self._limits(worker), canary))

    def _canary(self, task: Task, device: DeviceState) -> Canary:
        """Choose a text that is known to be good.

        Else one of its own, each time another: it may be bad itself.
        """
        if _shows_its_shortest(task):
            chunk = task.output, task.chunk
            return OwnText(self._failures.count(Repeated.OOM_SINGLETON, chunk))
        good = self._outputs[task.output].known_good
        if good is not None:
            return KnownText(good)
        return OwnText(self._failures.count(Repeated.CANARY, device.number))

    def _limits(self, worker: WorkerState) -> Limits:
        limits = self._failures.limits(self._outputs[worker.task.output].limits, worker.device.kind)
        return replace(limits, rows=1, alone=True) if worker.task.singly else limits

    def worker_called(self, number: int, *, freed: bool) -> list[Instruction]:
        """Hear that the worker waits at the gate, or (`freed`) has given its device back."""
        if (worker := self.workers.get(number)) is not None:
            worker.ready = True
            worker.gate = GateState.PASSED if freed else worker.gate
            self._open_gates(worker.device, self._clock())
        return self._take_instructions()

    def _open_gates(self, device: DeviceState, now_s: float) -> None:
        if self._draining or device.gone or now_s < max(device.paused_until_s, self.paused_until_s):
            return
        waiting = [
            each
            for each in device.workers
            if each.ready and each.gate is GateState.SHUT and not each.ending
        ]
        for worker in waiting[: max(0, self._workers.per_device - device.at(GateState.OPEN))]:
            # Something failed on it that can come from the device: nothing runs there before
            # nvidia-smi has been asked.
            if device.suspected_s is not None:
                if now_s >= device.look_s:
                    device.look_s = math.inf
                    self._add(LookAtDevice(device.number))
                return
            worker.gate, worker.go_s = GateState.OPEN, now_s
            self._add(OpenGate(worker.number, self._limits(worker)))

    def worker_exited(self, number: int) -> None:
        """Hear that the worker has ended; how, comes later: until then no gate is opened for it."""
        self.workers[number].ending = True

    # --- devices

    def device_changed(
        self, number: int, node: str, kind: str, health_report: HealthReport | None, *, gone: bool
    ) -> list[Instruction]:
        """Hear that a device may be worked on, was looked at, or is gone.

        Devices of one `kind` share what is learnt. No opinion: there is nothing to look with.
        """
        device = self.devices.get(number)
        if device is not None and gone:
            self._leave(device)
        elif device is not None and health_report is not None and device.suspected_s is not None:
            self._looked(device, health_report, device.suspected_s)
        elif device is None and not gone:
            self.devices[number] = device = DeviceState(
                number, node, kind, health_report is not None
            )
            if health_report is not None and health_report.health is Health.BROKEN:
                # Others may be about to join: it is looked at again before a worker gets it.
                device.suspected_s = self._clock()
        return self._take_instructions()

    def _looked(self, device: DeviceState, health_report: HealthReport, since_s: float) -> None:
        now_s = self._clock()
        device.look_s = now_s + LOOK_PAUSE_S
        if health_report.health is Health.BROKEN:
            verdict = Verdict(Outcome.HARDWARE_FAULT, health_report.why)
            self._do_without(
                device, Ending(ExitCode.MACHINE, StopReason.BROKEN, verdict=verdict), local=True
            )
        elif health_report.health is Health.BUSY:
            if now_s - max(since_s, self._failures.success_s) > self._recovery.wait_timeout:
                verdict = Verdict(Outcome.GPU_BUSY, health_report.why)
                self._do_without(
                    device, Ending(ExitCode.TRY_AGAIN, StopReason.BUSY, verdict=verdict), local=True
                )
        else:
            device.suspected_s = None
            device.look_s = now_s
            self._open_gates(device, now_s)

    def _leave(self, device: DeviceState) -> None:
        # It stays known until its last worker has ended, so that their ends are judged like all
        # others.
        device.gone = True
        for worker in device.workers:
            self._end(worker)
        self._tidy(device)

    def _tidy(self, device: DeviceState) -> None:
        if device.gone and not device.workers:
            self.devices.pop(device.number, None)

    def _do_without(self, device: DeviceState, ending: Ending, *, local: bool) -> None:
        """Do without the device; end the run if it is the last one here, or not `local`."""
        # On our own machine the set-up and the disk are those of every device.
        of_machine = ending.why is StopReason.HALTED and ending.code in (
            ExitCode.CONFIG,
            ExitCode.DISK,
        )
        if not local or (of_machine and not device.node):
            self._add(EndRun(ending))
        elif not device.gone:
            ending, last = replace(ending, device=device.number), len(self.alive) == 1
            # On a cluster others may join.
            self._add(EndRun(ending) if last and not device.node else DropDevice(ending))
            self._leave(device)

    # --- ends

    def attempt_finished(self, end: AttemptEnded) -> list[Instruction]:
        """Hear what became of a worker."""
        worker, verdict, now_s = self.workers.pop(end.worker), end.verdict, self._clock()
        device, task = worker.device, worker.task
        device.workers.remove(worker)
        self._tidy(device)
        if verdict is None:
            self._queue.put_back(replace(task, cold_start=True))
        elif verdict.outcome is Outcome.COMMITTED:
            # It has worked: the next attempt needs no canary, and may come from the template again.
            device.needs_canary = device.cold_start = False
            self._failures.encoded(device.number, device.node)
            self._keep(end.worker, task)
        else:
            if worker.gate is not GateState.SHUT and verdict.can_touch_gpu and device.watched:
                device.suspected_s = now_s if device.suspected_s is None else device.suspected_s
            left = task.texts
            if end.done:
                # Before the decision: what it has brought counts, though the disk has not answered
                # yet. Otherwise a run could end for want of any vector with the first one in its
                # hands.
                self._failures.stored(task.output, now_s)
                self._keep(
                    end.worker,
                    task.subset([text for text in task.texts if text in end.done], bisecting=True),
                )
                left = [text for text in task.texts if text not in end.done]
            if left:
                rest = (
                    task.subset(left, charged_failures=task.charged_failures) if end.done else task
                )
                self._fail(rest, end, verdict, worker)
            else:
                self._add(TellFailure(end.worker, task, verdict, None, ()))
        # The verdict comes before the next `go` of the device: it may have something to teach.
        self._open_gates(device, now_s)
        return self._take_instructions()

    def _keep(self, worker: int, task: Task) -> None:
        self._failures.forget(Repeated.OOM_SINGLETON, (task.output, task.chunk))
        self._add(KeepVectors(worker, task))

    def _fail(self, task: Task, end: AttemptEnded, verdict: Verdict, worker: WorkerState) -> None:
        """Carry out what follows of an attempt that failed."""
        memory, device = self._failures, worker.device
        step = policy.decide(verdict, self._history(task, end, verdict, worker), self._recovery)
        suspects = tuple(text for text in task.texts if text in end.in_flight)
        self._add(TellFailure(end.worker, task, verdict, step, suspects))
        # Remembered for the whole run: whoever prepares workers ahead takes the memory that was
        # short.
        memory.host_ooms += verdict.outcome is Outcome.HOST_OOM
        if policy.fruitless(step, verdict, len(task.texts)):
            memory.note(Repeated.NO_PROGRESS)
        # A wait, a lesson and a start that failed say nothing of the texts.
        passing = isinstance(step, policy.Wait) or (
            isinstance(step, policy.Retry) and step.limit is not None
        )
        needs_canary = verdict.row_can_cause and not (passing or verdict.before_first_batch)
        needs_canary = needs_canary and verdict.outcome is not Outcome.BAD_INPUT
        device.needs_canary = device.needs_canary or needs_canary
        if verdict.phase in (Phase.FORWARD, Phase.WRITE, Phase.DONE):  # it got to its first batch
            device.cold_start = False
            memory.started(device.number, device.node, verdict.outcome)
        if end.any_text_succeeded:
            memory.forget(Repeated.CANARY, device.number)
        avoid_device = task.avoid_device if verdict.blameless else device.number
        cold_start = task.cold_start or verdict.outcome is not Outcome.LOST
        again = replace(
            task,
            avoid_device=avoid_device,
            cold_start=cold_start,
            needs_canary=task.needs_canary or needs_canary,
            due_s=0.0,
        )
        match step:
            case policy.Retry():
                self._retry(step, again, end, verdict, worker)
            case policy.Wait():
                where = cause_of(verdict, device.number, device.node)
                self._wait(step.delay_s, again, verdict, device if where is not None else None)
            case policy.Split():
                self._split(step.how, again, end, verdict)
            case policy.Quarantine():
                bad = self._keep_good(again, end, verdict) or task
                count = len(bad.texts) + sum(each.bad_count for each in self._outputs)
                if (
                    self._recovery.on_bad_row is OnBadRow.FAIL
                    or count > self._recovery.max_bad_rows
                ):
                    self._add(
                        EndRun(
                            Ending(ExitCode.CONFIG, StopReason.BAD_ROWS, end.worker, bad, verdict)
                        )
                    )
                else:
                    self._add(QuarantineTexts(bad, verdict))
            case policy.GiveUp():
                memory.note(Repeated.GIVEN_UP)
                self._queue.leave(task.output, task.chunk)
            case policy.Stop():
                self._do_without(
                    device, Ending(step.code, step.why, end.worker, task, verdict), local=step.local
                )
                self._queue.put_back(again)  # for the other devices

    def _wait(
        self, delay_s: float, task: Task, verdict: Verdict, device: DeviceState | None
    ) -> None:
        """Pause on the device, or (None) everywhere."""
        now_s, where = self._clock(), device.number if device is not None else None
        waited_s = self._failures.lasts_s(verdict.outcome, where, now_s)
        self._failures.note(verdict.outcome, where, now_s=now_s)
        waits = device if device is not None else self
        waits.paused_until_s = max(waits.paused_until_s, now_s + delay_s)
        self._add(TellWait(where, delay_s, waited_s, verdict))
        self._queue.put_back(task)

    def _history(
        self, task: Task, end: AttemptEnded, verdict: Verdict, worker: WorkerState
    ) -> policy.History:
        memory, now_s, device, node = (
            self._failures,
            self._clock(),
            worker.device.number,
            worker.device.node,
        )
        start, chunk = start_of(verdict, device, node), (task.output, task.chunk)
        starts = 0
        if end.began_s is not None:
            # What goes wrong on the device begins with its `go`, however long before that it was
            # prepared.
            starts = memory.count(Repeated.START, start, max(end.began_s, worker.go_s))
        # Every device may fail as often as a chunk is tried, without a success in between.
        fruitless = memory.count(Repeated.NO_PROGRESS) - self._recovery.attempts * max(
            0, len(self.alive) - 1
        )
        if any(each.gate is GateState.PASSED for each in self.workers.values()):
            fruitless = 0  # that one has given its device back: it is about to bring vectors
        return policy.History(
            texts=len(task.texts),
            charged_failures=task.charged_failures.count(verdict.outcome),
            canary=worker.canary,
            shortest_first=_shows_its_shortest(task),
            any_text_succeeded=end.any_text_succeeded,
            output_has_vectors=bool(end.done) or self._outputs[task.output].known_good is not None,
            succeeded_before=start in memory.sound
            if verdict.before_first_batch
            else task.output in memory.worked,
            bisecting=task.bisecting,
            in_flight=sum(text in end.in_flight for text in task.texts),
            singly=task.singly,
            others=end.others,
            waited_s=memory.waited_s(verdict.outcome, cause_of(verdict, device, node), now_s),
            failing_s=memory.lasts_s(Repeated.START, start, now_s),
            failed_starts=starts,
            failed_canaries=memory.count(Repeated.CANARY, device, worker.go_s),
            given_up=memory.count(Repeated.GIVEN_UP),
            without_progress=max(0, fruitless),
            oom_singletons=memory.count(Repeated.OOM_SINGLETON, chunk),
        )

    def _retry(
        self,
        step: policy.Retry,
        task: Task,
        end: AttemptEnded,
        verdict: Verdict,
        worker: WorkerState,
    ) -> None:
        now_s, device = self._clock(), worker.device
        due_s = now_s + step.delay_s if step.delay_s else 0.0
        if step.charge:
            task = replace(task, charged_failures=(*task.charged_failures, verdict.outcome))
        if (
            step.limit is not None
            and (limit := self._failures.lower(device.kind, step.limit)) is not None
        ):
            # Later runs should not know what is so only while others hold memory.
            lasting = end.others in (OtherProcesses.UNKNOWN, OtherProcesses.NONE)
            self._add(LowerLimits(device.kind, limit, lasting))
        if step.counts is Repeated.OOM_SINGLETON:
            self._failures.note(Repeated.OOM_SINGLETON, (task.output, task.chunk))
        elif step.counts is Repeated.CANARY:
            self._failures.note(Repeated.CANARY, device.number, worker.go_s, now_s)
        elif step.counts is Repeated.START:
            if end.began_s is None:  # a template did not start
                device.cold_start = True
            else:
                start = start_of(verdict, device.number, device.node)
                self._failures.note(Repeated.START, start, max(end.began_s, worker.go_s), now_s)
            device.paused_until_s = max(device.paused_until_s, due_s)
            due_s += (
                step.delay_s
            )  # others first: they show whether it is the device, the model, or chance
        self._queue.put_back(replace(task, due_s=due_s))

    def _split(self, how: How, task: Task, end: AttemptEnded, verdict: Verdict) -> None:
        texts = list(task.texts)
        if how is How.BAD:
            bad = self._keep_good(task, end, verdict)
            assert bad is not None, verdict
            pieces = [replace(bad, singly=True)]
        elif how is How.SUSPECTS:
            suspects = [text for text in texts if text in end.in_flight]
            others = [text for text in texts if text not in end.in_flight]
            alone = len(suspects) == 1
            # In a batch by itself after a proof, it was alone just now.
            charged_failures = (verdict.outcome,) if alone and end.any_text_succeeded else ()
            pieces = [
                task.subset(
                    suspects, bisecting=True, singly=not alone, charged_failures=charged_failures
                )
            ]
            pieces += [task.subset(others, bisecting=True)] if others else []
        else:
            middle = len(texts) // 2
            pieces = [
                task.subset(half, bisecting=True, singly=False)
                for half in (texts[:middle], texts[middle:])
            ]
        for piece in pieces:
            self._queue.put_back(piece)
        self._add(TellSplit(task, tuple(pieces), how))

    def _keep_good(self, task: Task, end: AttemptEnded, verdict: Verdict) -> Task | None:
        """Have the good vectors stored, and give the texts whose vectors are bad.

        None if it is not vectors.
        """
        bad = {task.texts[0] + row for row in verdict.bad_rows}
        if good := [text for text in task.texts if bad and text not in bad]:
            self._keep(end.worker, task.subset(good, bisecting=True))
        return task.subset(sorted(bad), bisecting=True) if bad else None

    def stored(self, task: Task, problem: Verdict | None) -> list[Instruction]:
        """Hear that vectors, or verdicts, are on the disk.

        With a `problem`, the disk would not take them.
        """
        now_s, output = self._clock(), self._outputs[task.output]
        if problem is not None:  # they are computed again
            waited_s = self._failures.waited_s(problem.outcome, None, now_s)
            step = policy.decide(problem, policy.History(waited_s=waited_s), self._recovery)
            if isinstance(step, policy.Wait):
                self._wait(step.delay_s, task, problem, None)
            else:
                self._add(
                    EndRun(Ending(ExitCode.DISK, StopReason.HALTED, task=task, verdict=problem))
                )
            return self._take_instructions()
        self._failures.stored(task.output, now_s)
        if output.bad_count >= output.texts:
            self._add(EndRun(Ending(ExitCode.CONFIG, StopReason.ALL_BAD, task=task)))
        return self._take_instructions()

    def chunk_invalidated(self, output: int, chunk: int) -> None:
        """Hear that something that was stored of the chunk is damaged, and was discarded."""
        self._queue.lost(output, chunk)

    # --- the end of a run

    def stop(self, until_s: float | None) -> list[Instruction]:
        """Start nothing new; be done by then (None = as long as it takes, -inf = at once)."""
        self._draining = True
        if until_s is not None:
            left_s = max(0.0, until_s - self._clock())
            self.last_s = until_s - min(RESERVE * left_s, RESERVE_S)
        self._drain(self._clock())
        return self._take_instructions()

    def _drain(self, now_s: float) -> None:
        """Have workers leave if time is limited, and end those that are left when it is over."""
        for worker in self.workers.values():
            if worker.gate is GateState.SHUT or now_s >= self.last_s:
                self._end(worker)
            elif (
                worker.gate is GateState.OPEN
                and self.last_s < math.inf
                and not (worker.leaving or worker.ending)
            ):
                worker.leaving = True
                self._add(AskToLeave(worker.number))

    def _end(self, worker: WorkerState) -> None:
        if not worker.ending:
            worker.ending = True
            self._add(EndWorker(worker.number))


def _shows_its_shortest(task: Task) -> bool:
    """Say whether the shortest of texts that lacked GPU memory is tried first.

    It shows whether their length is the cause.
    """
    return len(task.texts) > 1 and Outcome.GPU_OOM in task.charged_failures
