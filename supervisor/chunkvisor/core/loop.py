"""The loop: reports what happens, executes instructions, and tells people.

It decides nothing. What happens is gathered once a turn; calls of workers are also answered before
anything that takes milliseconds, so that no device waits until another attempt's texts are written.
"""

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import assert_never

from chunkvisor import messages
from chunkvisor.config.choices import Start as StartKind
from chunkvisor.config.model import Config
from chunkvisor.core import policy
from chunkvisor.core.attempt import RunningAttempt
from chunkvisor.core.instructions import (
    AskToLeave,
    AttemptEnded,
    DropDevice,
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
from chunkvisor.core.output import OutputRun
from chunkvisor.core.reports import Reports
from chunkvisor.core.run import Run, WaitTeller
from chunkvisor.core.scheduler import Scheduler
from chunkvisor.core.store import ResultStore
from chunkvisor.devices.handles import (
    DeviceHandle,
    DeviceHandles,
    HealthReport,
    Reading,
    look_in_thread,
)
from chunkvisor.engine.engine import Engine
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events import event
from chunkvisor.judge import NODE_LOST, ONE_ROW, STATUS_LOST, EndedBy, Evidence, Verdict, judge
from chunkvisor.store.attempt import Salvage
from chunkvisor.store.disk import of_start, with_room
from chunkvisor.store.records import LessonFile
from chunkvisor.units import human_time
from chunkvisor_worker.contract.exits import Outcome, WorkerExit

_PAUSE_S = 0.25  # the loop looks around so often, even if no worker calls


class Loop:
    """Runs the pending chunks of all outputs on all devices."""

    def __init__(
        self,
        outputs: Sequence[OutputRun],
        config: Config,
        lessons: LessonFile,
        engine: Engine,
        store: ResultStore,
        run: Run,
        look: Callable[[str], Future[Reading]] = look_in_thread,
    ) -> None:
        """The caller closes the engine."""
        self._outputs, self._engine, self._workers, self._recovery = (
            outputs,
            engine,
            config.workers,
            config.recovery,
        )
        self._lessons, self._store, self._signals, self._emit = (
            lessons,
            store,
            run.signals,
            run.emit,
        )
        self._tick, self._clock = run.tick, run.clock
        self._handles = DeviceHandles(self._seen, run.emit, look)
        self._reports = Reports(outputs, self._handles, config.recovery, run.emit)
        self._waits = WaitTeller(run.emit, config.recovery.wait_timeout)
        self._opened = False  # the engine
        self._scheduler = Scheduler(outputs, config, lessons.get, run.clock)
        self._running: dict[int, RunningAttempt] = {}  # running workers, by number
        self._ended: dict[int, RunningAttempt] = {}  # those that have ended in this turn
        # of devices, since the last turn
        self._news: list[tuple[DeviceHandle, HealthReport | None, bool]] = []
        # (why, until when) the run ends, as reported last
        self._drains: tuple[str, float | None] | None = None

    def run(self) -> list[messages.GivenUp]:
        """Work until nothing is pending, or the run is asked to stop; returns the chunks given up.

        Raises Halt if every further worker would fail; OSError. Whatever happens, no worker is left
        behind.
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
        return self._reports.given_up

    def _pending(self) -> int:
        return sum(output.left for output in self._outputs)

    def _seen(self, handle: DeviceHandle, health_report: HealthReport | None, gone: bool) -> None:
        self._news.append((handle, health_report, gone))

    # --- turns

    def _turn(self) -> None:
        self._check_signals()
        if (
            not self._opened and self._pending()
        ):  # at the beginning, or once a chunk is found damaged
            self._opened = True
            self._engine.open(
                self._handles, self._pending, self._workers.per_device + self._workers.standby
            )
        self._engine.poll()
        self._handles.poll(self._pids)
        news, self._news = self._news, []
        for handle, health_report, gone in news:
            node, kind = handle.site.node, handle.device.model
            self._execute(
                self._scheduler.device_changed(handle.number, node, kind, health_report, gone=gone)
            )
        for slot in list(self._running.values()):
            self._poll(slot, self._clock())
        if self._clock() >= self._scheduler.last_s:
            self._store.stop()
        for output, chunk in self._store.poll():
            self._scheduler.chunk_invalidated(output, chunk)
        self._tick()
        held = [each.number for each in self._handles.alive if self._engine.holding(each)]
        self._execute(self._scheduler.tick(held))
        for (
            slot
        ) in self._ended.values():  # of a failed attempt, record and log are what is left to read
            slot.attempt.drop_bulk()
        self._ended.clear()

    def _check_signals(self) -> None:
        signals = self._signals
        if signals.draining and self._drains != (drains := (signals.why, signals.until_s)):
            self._drains = drains
            how = "finishing the chunks in progress"
            if signals.until_s is not None:
                how = (
                    f"saving within {human_time(max(0.0, signals.until_s - self._clock()))} what "
                    f"they have done"
                )
            self._emit(event.Draining(signals.why, how))
            self._execute(self._scheduler.stop(signals.until_s))
        if signals.stopping:
            self._execute(self._scheduler.stop(-math.inf))

    def _sleep(self) -> None:
        watched = (fd for slot in self._running.values() for fd in slot.worker.watched())
        self._signals.sleep(_PAUSE_S, [*self._engine.watched(), *watched])

    def _answer_calls(self) -> None:
        """Give devices that were given back meanwhile to the next worker."""
        now_s = self._clock()
        for slot in self._running.values():
            self._hear(slot, now_s)

    def _hear(self, slot: RunningAttempt, now_s: float) -> None:
        if (freed := slot.heard(now_s)) is not None:
            self._execute(self._scheduler.worker_called(slot.number, freed=freed))

    def _pids(self) -> dict[int, frozenset[int]]:
        """Name the workers that have each device, or have just given it back."""
        pairs = [
            (slot.handle.number, slot.worker.pid)
            for slot in self._running.values()
            if slot.go_s is not None
        ]
        return {number: frozenset(pid for at, pid in pairs if at == number) for number, _ in pairs}

    # --- workers

    def _poll(self, slot: RunningAttempt, now_s: float) -> None:
        returncode = slot.worker.poll()
        if returncode is not None:
            self._conclude(slot, returncode, now_s)
            return
        self._hear(slot, now_s)
        slot.poll(now_s, self._recovery)
        if slot.stuck(now_s):
            raise Halt(
                ExitCode.MACHINE,
                f"worker {slot.worker.pid} of {slot.names[0]} chunk {slot.task.chunk} cannot be "
                f"killed",
                "Reboot the machine, then run the same command again.",
                why="it hangs inside the kernel (D state): the GPU driver or the disk is stuck",
                log=slot.attempt.files.log,
            )

    def _conclude(self, slot: RunningAttempt, returncode: int, now_s: float) -> None:
        """Judge a worker that has ended."""
        del self._running[slot.number]
        self._ended[slot.number] = slot
        self._scheduler.worker_exited(slot.number)
        self._emit(event.WorkerEnded(*slot.names, returncode, **slot.figures(now_s)))
        # The end of a warm worker that never had the device is its template's doing, not a text's.
        unused = slot.worker.warm and slot.go_s is None and slot.ended_by is EndedBy.ITSELF
        if unused and returncode in (WorkerExit.TAINTED_TEMPLATE, STATUS_LOST):
            slot.attempt.remove()
            self._execute(self._scheduler.attempt_finished(AttemptEnded(slot.number, None)))
            return
        if returncode == NODE_LOST:
            # That its device was dropped is how we heard of it, and not why it ended.
            slot.ended_by = EndedBy.ITSELF
            slot.ended_why = f"{slot.handle} was lost"
        elif returncode == WorkerExit.ORPHANED and slot.leaving and slot.ended_by is EndedBy.ITSELF:
            slot.ended_by = EndedBy.STOP
        elif returncode == 0:
            # After any other end the verdict comes before the next `go`: it may have something to
            # teach.
            self._execute(self._scheduler.worker_called(slot.number, freed=True))
        self._answer_calls()  # all of its vectors are read now
        others = (
            each
            for each in self._running.values()
            if each.has_device and each.handle is slot.handle
        )
        siblings = frozenset(each.worker.pid for each in others)
        ended = _judged(slot, returncode, self._outputs[slot.task.output], siblings, self._emit)
        if slot.go_s is not None:
            slot.handle.alone = False  # what is on it may have changed since the last look
        self._execute(self._scheduler.attempt_finished(ended))

    def _end_all(self) -> None:
        """End the workers that are left after a halt: politely, then by force.

        Gives up on one in the kernel.
        """
        slots = self._running
        while slots and not all(slot.stuck(self._clock()) for slot in slots.values()):
            now_s = self._clock()
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
                    self._engine.poll()

    # --- instructions

    def _execute(self, instructions: Iterable[Instruction]) -> None:
        """Do what the scheduler says, to the end. Raises Halt; OSError."""
        todo = deque(instructions)
        while todo:
            todo.extend(self._do(todo.popleft()))

    def _do(self, instruction: Instruction) -> Sequence[Instruction]:  # noqa: C901 - a case for each
        """Execute it; returns what the scheduler says to what came of it."""
        slots = self._running
        match instruction:
            case StartWorker():
                return self._start(instruction)
            case OpenGate(worker, limits):
                slot = slots[worker]
                slot.go(limits, self._clock())
                self._store.first_go_s = self._store.first_go_s or slot.go_s
                self._emit(event.Go(*slot.names, limits.rows, limits.tokens))
            case AskToLeave(worker):
                if worker in slots:
                    slots[worker].leaving = True
                    slots[worker].worker.leave()
                    self._emit(event.WorkerLeaving(*slots[worker].names))
            case EndWorker(worker):
                if worker in slots:
                    slots[worker].end(EndedBy.STOP, "", self._clock())
            case KeepVectors(worker, task):
                self._answer_calls()
                slot = self._ended[worker]
                return self._stored(
                    task, self._store.keep(task, slot.attempt, salvaged=not slot.has_result)
                )
            case QuarantineTexts(task, verdict):
                self._answer_calls()
                return self._stored(task, self._store.quarantine(task, verdict))
            case PlanOutput(output):
                self._store.plan(output)
            case LookAtDevice(device):
                self._handles[device].ask()
            case DropDevice(ending):
                assert ending.device is not None, ending
                # If it is the last of a cluster, the run ends so unless another one joins.
                last = len(self._handles.alive) == 1
                halt = self._reports.halt_of(
                    ending, self._ended.get(ending.worker), dropped=not last
                )
                self._handles.leave(ending.device, halt)
            case EndRun(ending):
                raise self._reports.halt_of(ending, self._ended.get(ending.worker))
            case LowerLimits(kind, limit, lasting):
                if lasting:
                    self._lessons.save(kind, *limit)
                self._reports.lower_limits(instruction)
            case TellFailure():
                self._failed(instruction)
            case TellSplit():
                self._reports.split(instruction)
            case TellWait(device_or_all, delay_s, waited_s, verdict):
                self._waits.tell(delay_s, waited_s, verdict.reason, verdict.outcome, device_or_all)
            case _:
                assert_never(instruction)
        return ()

    def _start(self, start: StartWorker) -> Sequence[Instruction]:
        self._answer_calls()
        task, handle = start.task, self._handles[start.device]
        output = self._outputs[task.output]
        try:
            attempt = output.new_attempt(task, handle, start.limits, start.canary)
            # CUDA_LAUNCH_BLOCKING=1, so that the traceback names the kernel that failed.
            blocking = task.charged_failures[-1:] == (Outcome.DEVICE_FAULT,)
            process = self._engine.start(
                handle,
                attempt.files,
                attempt.spec,
                fresh=task.cold_start,
                blocking_launches=blocking,
            )
        except OSError as error:
            if (gone := output.gone(error)) is not None:
                raise gone from error
            outcome, remedy = of_start(error)
            reason = f"no worker could be started: {error}"
            if outcome is Outcome.DISK_FULL:
                reason = with_room(reason, output.workdir)
            # A batch of one row, so that the policy does not take it for a matter of batches.
            verdict = Verdict(outcome, reason, remedy, limits=ONE_ROW, batch_rows=1)
            return self._scheduler.attempt_finished(AttemptEnded(start.worker, verdict))
        slot = RunningAttempt(
            start.worker, task, handle, attempt, process, start.limits, self._clock()
        )
        self._running[start.worker] = slot
        kind = StartKind.WARM if process.warm else StartKind.FRESH
        self._emit(event.AttemptStarted(*slot.names, process.pid, handle.number, str(kind)))
        return ()

    def _stored(self, task: Task, problem: Verdict | None) -> Sequence[Instruction]:
        follows = self._scheduler.stored(task, problem)
        if problem is None and not self._store.compose(task.output, task.chunk):
            self._scheduler.chunk_invalidated(task.output, task.chunk)
        return follows

    def _failed(self, told: TellFailure) -> None:
        slot, verdict = self._ended.get(told.worker), told.verdict
        if slot is not None:
            slot.attempt.note(verdict)
        self._reports.failure(told, slot)
        # Who held the memory all through the wait stays: the next batch does not wait for them
        # again.
        in_vain = verdict.outcome is Outcome.GPU_OOM and not isinstance(told.step, policy.Wait)
        if in_vain and verdict.figures is not None and slot is not None:
            slot.handle.get_used_to(verdict.figures.others_bytes)


def _judged(
    slot: RunningAttempt,
    returncode: int,
    output: OutputRun,
    siblings: frozenset[int],
    emit: event.Emit,
) -> AttemptEnded:
    """Say what became of the attempt, and what it has left.

    `siblings` are our other workers on its device, by pid.
    """
    attempt, spec = slot.attempt, slot.attempt.spec
    oom_kills = slot.worker.oom_kills()
    end = Evidence(
        returncode, slot.ended_by, slot.ended_why, oom_kills=oom_kills, limits=slot.limits
    )
    verdict = judge(attempt.gather(end))
    if returncode not in (0, STATUS_LOST) and verdict.outcome is Outcome.COMMITTED:
        emit(event.LateCrash(output.name, slot.task.chunk, returncode))
    slot.has_result = verdict.outcome in (Outcome.COMMITTED, Outcome.BAD_OUTPUT)
    # With a result, what is wrong is known; if its form is wrong, no batch of it can be believed.
    left = Salvage() if slot.has_result else attempt.salvage()
    if (
        verdict.outcome is Outcome.DISK_FULL and not slot.handle.site.node
    ):  # the disks of another machine are not ours
        temporary = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - what is there
        verdict = replace(verdict, reason=with_room(verdict.reason, output.workdir, temporary))
    some_good = 0 < len(verdict.bad_rows) < len(slot.task.texts)
    return AttemptEnded(
        slot.number,
        verdict,
        slot.handle.company(verdict.figures, siblings),
        # A first try from a template proves little: the next one, in a new interpreter, tells more.
        began_s=slot.started_s if slot.task.cold_start or not slot.worker.warm else None,
        done=frozenset(spec.start + row for row in left.done),
        in_flight=frozenset(spec.start + row for row in left.under_way),
        any_text_succeeded=bool(left.done) or some_good or attempt.canary_passed(),
    )
