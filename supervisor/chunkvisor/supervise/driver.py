"""The loop: tells the scheduler what happens, and has done what it says.

It decides nothing. What happens is gathered once a turn; calls of workers are also answered before anything that takes
milliseconds, so that no device waits for the writing of another attempt's texts.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from chunkvisor.decide.outcome import NODE_LOST, STATUS_LOST, EndedBy
from chunkvisor.decide.watch import Patience, gap
from chunkvisor.devices.health import company_of, in_company
from chunkvisor.devices.stations import Stations
from chunkvisor.engine.engine import Demand, Engine
from chunkvisor.engine.process import keep_log_end
from chunkvisor.events.attempt import WorkerEnded
from chunkvisor.events.event import Emit
from chunkvisor.events.run import Draining, StoodStill
from chunkvisor.store.lessons import LessonFile
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.acts import Acts
from chunkvisor.supervise.adopt import adopt_all, forget_unsure
from chunkvisor.supervise.capacity import EngineCapacity
from chunkvisor.supervise.devicenews import DeviceNews
from chunkvisor.supervise.endings import GivenUp, cannot_be_killed
from chunkvisor.supervise.fleet import Gate
from chunkvisor.supervise.joiner import Joiner
from chunkvisor.supervise.judging import judged
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.scheduler import Scheduler, Settings
from chunkvisor.supervise.signals import Signals
from chunkvisor.supervise.slot import Slot
from chunkvisor.supervise.stops import how_drained
from chunkvisor.supervise.storage import Storage
from chunkvisor.supervise.waitteller import WaitTeller
from chunkvisor_worker.contract.exits import WorkerExit

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
        need_bytes: int = 0,
    ) -> None:
        """`need_bytes` is the GPU memory that a worker needs before its first batch, by its files; 0 = not known.

        The caller closes the engine.
        """
        self._outputs = outputs
        self._settings = settings
        self._patience = patience
        self._lessons = lessons
        self._engine = engine
        self._signals = signals
        self._emit = emit
        self._tick = tick
        self._news = DeviceNews()
        self._stations = Stations(self._news, emit)
        self._stations.learn_need(need_bytes)
        self._joiner = Joiner(outputs, signals, emit)
        self._storage = Storage(outputs, emit)
        waits = WaitTeller(emit, settings.budget.wait_timeout_s)
        self._acts = Acts(
            outputs, engine, self._stations, self._storage, self._joiner, lessons, settings.bad_rows, waits, emit
        )
        self._scheduler: Scheduler
        self._todo: deque[do.Instruction] = deque()
        self._looked_s = time.monotonic()
        """When a worker was looked at last."""
        self._round_s = float("-inf")
        """When all of them were."""
        self._drains: tuple[str, float | None] | None = None
        """(why, until when) the run ends before its work is done, as was told last."""

    def run(self) -> list[GivenUp]:
        """Work until nothing is pending, or the run is asked to stop; returns the chunks given up.

        Raises Halt where every further worker would fail; OSError. Whatever happens, no worker is left behind.
        """
        try:
            self._engine.open(self._stations)
            adopt_all(self._outputs, self._stations, self._storage, self._lessons, self._settings.budget)
            if self._pending():
                places = self._settings.per_device + self._settings.standby
                self._engine.prepare(Demand(self._pending, places))
            capacity = EngineCapacity(self._engine, self._stations, self._acts.running)
            self._scheduler = Scheduler(self._outputs, self._settings, self._lessons, capacity, time.monotonic)
            self._turn()
            while not self._scheduler.finished:
                self._turn(self._sleep())
        finally:
            self._acts.end_all(self._sleep)
            for output in self._outputs:
                with contextlib.suppress(OSError):
                    forget_unsure(output)
            self._joiner.close()
            self._stations.close()
        return self._acts.given_up

    def _pending(self) -> int:
        return sum(output.left for output in self._outputs)

    # --- turns

    def _turn(self, stirred: frozenset[int] = frozenset()) -> None:
        """Attend to workers of which there is news (`stirred` are descriptors), now and then to all of them."""
        self._heed_signals()
        self._engine.attend()
        self._stations.attend(self._acts.pids)
        for stimulus in self._news.take():
            self._tell(stimulus)
        now_s = time.monotonic()
        self._forgive(now_s)
        if all_of_them := now_s - self._round_s >= _PAUSE_S:
            self._round_s = now_s
        for slot in list(self._acts.running.values()):
            if all_of_them or slot.stirs(stirred):
                now_s = time.monotonic()
                self._forgive(now_s)
                self._attend(slot, now_s)
        for stimulus in self._joiner.collect():
            self._tell(stimulus)
        self._tick()
        self._tell(on.TimePassed())
        self._acts.ended.forget()

    def _heed_signals(self) -> None:
        signals = self._signals
        if signals.draining and self._drains != (drains := (signals.why, signals.until_s)):
            self._drains = drains
            self._emit(Draining(signals.why, how_drained(signals.until_s, time.monotonic())))
            self._tell(on.Drain(signals.until_s))
        if signals.stopping:
            self._tell(on.Stop())

    def _sleep(self) -> frozenset[int]:
        watched = (fd for slot in self._acts.running.values() for fd in slot.worker.watched())
        began_s = time.monotonic()
        stirred = self._signals.sleep(_PAUSE_S, [*self._engine.watched(), *watched])
        if gap_s := gap(_PAUSE_S, time.monotonic() - began_s):
            # A container that was frozen, a machine that was asleep.
            self._emit(StoodStill(round(gap_s, 1)))
        return stirred

    def _forgive(self, now_s: float) -> None:
        """Time in which nobody looked counts against no worker: it may have stood still as well."""
        gap_s, self._looked_s = gap(_PAUSE_S, now_s - self._looked_s), now_s
        for slot in self._acts.running.values() if gap_s else ():
            slot.pulse = slot.pulse.forgive(gap_s)

    def _tell(self, stimulus: on.Stimulus) -> None:
        """Have the scheduler hear of it, and do what it says, to the end."""
        self._todo.extend(self._scheduler.handle(stimulus))
        while self._todo:
            instruction = self._todo.popleft()
            if isinstance(instruction, do.Start | do.Keep | do.Compose):
                self._answer_calls()
            if (answer := self._acts.carry_out(instruction)) is not None:
                self._todo.extend(self._scheduler.handle(answer))

    def _answer_calls(self) -> None:
        """Devices given back meanwhile get the next worker."""
        now_s = time.monotonic()
        for slot in self._acts.running.values():
            for stimulus in self._heard_of(slot, now_s):
                for instruction in self._scheduler.handle(stimulus):
                    self._acts.carry_out(instruction)  # `go`, or a look at the device: nothing that is answered at once

    # --- workers

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
            halt = cannot_be_killed(slot.worker.pid, slot.spec.output, slot.task.chunk, slot.files.log)
            self._engine.abandon(slot.station, halt)

    def _heard_of(self, slot: Slot, now_s: float) -> Iterator[on.Stimulus]:
        """Whether the worker is ready, or done with its device, since the last time."""
        slot.look(now_s, closely=False)
        if slot.newly_ready():
            yield on.Ready(slot.number)
        if slot.newly_freed():
            yield on.Freed(slot.number)

    def _conclude(self, slot: Slot, returncode: int, now_s: float) -> None:
        """Judge a worker that has ended."""
        del self._acts.running[slot.number]
        self._acts.ended.add(slot)
        keep_log_end(slot.files.log)
        slot.freed(now_s)
        self._emit(WorkerEnded(slot.spec.output, slot.task.chunk, slot.attempt, returncode, **slot.figures(now_s)))
        if slot.unused and returncode in (WorkerExit.TAINTED_TEMPLATE, STATUS_LOST):
            self._tell(on.Refused(slot.number))
            if returncode == WorkerExit.TAINTED_TEMPLATE:
                self._engine.mistrust(slot.worker)
            return
        if returncode == NODE_LOST:
            # That its device was dropped is how we heard of it, and not why it ended.
            slot.ended_by, slot.ended_why = EndedBy.ITSELF, f"{slot.station} was lost"
        elif returncode == WorkerExit.ORPHANED and slot.leave_why:
            slot.left()
        elif returncode == 0:
            # After any other end the verdict comes before the next `go`: it may have something to teach.
            self._tell(on.Freed(slot.number))
        self._answer_calls()  # all of its vectors are read now
        ended = self._end_of(slot, returncode)
        if slot.had_device:
            slot.station.gate.worker_ended(now_s)
        self._tell(ended)

    def _end_of(self, slot: Slot, returncode: int) -> on.Ended:
        verdict, left = judged(slot, returncode, self._outputs[slot.task.output], self._emit)
        beside = (each for each in self._acts.running.values() if each.gate is Gate.OPEN)
        siblings = frozenset(each.worker.pid for each in beside if each.station is slot.station)
        company = company_of(verdict.figures, slot.station.gate.view, siblings)
        if verdict.figures is not None and verdict.weights_did_not_fit:
            self._stations.learn_need(verdict.figures.ours_bytes + verdict.figures.wanted_bytes)
        # A first try from a template proves little: the next one, in a new interpreter, tells more.
        began_s = slot.started_s if slot.task.fresh or not slot.worker.warm else None
        saved, under_way = (frozenset(slot.task.start + row for row in rows) for rows in (left.done, left.under_way))
        verdict = in_company(verdict, company, siblings)
        return on.Ended(slot.number, verdict, company, began_s, saved=saved, under_way=under_way)
