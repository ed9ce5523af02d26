"""The loop of a run: tells the scheduler what happens, and does what it answers.

It decides nothing. In each turn it looks at everything that can have happened. It answers calls of
workers also before each thing that takes milliseconds, such as writing the texts of an attempt: a
device would have nothing to do meanwhile.
"""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import assert_never

from chunkvisor import messages
from chunkvisor.config.choices import Start as StartKind
from chunkvisor.config.model import Config
from chunkvisor.core import policy
from chunkvisor.core.attempt import RunningAttempt
from chunkvisor.core.instructions import (
    AskToStop,
    AttemptEnded,
    DropDevice,
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
)
from chunkvisor.core.output import OutputRun
from chunkvisor.core.reports import Reports
from chunkvisor.core.run import Run, WaitReporter
from chunkvisor.core.scheduler import Scheduler
from chunkvisor.core.store import ResultStore
from chunkvisor.devices.handles import DeviceHandles, Reading, read_in_thread
from chunkvisor.engine.engine import Engine
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events import event
from chunkvisor.judge import NODE_LOST, ONE_ROW, STATUS_LOST, EndedBy, Evidence, Verdict, judge
from chunkvisor.store.attempt import Salvage
from chunkvisor.store.disk import temporary_folder, verdict_of, with_free_space
from chunkvisor.store.records import LessonFile
from chunkvisor.units import human_time
from chunkvisor_worker.contract.exits import Outcome, WorkerExit

_PAUSE_S = 0.25  # the longest that a turn waits for something to happen


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
        look: Callable[[str], Future[Reading]] = read_in_thread,
    ) -> None:
        """The caller closes the engine. `look` begins to read the GPU with a UUID."""
        self._outputs = outputs
        self._engine = engine
        self._workers = config.workers
        self._recovery = config.recovery
        self._lessons = lessons
        self._store = store
        self._signals = run.signals
        self._emit = run.emit
        self._tick = run.tick
        self._clock = run.clock
        self._handles = DeviceHandles(run.emit, look)
        self._reports = Reports(outputs, self._handles, config.recovery, run.emit)
        self._waits = WaitReporter(run.emit, config.recovery.wait_timeout)
        self._scheduler = Scheduler(outputs, config, lessons.get, run.clock)
        self._opened = False  # the engine
        self._running = dict[int, RunningAttempt]()  # by the number of the worker
        self._ended = dict[int, RunningAttempt]()  # those that have ended and are not stored yet
        # Why and until when the run drains, as reported last.
        self._drains: tuple[str, float | None] | None = None

    def run(self) -> list[messages.GivenUp]:
        """Work until nothing is pending, or the run is asked to stop; return the chunks given up.

        Raises Halt if every further worker would fail; OSError. No worker is left behind, whatever
        happens.
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
            for number in self._scheduler.unstored:
                self._ended[number].folder.forget_verdict()
        return self._reports.given_up

    def _pending(self) -> int:
        return sum(output.left for output in self._outputs)

    # --- turns

    def _turn(self) -> None:
        self._check_signals()
        # Only if there is work: now, or when a chunk is found to be damaged.
        if not self._opened and self._pending():
            self._opened = True
            self._engine.open(
                self._handles, self._pending, self._workers.per_device + self._workers.standby
            )
        self._engine.poll()
        self._handles.poll(self._pids)
        changed = self._handles.changed
        self._handles.changed = []
        for handle, health_report, gone in changed:
            node = handle.site.node
            kind = handle.device.model
            self._execute(
                self._scheduler.device_changed(handle.number, node, kind, health_report, gone=gone)
            )
        for attempt in list(self._running.values()):
            self._poll_worker(attempt, self._clock())
        if self._clock() >= self._scheduler.last_s:
            self._store.stop()
        self._execute(self._scheduler.store_again())
        for output, chunk in self._store.poll():
            self._scheduler.chunk_invalidated(output, chunk)
        self._tick()
        held = [each.number for each in self._handles.alive if self._engine.is_preparing(each)]
        self._execute(self._scheduler.take_turn(held))
        unstored = self._scheduler.unstored
        for number in self._ended.keys() - unstored:
            self._ended.pop(number).folder.drop_bulk()

    def _check_signals(self) -> None:
        signals = self._signals
        until_s = signals.until_s
        if signals.draining and self._drains != (signals.why, until_s):
            self._drains = (signals.why, until_s)
            how = "finishing the chunks in progress"
            if until_s is not None:
                left_s = max(0.0, until_s - self._clock())
                how = f"workers save and exit within {human_time(left_s)}"
            self._emit(event.Draining(signals.why, how))
            self._execute(self._scheduler.stop(until_s))
        if signals.stopping:
            self._execute(self._scheduler.stop(-math.inf))

    def _sleep(self) -> None:
        descriptors = list(self._engine.descriptors())
        for attempt in self._running.values():
            descriptors += attempt.worker.descriptors()
        self._signals.sleep(_PAUSE_S, descriptors)

    def _answer_calls(self) -> None:
        """Open gates of devices that were freed; called before anything that takes long."""
        for attempt in self._running.values():
            self._answer_call(attempt)

    def _answer_call(self, attempt: RunningAttempt) -> None:
        attempt.listen(self._clock())
        freed = attempt.freed_s is not None
        if attempt.at_gate or freed:
            self._execute(self._scheduler.worker_called(attempt.number, freed=freed))

    def _pids(self) -> dict[int, frozenset[int]]:
        """Return, by device number, the pids of the workers that may still hold memory of it."""
        pids = dict[int, frozenset[int]]()
        for attempt in self._running.values():
            if attempt.gate_opened_s is not None:
                device = attempt.handle.number
                pids[device] = pids.get(device, frozenset()) | {attempt.worker.pid}
        return pids

    # --- workers

    def _poll_worker(self, attempt: RunningAttempt, now_s: float) -> None:
        returncode = attempt.worker.poll()
        if returncode is not None:
            self._conclude(attempt, returncode, now_s)
            return
        self._answer_call(attempt)
        attempt.poll(now_s, self._recovery)
        if attempt.stuck(now_s):
            output, chunk, _ = attempt.names
            raise Halt(
                ExitCode.MACHINE,
                f"worker {attempt.worker.pid} of {output} chunk {chunk} cannot be killed",
                "Reboot the machine, then run the same command again.",
                why="it hangs inside the kernel (D state): the GPU driver or the disk is stuck",
                log=attempt.folder.files.log,
            )

    def _conclude(self, attempt: RunningAttempt, returncode: int, now_s: float) -> None:
        """Judge a worker that has ended."""
        del self._running[attempt.number]
        self._ended[attempt.number] = attempt
        self._scheduler.worker_exited(attempt.number)
        self._emit(event.WorkerEnded(*attempt.names, returncode, **attempt.figures(now_s)))
        # A warm worker that ends before it had the device: its template is the cause, and no text.
        unused = (
            attempt.worker.warm
            and attempt.gate_opened_s is None
            and attempt.ended_by is EndedBy.ITSELF
        )
        if unused and returncode in (WorkerExit.TAINTED_TEMPLATE, STATUS_LOST):
            attempt.folder.remove()
            self._execute(self._scheduler.attempt_finished(AttemptEnded(attempt.number, None)))
            return
        if returncode == NODE_LOST:
            # The run ended it since its device was gone; that was so since the machine was lost.
            attempt.ended_by = EndedBy.ITSELF
            attempt.ended_why = f"{attempt.handle} was lost"
        elif (
            returncode == WorkerExit.ORPHANED
            and attempt.asked_to_stop
            and attempt.ended_by is EndedBy.ITSELF
        ):
            attempt.ended_by = EndedBy.STOP
        elif returncode == 0:
            # The device is free at once. After any other end the verdict comes first, since it may
            # show that the next worker must not have the device.
            self._execute(self._scheduler.worker_called(attempt.number, freed=True))
        self._answer_calls()  # before all of its vectors are read, which takes a while
        ended = self._judge(attempt, returncode)
        if attempt.gate_opened_s is not None:
            attempt.handle.only_ours = False  # the last reading does not show what is on it now
        self._execute(self._scheduler.attempt_finished(ended))

    def _judge(self, attempt: RunningAttempt, returncode: int) -> AttemptEnded:
        """Say what became of an attempt whose worker has ended, and what it has left."""
        folder = attempt.folder
        handle = attempt.handle
        end = Evidence(
            returncode,
            attempt.ended_by,
            attempt.ended_why,
            oom_kills=attempt.worker.oom_kills,
            limits=attempt.limits,
        )
        verdict = judge(folder.evidence_of_end(end))
        if returncode not in (0, STATUS_LOST) and verdict.outcome is Outcome.COMMITTED:
            output, chunk, _ = attempt.names
            self._emit(event.LateCrash(output, chunk, returncode))
        attempt.has_result = verdict.outcome in (Outcome.COMMITTED, Outcome.BAD_OUTPUT)
        # With a result, the verdict says which vectors are good; without, the batch log does.
        left = Salvage() if attempt.has_result else folder.salvage()
        # The disks of another machine are not ours.
        if verdict.outcome is Outcome.DISK_FULL and not handle.site.node:
            workdir = self._outputs[attempt.task.output].workdir
            reason = with_free_space(verdict.reason, workdir, temporary_folder())
            verdict = replace(verdict, reason=reason)
        # The workers of this run that have the device as well: they hold some of its memory.
        siblings = frozenset(
            each.worker.pid
            for each in self._running.values()
            if each.has_device and each.handle is handle
        )
        some_good = 0 < len(verdict.bad_rows) < len(attempt.task.texts)
        start = folder.spec.start
        return AttemptEnded(
            attempt.number,
            verdict,
            handle.other_processes(verdict.figures, siblings),
            # If a worker from a template failed at the start, the template may be the cause: this
            # is not counted, and the next worker gets a new interpreter.
            began_s=(
                attempt.started_s if attempt.task.cold_start or not attempt.worker.warm else None
            ),
            done=frozenset(start + row for row in left.done),
            in_flight=frozenset(start + row for row in left.under_way),
            any_text_succeeded=bool(left.done) or some_good or folder.canary_passed(),
        )

    def _end_all(self) -> None:
        """End the workers that still run, by SIGTERM, then SIGKILL.

        One that hangs in the kernel, where not even SIGKILL ends it, is not waited for.
        """
        running = self._running
        while running and not all(attempt.stuck(self._clock()) for attempt in running.values()):
            now_s = self._clock()
            for attempt in list(running.values()):
                if attempt.worker.poll() is None:
                    attempt.end(EndedBy.STOP, "", now_s)
                else:  # if it got done after all, the next run finds its result
                    del running[attempt.number]
            if running:
                self._sleep()
                with contextlib.suppress(Halt):
                    self._engine.poll()

    # --- instructions

    def _execute(self, instructions: Iterable[Instruction]) -> None:
        """Do the instructions, and those that follow from them. Raises Halt; OSError."""
        todo = deque(instructions)
        while todo:
            todo.extend(self._do(todo.popleft()))

    def _do(self, instruction: Instruction) -> Sequence[Instruction]:  # noqa: C901 - one case each
        """Do the instruction; return those that follow from what came of it."""
        running = self._running
        match instruction:
            case StartWorker():
                return self._start_attempt(instruction)
            case OpenGate(worker, limits):
                attempt = running[worker]
                attempt.open_gate(limits, self._clock())
                self._store.first_gate_opened_s = (
                    self._store.first_gate_opened_s or attempt.gate_opened_s
                )
                self._emit(event.Go(*attempt.names, limits.rows, limits.tokens))
            case AskToStop(worker):
                if worker in running:
                    running[worker].asked_to_stop = True
                    running[worker].worker.ask_to_stop()
                    self._emit(event.WorkerLeaving(*running[worker].names))
            case EndWorker(worker):
                if worker in running:
                    running[worker].end(EndedBy.STOP, "", self._clock())
            case KeepVectors(worker, task):
                self._answer_calls()
                attempt = self._ended[worker]
                salvaged = not attempt.has_result
                problem = self._store.keep(task, attempt.folder, salvaged=salvaged)
                return self._note_stored(instruction, problem)
            case QuarantineTexts(task, verdict):
                self._answer_calls()
                return self._note_stored(instruction, self._store.quarantine(task, verdict))
            case PlanOutput(output):
                self._store.plan(output)
            case ReadDevice(device):
                self._handles[device].start_reading()
            case DropDevice(ending):
                assert ending.device is not None, ending
                # The last one of a cluster: unless another joins, the run ends with this Halt.
                last = len(self._handles.alive) == 1
                halt = self._reports.halt_of(
                    ending, self._ended.get(ending.worker), dropped=not last
                )
                self._handles.drop(ending.device, halt)
            case EndRun(ending):
                raise self._reports.halt_of(ending, self._ended.get(ending.worker))
            case LowerLimits(kind, limit, lasting):
                if lasting:
                    self._lessons.save(kind, *limit)
                self._reports.lower_limits(instruction)
            case ReportFailure():
                self._attempt_failed(instruction)
            case ReportSplit():
                self._reports.split(instruction)
            case ReportWait(device_or_all, delay_s, waited_s, verdict):
                self._waits.report(
                    delay_s, waited_s, verdict.reason, verdict.outcome, device_or_all
                )
            case _:
                assert_never(instruction)
        return ()

    def _start_attempt(self, start: StartWorker) -> Sequence[Instruction]:
        self._answer_calls()
        task = start.task
        handle = self._handles[start.device]
        output = self._outputs[task.output]
        try:
            folder = output.new_attempt(task, handle, start.limits, start.canary)
            process = self._engine.start(handle, folder.files, folder.spec)
        except OSError as error:
            gone = output.gone(error)
            if gone:
                raise gone from error
            verdict = verdict_of(error, "no worker could be started", output.workdir)
            # A batch of one row: to a lack of memory the policy then answers with no smaller batch.
            verdict = replace(verdict, limits=ONE_ROW, batch_rows=1)
            return self._scheduler.attempt_finished(AttemptEnded(start.worker, verdict))
        attempt = RunningAttempt(
            start.worker, task, handle, folder, process, start.limits, self._clock()
        )
        self._running[start.worker] = attempt
        kind = StartKind.WARM if process.warm else StartKind.FRESH
        self._emit(event.AttemptStarted(*attempt.names, process.pid, handle.number, str(kind)))
        return ()

    def _note_stored(
        self, instruction: KeepVectors | QuarantineTexts, problem: Verdict | None
    ) -> Sequence[Instruction]:
        task = instruction.task
        follows = self._scheduler.stored(instruction, problem)
        if not problem and not self._store.commit_parts(task.output, task.chunk):
            self._scheduler.chunk_invalidated(task.output, task.chunk)
        return follows

    def _attempt_failed(self, told: ReportFailure) -> None:
        attempt = self._ended.get(told.worker)
        verdict = told.verdict
        if attempt:
            attempt.folder.record_verdict(verdict)
        self._reports.failure(told, attempt)
        # Processes that hold the memory after a wait count as part of the device from now on: they
        # are not waited for again.
        in_vain = verdict.outcome is Outcome.GPU_OOM and not isinstance(told.step, policy.Wait)
        if in_vain and verdict.figures and attempt:
            attempt.handle.accept_others(verdict.figures.others_bytes)
