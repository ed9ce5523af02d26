"""The loop: starts workers, opens their gates, and attends to them until nothing is pending.

It never judges an attempt and never decides what follows: `aftermath` has that done.
"""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from chunkvisor.config.model import Start
from chunkvisor.decide.lastwords import BadRows
from chunkvisor.decide.outcome import NODE_LOST, STATUS_LOST, EndedBy
from chunkvisor.decide.policy import Budget
from chunkvisor.decide.watch import Patience, Pulse
from chunkvisor.devices.stations import Station, Stations
from chunkvisor.engine.engine import Demand, Engine
from chunkvisor.engine.fresh import keep_log_end
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import Emit
from chunkvisor.store.attempt import Place, write_attempt
from chunkvisor.store.lessonbook import LessonBook
from chunkvisor.store.seal import DamagedError
from chunkvisor.supervise.aftermath import Aftermath, GivenUp
from chunkvisor.supervise.backlog import Backlog, Task
from chunkvisor.supervise.joiner import Joiner
from chunkvisor.supervise.keeper import check_space
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.signals import Signals
from chunkvisor.supervise.slot import GateState, Slot
from chunkvisor_worker.contract.exits import WorkerExit

_PAUSE_S = 0.25
"""The loop looks around so often, even if nobody calls."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the loop needs of the config."""

    per_device: int
    """Workers that compute on one device at a time."""
    standby: int
    """Workers prepared beside those, per device."""
    budget: Budget
    bad_rows: BadRows
    patience: Patience


class Runner:
    """Runs the pending chunks of all outputs on all devices."""

    def __init__(
        self,
        outputs: Sequence[OutputRun],
        settings: Settings,
        book: LessonBook,
        engine: Engine,
        signals: Signals,
        emit: Emit,
        tick: Callable[[], None],
    ) -> None:
        self._outputs = outputs
        self._settings = settings
        self._book = book
        self._engine = engine
        self._signals = signals
        self._emit = emit
        self._tick = tick
        self._slots: list[Slot] = []
        self._at: defaultdict[Station, list[Slot]] = defaultdict(list)
        """The same, by device: with a thousand devices nobody looks through all of them for each."""
        self._draining = False
        self._backlog = Backlog([output.ledger for output in outputs])
        self._joiner = Joiner(outputs, self._backlog, settings.budget.wait_timeout_s, signals, emit)
        self._stations = Stations(settings.budget.wait_timeout_s, emit)
        self._aftermath = Aftermath(
            outputs, self._backlog, self._joiner, book, self._stations, settings.budget, settings.bad_rows, emit
        )

    def run(self) -> list[GivenUp]:
        """Work until nothing is pending, or the run is asked to stop; returns the chunks given up.

        Raises Halt where every further worker would fail; OSError. Whatever happens, no worker is left behind.
        """
        try:
            self._engine.open(self._stations)
            for number, output in enumerate(self._outputs):
                check_space(output)
                self._aftermath.adopt(number)
            if self._pending():
                self._engine.prepare(Demand(self._pending, self._settings.per_device + self._settings.standby))
            while not self._finished():
                self._turn(time.monotonic())
        finally:
            self._end_all()
            self._engine.close()
            self._joiner.close()
            self._stations.close()
        return self._aftermath.given_up

    def _pending(self) -> int:
        return sum(output.ledger.left for output in self._outputs)

    def _finished(self) -> bool:
        if self._slots or self._joiner.working:
            return False
        return self._draining or (self._backlog.empty and not self._joiner.waiting)

    def _turn(self, now_s: float) -> None:
        self._heed_signals(now_s)
        self._engine.attend()
        for slot in list(self._slots):
            self._attend(slot, now_s)
        self._joiner.collect()
        self._tick()
        if not self._draining:
            # First of all a device gets the worker that was prepared for it.
            self._open_gates(now_s)
            self._fill(now_s)
            self._open_gates(now_s)
        if not self._finished():
            self._sleep()

    def _sleep(self) -> None:
        watched = (fd for slot in self._slots for fd in slot.worker.watched())
        self._signals.sleep(_PAUSE_S, [*self._engine.watched(), *watched])

    def _on(self, station: Station) -> list[Slot]:
        """The workers that have the device or wait for it."""
        return [slot for slot in self._at[station] if slot.gate is not GateState.PASSED]

    def _forget(self, slot: Slot) -> None:
        self._slots.remove(slot)
        self._at[slot.station].remove(slot)
        if slot.station.dropped and not self._at[slot.station]:
            del self._at[slot.station]

    def _computing(self, station: Station) -> int:
        return sum(slot.gate is GateState.OPEN for slot in self._on(station))

    def _fill(self, now_s: float) -> None:
        """Start workers: first one for every place that computes, then those that are prepared ahead."""
        ahead = self._settings.per_device + max(0, self._settings.standby - self._aftermath.host_ooms)
        workers = [slot.worker for slot in self._slots]
        place_of = self._stations.places(now_s)
        for places in range(1, ahead + 1):
            for station in self._stations.working(now_s):
                if len(self._on(station)) >= places or self._engine.holding(station):
                    continue
                if places > self._settings.per_device and not self._engine.has_room(station, workers):
                    continue
                task = self._backlog.take(now_s, place_of(station))
                if task is None and place_of(station):
                    continue  # there may be something for another place
                if task is None:
                    return
                self._hand_over()
                if task.start == task.stop:
                    self._aftermath.keeper.finish_if_known(task.output, task.chunk)
                    continue
                self._try_start(task, station, now_s)

    def _try_start(self, task: Task, station: Station, now_s: float) -> None:
        try:
            slot = self._start(task, station, now_s)
            self._slots.append(slot)
            self._at[station].append(slot)
        except OSError as error:
            self._aftermath.not_started(task, error)
        except DamagedError as error:
            raise Halt(
                ExitCode.DISK,
                "the staged texts were changed while the run was reading them",
                why=str(error),
                remedy="run the same command again: it reads the source anew",
            ) from error

    def _start(self, task: Task, station: Station, now_s: float) -> Slot:
        output = self._outputs[task.output]
        number, files = output.ledger.new_attempt(task.chunk)
        limits = self._book.limits(output.limits, task.tier, station.device.model)
        texts, site = output.table.each_text(task.start, task.stop), station.site
        place = Place(task.chunk, number, task.start, station.device.kind, site.threads, site.model_path)
        spec = write_attempt(files, output.job, place, texts, limits)
        worker = self._engine.start(station, files, spec, fresh=task.fresh, blocking_launches=task.blocking_launches)
        self._emit(
            "attempt_started",
            output=output.name,
            chunk=task.chunk,
            attempt=number,
            pid=worker.pid,
            device=station.number,
            start=str(Start.WARM if worker.warm else Start.FRESH),
        )
        return Slot(task, station, number, files, spec, worker, Pulse.begin(now_s), limits)

    def _hand_over(self) -> None:
        """Before anything that takes milliseconds: devices given back meanwhile get the next worker."""
        if self._draining:
            return
        now_s = time.monotonic()
        for slot in self._slots:
            slot.look(now_s, closely=False)
        self._open_gates(now_s)

    def _open_gates(self, now_s: float) -> None:
        for station in self._stations.working(now_s):
            self._open_gate(station, now_s)

    def _open_gate(self, station: Station, now_s: float) -> None:
        """Let the first worker of the device that is ready compute, if a place is free."""
        if self._computing(station) >= self._settings.per_device:
            return
        for slot in self._on(station):
            slot.look(now_s, closely=True)
            if slot.ready:
                if not self._fit(station):
                    return
                full = self._outputs[slot.task.output].limits
                limits = self._book.limits(full, slot.task.tier, station.device.model)
                slot.go(limits)
                self._aftermath.keeper.gone(slot.go_s)
                self._emit("go", output=slot.spec.output, chunk=slot.task.chunk, attempt=slot.attempt, **asdict(limits))
                return

    def _fit(self, station: Station) -> bool:
        try:
            return station.gate.fit(self._with_device(station))
        except Halt as halt:
            self._stations.drop(station, halt)
            return False

    def _with_device(self, station: Station) -> frozenset[int]:
        """Pids of the workers that have the device, or have just given it back."""
        return frozenset(slot.worker.pid for slot in self._at[station] if slot.gate is not GateState.SHUT)

    def _attend(self, slot: Slot, now_s: float) -> None:
        returncode = slot.worker.poll()
        if returncode is not None:
            self._forget(slot)
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
                self._aftermath.refused(slot)
                if returncode == WorkerExit.TAINTED_TEMPLATE:
                    self._engine.mistrust(slot.worker)
                return
            if returncode == NODE_LOST:
                slot.ended_why = slot.ended_why or f"{slot.station} was lost"
            if returncode == 0:
                self._hand_over()
            # After a failure the verdict comes first: the next worker is to have the lesson, and a look at its GPU.
            self._aftermath.conclude(slot, returncode, self._with_device(slot.station))
            self._hand_over()
            return
        if slot.station.dropped:
            slot.end(EndedBy.STOP, "its device was dropped", now_s)
        slot.look(now_s, closely=False)
        slot.check(now_s, self._settings.patience)
        if slot.stuck(now_s):
            halt = Halt(
                ExitCode.MACHINE,
                f"worker {slot.worker.pid} of {slot.spec.output} chunk {slot.task.chunk} cannot be killed",
                why="it hangs inside the kernel (D state): the GPU driver or the disk is stuck",
                remedy="reboot the machine, then run the same command again",
                log=slot.files.log,
            )
            self._engine.abandon(slot.station, halt)

    def _heed_signals(self, now_s: float) -> None:
        signals = self._signals
        if signals.draining and not self._draining:
            self._draining = True
            self._emit("draining", signal=signals.first.name if signals.first else "")
            for slot in self._slots:
                if slot.gate is GateState.SHUT:
                    slot.end(EndedBy.STOP, "the run is draining", now_s)
        if signals.stopping:
            for slot in self._slots:
                slot.end(EndedBy.STOP, "the run was stopped", now_s)

    def _end_all(self) -> None:
        """End the workers that are left after a halt: politely, then by force; gives up on one in the kernel."""
        while self._slots and not all(slot.stuck(time.monotonic()) for slot in self._slots):
            now_s = time.monotonic()
            for slot in list(self._slots):
                if slot.worker.poll() is None:
                    slot.end(EndedBy.STOP, "the run has ended", now_s)
                else:
                    self._forget(slot)  # if it got done after all, the next run finds its result
            if self._slots:
                self._sleep()
                with contextlib.suppress(Halt):
                    self._engine.attend()
