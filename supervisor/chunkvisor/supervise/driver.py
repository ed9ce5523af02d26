"""The loop: tells the scheduler what happens, and does what it says.

It decides nothing. What happens is gathered once a turn; calls of workers are also answered before anything that takes
milliseconds, so that no device waits for the writing of another attempt's texts.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict

from chunkvisor.config.model import Start as StartKind
from chunkvisor.decide.outcome import NODE_LOST, STATUS_LOST, Verdict, judge
from chunkvisor.decide.watch import Patience, Pulse
from chunkvisor.devices.stations import Stations
from chunkvisor.engine.engine import Demand, Engine
from chunkvisor.engine.fresh import keep_log_end
from chunkvisor.errors import Emit
from chunkvisor.store.attempt import Place, gather, write_attempt
from chunkvisor.store.lessons import LessonFile
from chunkvisor.store.seal import DamagedError
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.joiner import Joiner
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.scheduler import Scheduler, Settings
from chunkvisor.supervise.signals import Signals
from chunkvisor.supervise.slot import Slot
from chunkvisor.supervise.storage import Storage, check_space
from chunkvisor_worker.contract.exits import Outcome, WorkerExit
from chunkvisor_worker.contract.messages import Limits

_PAUSE_S = 0.25
"""The loop looks around so often, even if nobody calls."""


class Driver:
    """Runs the pending chunks of all outputs on all devices."""

    def __init__(
        self,
        outputs: Sequence[OutputRun],
        settings: Settings,
        patience: Patience,
        lessons: LessonFile,
        engine: Engine,
        signals: Signals,
        emit: Emit,
        tick: Callable[[], None],
    ) -> None:
        self._outputs = outputs
        self._settings = settings
        self._patience = patience
        self._engine = engine
        self._signals = signals
        self._emit = emit
        self._tick = tick
        self._stations = Stations(self._hear, emit)
        self._scheduler = Scheduler(outputs, settings, lessons.read(), self, time.monotonic)
        self._todo: deque[do.Instruction] = deque()
        self._slots: dict[int, Slot] = {}
        """Running workers, by number."""
        self._ended: dict[int, Slot] = {}
        """Those whose ends are being dealt with."""
        self._joiner = Joiner(outputs, signals, emit)
        self._storage = Storage(outputs, emit)
        self._lessons = lessons
        self.given_up: list[GivenUp] = []

    def run(self) -> list[GivenUp]:
        """Work until nothing is pending, or the run is asked to stop; returns the chunks given up.

        Raises Halt where every further worker would fail; OSError. Whatever happens, no worker is left behind.
        """
        try:
            self._engine.open(self._stations)
            for output in self._outputs:
                check_space(output)
            if self._pending():
                places = self._settings.per_device + self._settings.standby
                self._engine.prepare(Demand(self._pending, places))
            self._obey()
            while not self._scheduler.finished:
                self._turn()
        finally:
            self._end_all()
            self._engine.close()
            self._joiner.close()
            self._stations.close()
        return self.given_up

    def _pending(self) -> int:
        return sum(output.left for output in self._outputs)

    # --- what the scheduler asks of the engine

    def holding(self, device: int) -> bool:
        """See Capacity."""
        return self._engine.holding(self._stations[device])

    def loading(self, device: int) -> bool:
        """See Capacity."""
        return self._engine.loading(self._stations[device])

    def has_room(self, device: int) -> bool:
        """See Capacity."""
        workers = [slot.worker for slot in self._slots.values()]
        return self._engine.has_room(self._stations[device], workers)

    # --- what happens

    def _turn(self) -> None:
        if self._signals.stopping:
            self._tell(on.Stop())
        elif self._signals.draining:
            self._tell(on.Drain())
        self._engine.attend()
        self._stations.attend(self._pids)
        self._obey()
        for slot in list(self._slots.values()):
            self._attend(slot, time.monotonic())
        for stimulus in self._joiner.collect():
            self._tell(stimulus)
        self._tick()
        self._tell(on.TimePassed())
        self._ended.clear()
        if not self._scheduler.finished:
            watched = (fd for slot in self._slots.values() for fd in slot.worker.watched())
            self._signals.sleep(_PAUSE_S, [*self._engine.watched(), *watched])

    def _attend(self, slot: Slot, now_s: float) -> None:
        returncode = slot.worker.poll()
        if returncode is not None:
            self._conclude(slot, returncode, now_s)
            return
        for stimulus in self._heard_of(slot, now_s):
            self._tell(stimulus)
        if why := slot.overdue(now_s, self._patience):
            self._tell(on.Overdue(slot.number, why))
        slot.next_signal(now_s)
        if slot.stuck(now_s):
            self._engine.abandon(slot.station, cannot_be_killed(slot))

    def _heard_of(self, slot: Slot, now_s: float) -> Iterator[on.Stimulus]:
        """Whether the worker is ready, or done with its device, since the last time."""
        slot.look(now_s, closely=False)
        if slot.newly_ready():
            yield on.Ready(slot.number)
        if slot.newly_freed():
            yield on.Freed(slot.number)

    def _conclude(self, slot: Slot, returncode: int, now_s: float) -> None:
        """Judge a worker that has ended."""
        del self._slots[slot.number]
        self._ended[slot.number] = slot
        keep_log_end(slot.files.log)
        slot.freed(now_s)
        self._emit(
            "worker_ended",
            output=slot.spec.output,
            chunk=slot.task.chunk,
            attempt=slot.attempt,
            returncode=returncode,
            **slot.figures(now_s),
        )
        if slot.unused and returncode in (WorkerExit.TAINTED_TEMPLATE, STATUS_LOST):
            if returncode == WorkerExit.TAINTED_TEMPLATE:
                self._engine.mistrust(slot.worker)
            self._tell(on.Refused(slot.number))
            return
        if returncode == NODE_LOST:
            slot.ended_why = slot.ended_why or f"{slot.station} was lost"
        elif returncode == 0:
            # After any other end the verdict comes before the next `go`: it may have something to teach.
            self._tell(on.Freed(slot.number))
        self._tell(on.Ended(slot.number, self._judged(slot, returncode)))

    def _judged(self, slot: Slot, returncode: int) -> Verdict:
        output = self._outputs[slot.task.output]
        evidence = gather(
            slot.files,
            slot.spec,
            output.ledger.facts,
            output.blank_test(slot.spec),
            returncode=returncode,
            ended_by=slot.ended_by,
            ended_why=slot.ended_why,
            oom_kills=slot.worker.oom_kills(),
            limits=slot.limits,
        )
        verdict = judge(evidence)
        if returncode not in (0, STATUS_LOST) and verdict.outcome is Outcome.COMMITTED:
            self._emit("late_crash", output=output.name, chunk=slot.task.chunk, returncode=returncode)
        return verdict

    def _tell(self, stimulus: on.Stimulus) -> None:
        self._hear(stimulus)
        self._obey()

    def _hear(self, stimulus: on.Stimulus) -> None:
        self._todo.extend(self._scheduler.handle(stimulus))

    # --- what is to be done

    def _obey(self) -> None:
        while self._todo:
            instruction = self._todo.popleft()
            if isinstance(instruction, do.Start | do.Keep | do.Compose):
                self._answer_calls()
            answer = self._act(instruction)
            if answer is not None:
                self._hear(answer)

    def _answer_calls(self) -> None:
        """Devices given back meanwhile get the next worker."""
        now_s = time.monotonic()
        for slot in self._slots.values():
            for stimulus in self._heard_of(slot, now_s):
                for instruction in self._scheduler.handle(stimulus):
                    self._act(instruction)  # `go`, or a look at the device: nothing that is answered at once

    def _act(self, instruction: do.Instruction) -> on.Stimulus | None:
        """Do it; returns what came of it, where that is known at once. Raises Halt; OSError."""
        match instruction:
            case do.Start():
                return self._start(instruction)
            case do.Go():
                self._go(self._slots[instruction.worker], instruction.limits)
            case do.End() if instruction.worker in self._slots:
                self._slots[instruction.worker].end(instruction.by, instruction.why, time.monotonic())
            case do.Look():
                self._stations[instruction.device].ask()
            case do.Keep():
                files = self._ended[instruction.worker].files
                return self._storage.keep(instruction.task, files, instruction.holes)
            case do.Quarantine():
                return self._storage.quarantine(instruction.task, instruction.verdict)
            case do.Compose():
                return self._storage.compose(instruction.task)
            case do.Cut():
                self._storage.cut(instruction.task, instruction.at)
            case do.Join():
                self._joiner.begin(instruction.output)
            case do.SaveLessons():
                self._lessons.save(instruction)
            case do.DropDevice():
                self._stations.leave(self._stations[instruction.device], instruction.halt)
            case do.DropNode():
                self._stations.drop_node(instruction.node, instruction.halt)
            case do.HaltRun():
                raise self._with_log(instruction.halt, instruction.worker)
            case do.HaltByBadRows():
                raise self._too_bad(instruction)
            case _:
                self._note(instruction)
        return None

    def _start(self, start: do.Start) -> on.Started | on.NotStarted:
        task, station, output = start.task, self._stations[start.device], self._outputs[start.task.output]
        try:
            number, files = output.ledger.new_attempt(task.chunk)
            site = station.site
            place = Place(task.chunk, number, task.start, station.device.kind, site.threads, site.model_path)
            spec = write_attempt(files, output.job, place, output.table.each_text(task.start, task.stop), start.limits)
            worker = self._engine.start(
                station, files, spec, fresh=task.fresh, blocking_launches=task.blocking_launches
            )
        except DamagedError as error:
            raise texts_damaged(error) from error
        except OSError as error:
            return on.NotStarted(start.worker, not_started(error))
        now_s = time.monotonic()
        self._slots[start.worker] = Slot(
            start.worker, task, station, number, files, spec, worker, Pulse.begin(now_s), start.limits
        )
        self._emit(
            "attempt_started",
            output=output.name,
            chunk=task.chunk,
            attempt=number,
            pid=worker.pid,
            device=station.number,
            start=str(StartKind.WARM if worker.warm else StartKind.FRESH),
        )
        return on.Started(start.worker, worker.warm)

    def _go(self, slot: Slot, limits: Limits) -> None:
        slot.go(limits)
        self._storage.gone(slot.go_s)
        self._emit("go", output=slot.spec.output, chunk=slot.task.chunk, attempt=slot.attempt, **asdict(limits))

    def _note(self, instruction: do.Instruction) -> None:
        """What is only written down and told."""
        match instruction:
            case do.Record():
                self._record(instruction)
            case do.Refuse():
                self._remove(instruction.worker)
                self._emit_of("attempt_refused", instruction.worker, instruction.task)
            case do.Discard():
                self._remove(instruction.worker)
            case do.TellWaiting():
                verdict = instruction.verdict
                self._emit("waiting", delay_s=instruction.delay_s, outcome=verdict.outcome, reason=verdict.reason)
            case do.TellSplit():
                task = instruction.task
                name = self._outputs[task.output].name
                self._emit("chunk_split", output=name, chunk=task.chunk, texts=task.texts, parts=instruction.parts)
            case do.SetAside():
                task, verdict = instruction.task, instruction.verdict
                name = self._outputs[task.output].name
                self.given_up.append(GivenUp(name, task.chunk, verdict, self._files(instruction.worker, task)))
                self._emit("chunk_set_aside", output=name, chunk=task.chunk, reason=verdict.reason)
