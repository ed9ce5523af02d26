"""What a run does next: turns what happens into instructions.

Pure: it reads no clock, file or process of its own. The clock, what the engine can take and the progress of the outputs
are handed in, and it only looks at them; the driver carries the instructions out. So a whole history can be played
without a process, and a simulator plays hundreds of lives a second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from chunkvisor.decide import lastwords
from chunkvisor.decide.outcome import EndedBy
from chunkvisor.decide.policy import Budget
from chunkvisor.devices.health import Health
from chunkvisor.errors import Halt
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.backlog import Backlog, Progress, Task
from chunkvisor.supervise.consequences import Consequences
from chunkvisor.supervise.fleet import Device, Fleet, Gate, Worker
from chunkvisor.supervise.joins import Joins
from chunkvisor.supervise.lessonbook import LessonBook, Recall

LOOK_PAUSE_S = 2.0
"""Between two looks at a device that is not fit."""


class Capacity(Protocol):
    """What the engine can take at this moment."""

    def holding(self, device: int) -> bool:
        """Whether nothing is to be started there yet."""

    def has_room(self, device: int) -> bool:
        """Whether its machine has memory for one worker more."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the scheduler needs of the config."""

    per_device: int = 1
    """Workers that compute on one device at a time."""
    standby: int = 1
    """Workers prepared beside those, per device."""
    budget: Budget = field(default_factory=Budget)
    bad_rows: lastwords.BadRows = field(default_factory=lastwords.BadRows)


class Scheduler:
    """Runs the pending chunks of all outputs on all devices."""

    def __init__(
        self,
        outputs: Sequence[Progress],
        settings: Settings,
        lessons: Recall,
        capacity: Capacity,
        clock: Callable[[], float],
    ) -> None:
        """`lessons` are those of earlier runs, by kind of device; `clock` never jumps."""
        self._settings = settings
        self._capacity = capacity
        self._clock = clock
        self._out: list[do.Instruction] = []
        self.fleet = Fleet()
        self._backlog = Backlog(outputs)
        self._joins = Joins(outputs, self._backlog, settings.budget.wait_timeout_s, self._say)
        self._consequences = Consequences(
            outputs,
            settings.budget,
            settings.bad_rows,
            self._backlog,
            self.fleet,
            LessonBook(lessons, outputs),
            self._joins,
            self._say,
            self._drop,
        )
        self._draining = False
        self._unfit: Halt | None = None
        """Why the last device that could not be used when it joined was so."""
        for number in range(len(outputs)):
            self._joins.begin_if_complete(number)

    @property
    def finished(self) -> bool:
        """Whether nothing is under way, and nothing is left to do in this run."""
        if self.fleet.workers or self._joins.working:
            return False
        undecided = self._consequences.blame.undecided
        return self._draining or (self._backlog.empty and not self._joins.waiting and not undecided)

    def handle(self, stimulus: on.Stimulus) -> list[do.Instruction]:
        """What is to be done now that this has happened, in order."""
        now_s = self._clock()
        match stimulus:
            case on.TimePassed():
                self._turn(now_s)
            case on.Ready() | on.Freed() | on.Ended() | on.Started() | on.NotStarted() | on.Overdue() | on.Refused():
                self._heed_worker(stimulus, now_s)
            case on.DeviceJoined() | on.DeviceLeft() | on.NodeLeft() | on.Looked():
                self._heed_device(stimulus, now_s)
            case on.Drain() | on.Stop():
                self._heed_signal(stimulus)
            case on.Stored() | on.Quarantined() | on.NotStored() | on.PartsDamaged():
                self._consequences.heed_storage(stimulus, now_s)
            case on.Joined() | on.ChunkDamaged() | on.JoinWaits() | on.JoinStopped():
                self._joins.heed(stimulus, now_s)
        out = self._out[:]
        self._out.clear()
        return out

    def _say(self, instruction: do.Instruction) -> None:
        self._out.append(instruction)

    # --- workers

    def _heed_worker(self, stimulus: on.WorkerStimulus, now_s: float) -> None:
        worker = self.fleet.workers.get(stimulus.worker)
        if worker is None:
            return
        match stimulus:
            case on.Started():
                if worker.device.left or self._draining:
                    self._end(worker, "its device was dropped" if worker.device.left else "the run is draining")
            case on.NotStarted():
                self.fleet.forget(worker)
                self._consequences.obey(worker, stimulus, now_s)
            case on.Ready():
                worker.ready = True
            case on.Freed():
                worker.gate = Gate.PASSED
            case on.Overdue():
                self._end(worker, stimulus.why, EndedBy.HANG)
            case on.Refused():
                self.fleet.forget(worker)
                self._consequences.refused(worker)
            case on.Ended():
                self.fleet.forget(worker)
                self._consequences.obey(worker, stimulus, now_s)
        if not self._draining:
            self._open_gates(worker.device, now_s)

    def _end(self, worker: Worker, why: str, by: EndedBy = EndedBy.STOP) -> None:
        if not worker.ending:
            worker.ending = True
            self._say(do.End(worker.number, by, why))

    # --- turns

    def _turn(self, now_s: float) -> None:
        self._joins.turn(now_s)
        if self._draining:
            return
        if self._unfit is not None and not self.fleet.alive:
            self._say(do.HaltRun(self._unfit))
            return
        # First of all a device gets the worker that was prepared for it.
        working = self.fleet.working(now_s)
        for device in working:
            if device.workers:
                self._open_gates(device, now_s)
        if self._consequences.blame.undecided:
            nothing_else = self._backlog.empty and not self.fleet.workers
            self._consequences.blame.settle(nothing_else=nothing_else, gave_up=self._consequences.gave_up)
        if self._backlog.due(now_s):
            self._fill(working, now_s)

    def _open_gates(self, device: Device, now_s: float) -> None:
        """Let workers of the device that are ready compute, as far as places are free."""
        if device.left or now_s < max(device.paused_until_s, self.fleet.paused_until_s):
            return
        waiting = [each for each in device.workers if each.ready and each.gate is Gate.SHUT and not each.ending]
        if waiting:
            for worker in waiting[: max(0, self._settings.per_device - device.computing)]:
                if not self._fit(device, now_s):
                    return
                worker.gate, worker.go_s = Gate.OPEN, now_s
                worker.limits = self._consequences.limits(worker.task, device)
                self._say(do.Go(worker.number, worker.limits))

    def _fit(self, device: Device, now_s: float) -> bool:
        """Whether the next worker may have the device now; if that is not known, it is looked at."""
        if device.suspected_s is None:
            return True
        if not device.looking and now_s >= device.look_again_s:
            device.looking, device.look_again_s = True, now_s + LOOK_PAUSE_S
            self._say(do.Look(device.number))
        return False

    def _fill(self, working: Sequence[Device], now_s: float) -> None:
        """Start workers: first one for every place that computes, then those that are prepared ahead."""
        settings, many_nodes = self._settings, len(self.fleet.nodes) > 1
        ahead = settings.per_device + max(0, settings.standby - self._consequences.host_ooms)
        for places in range(1, ahead + 1):
            for device in working:
                if device.holding >= places or self._capacity.holding(device.number):
                    continue
                if places > settings.per_device and not self._capacity.has_room(device.number):
                    continue
                task = self._take(now_s, device, alone=len(working) == 1, by_node=many_nodes)
                if task is not None:
                    task = replace(task, fresh=True) if device.fresh_only else task
                    limits = self._consequences.limits(task, device)
                    worker = self.fleet.add_worker(task, device, limits)
                    self._say(do.Start(worker.number, device.number, task, limits))
                elif not self._backlog.due(now_s):
                    return

    def _take(self, now_s: float, device: Device, *, alone: bool, by_node: bool) -> Task | None:
        """The next texts for the device; chunks of which all is known are put together on the way."""
        far = self._consequences.blame.undecided
        while True:
            task = self._backlog.take(now_s, device.seat, alone=alone, by_node=by_node, far=far)
            if task is None or task.texts:
                return task
            self._consequences.compose_if_known(task.output, task.chunk)

    # --- devices

    def _heed_device(self, stimulus: on.DeviceStimulus, now_s: float) -> None:
        match stimulus:
            case on.DeviceJoined():
                opinion = stimulus.opinion
                device = Device(stimulus.device, stimulus.node, stimulus.kind, stimulus.name, opinion is not None)
                self.fleet.join(device)
                if opinion is not None and opinion.health is Health.BROKEN:
                    # Others may be about to join; whether this was the last shows in the next turn.
                    halt = lastwords.broken_gpu(device.name, opinion.why)
                    self._unfit = self._unfit if device.node else halt
                    self._say(do.DropDevice(device.number, halt))
                    self._leave(device)
            case on.DeviceLeft() if (found := self.fleet.devices.get(stimulus.device)) is not None:
                self._drop(found, stimulus.halt)
            case on.NodeLeft():
                for each in self.fleet.on_node(stimulus.node):
                    self._leave(each)
            case on.Looked() if (found := self.fleet.devices.get(stimulus.device)) is not None:
                self._heed_look(found, stimulus, now_s)

    def _heed_look(self, device: Device, stimulus: on.Looked, now_s: float) -> None:
        device.looking = False
        opinion = stimulus.opinion
        if device.suspected_s is None:
            return
        if opinion.health is Health.BROKEN:
            self._drop(device, lastwords.broken_gpu(device.name, opinion.why))
        elif opinion.health is Health.BUSY:
            waited_s = now_s - max(device.suspected_s, self.fleet.success_s)
            if waited_s > self._settings.budget.wait_timeout_s:
                self._drop(device, lastwords.busy_gpu(device.name, waited_s, opinion.why))
        elif opinion.health is not Health.SETTLING:
            device.suspected_s = None
            if not self._draining:
                self._open_gates(device, now_s)

    def _drop(self, device: Device, halt: Halt, worker: int = 0) -> None:
        """Do without the device from now on; where it was the last one of this machine, the run ends."""
        if device.left:
            return
        if len(self.fleet.alive) == 1 and not device.node:
            self._say(do.HaltRun(halt, worker, of_device=True))
            return
        self._say(do.DropDevice(device.number, halt))
        self._leave(device)

    def _leave(self, device: Device) -> None:
        for worker in device.workers:
            self._end(worker, "its device was dropped")
        self.fleet.leave(device)

    # --- signals

    def _heed_signal(self, stimulus: on.Drain | on.Stop) -> None:
        self._draining = True
        for worker in self.fleet.workers.values():
            if isinstance(stimulus, on.Stop):
                self._end(worker, "the run was stopped")
            elif worker.gate is Gate.SHUT:
                self._end(worker, "the run is draining")
