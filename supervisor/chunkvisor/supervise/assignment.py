"""Which texts go to which device, and which worker gets its device next.

Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from chunkvisor.supervise import instructions as do
from chunkvisor.supervise.backlog import Backlog
from chunkvisor.supervise.fleet import Device, Fleet, Gate
from chunkvisor.supervise.joins import Joins
from chunkvisor.supervise.lessonbook import LessonBook
from chunkvisor.supervise.progress import Progress
from chunkvisor.supervise.task import Task

LOOK_PAUSE_S = 2.0
"""Between two looks at a device that is not fit."""


class Capacity(Protocol):
    """What the engine can take at this moment."""

    def holding(self, device: int) -> bool:
        """Whether nothing is to be started there yet."""

    def has_room(self, device: int) -> bool:
        """Whether its machine has memory for one worker more."""


class Assignment:
    """Starts workers on devices, and lets them compute."""

    def __init__(
        self,
        outputs: Sequence[Progress],
        per_device: int,
        fleet: Fleet,
        backlog: Backlog,
        book: LessonBook,
        joins: Joins,
        capacity: Capacity,
        say: Callable[[do.Instruction], None],
    ) -> None:
        self._outputs = outputs
        self._per_device = per_device
        self._fleet = fleet
        self._backlog = backlog
        self._book = book
        self._joins = joins
        self._capacity = capacity
        self._say = say

    def open_gates(self, device: Device, now_s: float) -> None:
        """Let workers of the device that are ready compute, as far as places are free."""
        waiting = [each for each in device.workers if each.ready and each.gate is Gate.SHUT and not each.ending]
        if not waiting or device.left or now_s < max(device.paused_until_s, self._fleet.paused_until_s):
            return
        for worker in waiting[: max(0, self._per_device - device.computing)]:
            if not self._fit(device, now_s):
                return
            worker.gate, worker.go_s = Gate.OPEN, now_s
            limits = self._book.limits(self._outputs[worker.task.output].limits, device.kind, worker.task.tier)
            self._say(do.Go(worker.number, limits))

    def _fit(self, device: Device, now_s: float) -> bool:
        """Whether the next worker may have the device now; if that is not known, it is looked at."""
        if device.suspected_s is None:
            return True
        if not device.looking and now_s >= device.look_again_s:
            device.looking, device.look_again_s = True, now_s + LOOK_PAUSE_S
            self._say(do.Look(device.number))
        return False

    def fill(self, working: Sequence[Device], standby: int, now_s: float, *, far: bool) -> None:
        """Start workers: first one for every place that computes, then those that are prepared ahead.

        With `far`, texts are taken far from what has failed.
        """
        places = self._per_device + standby
        roomy = [device for device in working if device.holding < places]
        for place in range(places):
            for device in roomy:
                if device.holding > place or self._capacity.holding(device.number):
                    continue
                if place >= self._per_device and not self._capacity.has_room(device.number):
                    continue
                task = self._take(now_s, device, alone=len(working) == 1, far=far)
                if task is not None:
                    self._start(task, device)
                elif not self._backlog.due(now_s):
                    return

    def _take(self, now_s: float, device: Device, *, alone: bool, far: bool) -> Task | None:
        """The next texts for the device; chunks of which all is known are put together on the way."""
        by_node = len(self._fleet.nodes) > 1
        while True:
            task = self._backlog.take(now_s, device.seat, alone=alone, by_node=by_node, far=far)
            if task is None or task.texts:
                return task
            self._joins.compose_if_known(task.output, task.chunk)

    def _start(self, task: Task, device: Device) -> None:
        if device.fresh_only and not task.fresh:
            task = replace(task, fresh=True)
        limits = self._book.limits(self._outputs[task.output].limits, device.kind, task.tier)
        worker = self._fleet.add_worker(task, device)
        self._say(do.Start(worker.number, device.number, task, limits))
