"""What a run does next: turns what happens into instructions.

Pure: it reads no clock, file or process of its own. The clock, what the engine can take and the progress of the outputs
are handed in, and it only looks at them; the driver carries the instructions out. So a whole history can be played
without a process, and a simulator plays hundreds of lives a second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chunkvisor.decide import lastwords
from chunkvisor.decide.history import Budget
from chunkvisor.decide.outcome import EndedBy
from chunkvisor.devices.health import Health
from chunkvisor.errors import Halt
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.assignment import Assignment, Capacity
from chunkvisor.supervise.backlog import Backlog
from chunkvisor.supervise.blame import Blame
from chunkvisor.supervise.consequences import Consequences
from chunkvisor.supervise.draining import Draining, Forecast
from chunkvisor.supervise.fleet import Device, Fleet, Gate
from chunkvisor.supervise.joins import Joins
from chunkvisor.supervise.leaving import Leaving
from chunkvisor.supervise.lessonbook import LessonBook, Recall
from chunkvisor.supervise.progress import Progress
from chunkvisor.supervise.runhistory import RunHistory


@dataclass(frozen=True, slots=True)
class Settings:
    """What the scheduler needs of the config."""

    per_device: int = 1
    """Workers that compute on one device at a time."""
    standby: int = 1
    """Workers prepared beside those, per device."""
    budget: Budget = field(default_factory=Budget)
    bad_rows: lastwords.BadRows = field(default_factory=lastwords.BadRows)


class View(Capacity, Forecast, Protocol):
    """What the scheduler asks while it decides."""


class Scheduler:
    """Runs the pending chunks of all outputs on all devices."""

    def __init__(
        self,
        outputs: Sequence[Progress],
        settings: Settings,
        lessons: Recall,
        view: View,
        clock: Callable[[], float],
    ) -> None:
        """`lessons` are those of earlier runs, by kind of device; `clock` never jumps."""
        say, budget = self._say, settings.budget
        self._budget = budget
        self._clock = clock
        self._out: list[do.Instruction] = []
        self.fleet = Fleet()
        self._backlog = Backlog(outputs)
        self._history = RunHistory(outputs, budget, self.fleet)
        self._joins = Joins(outputs, self._backlog, budget.wait_timeout_s, say)
        self._leaving = Leaving(self.fleet, say)
        self._blame = Blame(outputs, settings.bad_rows, self._backlog, self.fleet, say, self._leaving, self._history)
        book = LessonBook(lessons, outputs)
        self._consequences = Consequences(
            outputs,
            budget,
            self._history,
            self._backlog,
            self.fleet,
            self._leaving,
            self._blame,
            book,
            self._joins,
            say,
        )
        self._assignment = Assignment(
            outputs, settings.per_device, self.fleet, self._backlog, book, self._joins, view, say
        )
        self._standby = settings.standby
        self._drain = Draining(self.fleet, self._leaving, view, say)
        self._unfit: Halt | None = None
        """Why the last device that could not be used when it joined was so."""
        for number in range(len(outputs)):
            self._joins.begin_if_complete(number)

    @property
    def finished(self) -> bool:
        """Whether nothing is under way, and nothing is left to do in this run."""
        if self.fleet.workers or self._joins.working:
            return False
        return self._drain.begun or (self._backlog.empty and not self._joins.waiting and not self._blame.undecided)

    def handle(self, stimulus: on.Stimulus) -> list[do.Instruction]:
        """What is to be done now that this has happened, in order."""
        now_s = self._clock()
        match stimulus:
            case on.TimePassed():
                self._turn(now_s)
            case on.Ready() | on.Freed() | on.Ended() | on.Started() | on.NotStarted() | on.Overdue() | on.Refused():
                self._heed_worker(stimulus, now_s)
            case on.Stored() | on.Quarantined() | on.NotStored() | on.PartsDamaged():
                self._consequences.heed_storage(stimulus, now_s)
            case on.DeviceJoined() | on.NodeLeft() | on.Looked():
                self._heed_device(stimulus, now_s)
            case on.Joined() | on.ChunkDamaged() | on.JoinWaits() | on.JoinStopped():
                self._joins.heed(stimulus, now_s)
            case on.Drain() | on.Stop():
                self._heed_signal(stimulus, now_s)
        said = self._out[:]
        self._out.clear()
        return said

    def _say(self, instruction: do.Instruction) -> None:
        self._out.append(instruction)

    def _turn(self, now_s: float) -> None:
        self._joins.turn(now_s)
        if self._drain.begun:
            self._drain.turn(now_s)
            return
        if self._unfit is not None and not self.fleet.alive:
            self._say(do.HaltRun(self._unfit))
            return
        working = self.fleet.working(now_s)
        # First of all a device gets the worker that was prepared for it.
        for device in working:
            self._assignment.open_gates(device, now_s)
        nothing_else = self._backlog.empty and not self.fleet.workers
        self._blame.settle(nothing_else=nothing_else)
        if self._backlog.due(now_s):
            standby = max(0, self._standby - self._history.host_ooms)
            self._assignment.fill(working, standby, now_s, far=self._blame.looks_afar)

    # --- workers

    def _heed_worker(self, stimulus: on.WorkerStimulus, now_s: float) -> None:
        worker = self.fleet.workers.get(stimulus.worker)
        if worker is None:
            return
        match stimulus:
            case on.Started():
                if worker.device.left or self._drain.begun:
                    why = "its device was dropped" if worker.device.left else "the run is draining"
                    self._leaving.end(worker, why)
            case on.Ready():
                worker.ready = True
            case on.Freed():
                worker.gate = Gate.PASSED
            case on.Overdue():
                self._leaving.end(worker, stimulus.why, EndedBy.HANG)
            case on.Refused():
                self.fleet.forget(worker)
                self._consequences.refused(worker)
            case on.Ended() | on.NotStarted():
                self.fleet.forget(worker)
                self._consequences.heed_end(worker, stimulus, now_s)
        if not self._drain.begun:
            self._assignment.open_gates(worker.device, now_s)

    def _heed_signal(self, stimulus: on.Drain | on.Stop, now_s: float) -> None:
        if isinstance(stimulus, on.Drain):
            self._drain.begin(stimulus.until_s, now_s)
            return
        for worker in self.fleet.workers.values():
            self._leaving.end(worker, "the run was stopped")
        self._drain.begin(None, now_s)

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
                    self._leaving.leave(device)
            case on.NodeLeft():
                self._leaving.leave_node(stimulus.node)
            case on.Looked() if (found := self.fleet.devices.get(stimulus.device)) is not None:
                self._heed_look(found, stimulus, now_s)

    def _heed_look(self, device: Device, stimulus: on.Looked, now_s: float) -> None:
        device.looking = False
        opinion = stimulus.opinion
        if device.suspected_s is None:
            return
        if opinion.health is Health.BROKEN:
            self._leaving.drop(device, lastwords.broken_gpu(device.name, opinion.why))
        elif opinion.health is Health.BUSY:
            waited_s = now_s - max(device.suspected_s, self.fleet.success_s)
            if waited_s > self._budget.wait_timeout_s:
                self._leaving.drop(device, lastwords.busy_gpu(device.name, waited_s, opinion.why))
        elif opinion.health is not Health.SETTLING:
            device.suspected_s, device.look_again_s = None, now_s  # the next fault is looked into at once
            if not self._drain.begun:
                self._assignment.open_gates(device, now_s)
