"""What the loop needs of an engine: devices to work on, and workers on them.

Which chunk is worked on, and what an ended worker means, is decided elsewhere.
"""

import signal
from collections.abc import Callable
from typing import Protocol

from chunkvisor.devices.handles import DeviceHandle, DeviceHandles
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Limits, Spec


class Worker(Protocol):
    """A handle on a running worker process."""

    pid: int
    """Of the process, and of the group that it leads; of another machine, 0 until it is heard
    of."""
    warm: bool  # forked from a template; a new interpreter otherwise

    def watched(self) -> list[int]:
        """Descriptors that become readable when there is news of it: its end, or a call."""

    def has_called(self) -> bool:
        """Whether it has called since the last time.

        At the gate, done with its device, or with a new beat.
        """

    def go(self, limits: Limits) -> None:
        """Open the gate. A worker that has just died is not an error: its end is seen anyway."""

    def leave(self) -> None:
        """Have it end after the current batch, with what it has encoded in its folder."""

    def poll(self) -> int | None:
        """The return code once it and its group have ended, as subprocess gives it.

        Else STATUS_LOST, NODE_LOST.
        """

    def oom_kills(self) -> int:
        """Processes that its machine killed for lack of memory since it started."""

    def signal(self, number: signal.Signals) -> None:
        """Send the signal to the worker and everything that it has started."""


class Engine(Protocol):
    """Devices and workers of one run."""

    def open(self, handles: DeviceHandles, pending: Callable[[], int], places: int) -> None:
        """Put devices in, now or later.

        So many chunks are to be done, and a device has so many workers at a time.

        Raises Halt.
        """

    def poll(self) -> None:
        """Take in the news. Raises Halt if nothing can be started any more."""

    def watched(self) -> list[int]:
        """Descriptors that become readable when there is news."""

    def holding(self, handle: DeviceHandle) -> bool:
        """Whether nothing is to be started there yet: a template is getting ready, say."""

    def start(
        self,
        handle: DeviceHandle,
        files: AttemptFiles,
        spec: Spec,
        *,
        fresh: bool,
        blocking_launches: bool,
    ) -> Worker:
        """Start a worker for the attempt; `fresh` forbids a warm one.

        Raises OSError if none can be started, Halt.
        """

    def close(self) -> None:
        """End what is left of the engine; all workers have ended."""
