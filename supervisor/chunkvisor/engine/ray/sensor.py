"""A GPU of a node, as the gate before it sees it.

It never waits for nvidia-smi, which runs on the node.
"""

from collections.abc import Callable
from concurrent.futures import Future

from chunkvisor.devices.gpu import Device
from chunkvisor.devices.health import Reading
from chunkvisor.engine.ray.wire import NodeUp


class NodeSensor:
    """A Sensor of a node's GPU."""

    def __init__(self, look: Callable[[str, int], Future[Reading]], up: NodeUp, device: Device, first: Reading) -> None:
        """`look(node, position)` has the device looked at; `first` was read before the first worker."""
        self._look = look
        self._node = up.node
        self._position = up.devices.index(device)
        self._first = first

    def first(self) -> Future[Reading]:
        """See Sensor."""
        known: Future[Reading] = Future()
        known.set_result(self._first)
        return known

    def ask(self) -> Future[Reading]:
        """See Sensor."""
        return self._look(self._node, self._position)

    def close(self) -> None:
        """See Sensor."""
