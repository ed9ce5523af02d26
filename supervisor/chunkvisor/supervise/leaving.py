"""Does without workers, devices and machines.

Pure. When is for others to say: a fault, a look at a device, a comparison with the other devices.
"""

from collections.abc import Callable

from chunkvisor.decide import lastwords
from chunkvisor.decide.outcome import EndedBy
from chunkvisor.decide.steps import EndRun
from chunkvisor.errors import Halt
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise.fleet import Device, Fleet, Worker
from chunkvisor.supervise.runhistory import AttemptEnd
from chunkvisor.supervise.suspects import Guilty


class Leaving:
    """What the run does without from now on."""

    def __init__(self, fleet: Fleet, say: Callable[[do.Instruction], None]) -> None:
        self._fleet = fleet
        self._say = say

    def end(self, worker: Worker, why: str, by: EndedBy = EndedBy.STOP) -> None:
        """Begin to end the worker, unless that has begun."""
        if not worker.ending:
            worker.ending = True
            self._say(do.End(worker.number, by, why))

    def leave(self, device: Device) -> None:
        """The device is gone, or is to be left alone."""
        for worker in device.workers:
            self.end(worker, "its device was dropped")
        self._fleet.leave(device)

    def drop(self, device: Device, halt: Halt, worker: int = 0) -> None:
        """Do without the device; where it is the last one of the supervisor's own machine, the run ends."""
        if device.left:
            return
        if len(self._fleet.alive) == 1 and not device.node:
            self._say(do.HaltRun(halt, worker, of_device=True))
            return
        self._say(do.DropDevice(device.number, halt))
        self.leave(device)

    def drop_node(self, node: str, halt: Halt) -> None:
        """Do without a machine; whether others are left, or come, is for the engine to say."""
        self._say(do.DropNode(node, halt))
        self.leave_node(node)

    def do_without(self, step: EndRun, end: AttemptEnd, halt: Halt) -> bool:
        """Do without the machine or the device by which every further worker would fail.

        False where it is neither: the run ends then.
        """
        device = end.device
        if device is not None and device.node and step.of_machine(end.verdict):
            self.drop_node(device.node, halt)
        elif device is not None and step.of_device(end.verdict):
            self.drop(device, halt, end.worker)
        else:
            self._say(do.HaltRun(halt, end.worker))
            return False
        return True

    def leave_node(self, node: str) -> None:
        """The machine is gone."""
        for device in self._fleet.on_node(node):
            self.leave(device)

    def leave_out(self, guilty: Guilty) -> None:
        """Do without a place at which all fails that succeeds at others."""
        if isinstance(guilty.place, str):
            self.drop_node(guilty.place, lastwords.failing_machine(guilty.charges))
        elif (device := self._fleet.devices.get(guilty.place)) is not None and len(self._fleet.alive) > 1:
            self.drop(device, lastwords.failing_device(device.name, guilty.charges))
