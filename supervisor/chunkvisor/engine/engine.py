"""What the loop needs of an engine: devices to work on, and workers on them."""

import signal
from collections.abc import Callable
from typing import Protocol

from chunkvisor.devices.handles import DeviceHandle, DeviceHandles
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Limits, Spec


class Worker(Protocol):
    """A handle on a running worker process."""

    pid: int
    """Id of the process and its group; 0 on another machine until the start is reported."""
    warm: bool  # forked from a template; a new interpreter otherwise

    def descriptors(self) -> list[int]:
        """Return descriptors that become readable when it ends or calls."""

    def has_called(self) -> bool:
        """Say whether it has called since this was last asked.

        A worker calls when it waits at its gate, and when it needs its device no longer.
        """

    def open_gate(self, limits: Limits) -> None:
        """Open the gate: let it use its device, in batches of these limits.

        A worker that has just died is not an error: its end is seen anyway.
        """

    def ask_to_stop(self) -> None:
        """Ask it to end after the current batch; what it has encoded stays in its folder."""

    def poll(self) -> int | None:
        """Return the code once it and its group have ended, None before.

        As subprocess gives it; STATUS_LOST or NODE_LOST if there is none.
        """

    @property
    def oom_kills(self) -> int:
        """Count the processes that its machine killed for lack of memory since it started."""

    def signal(self, number: signal.Signals) -> None:
        """Send the signal to the worker and the processes of its group."""


class Engine(Protocol):
    """Devices and workers of one run."""

    def open(self, handles: DeviceHandles, pending: Callable[[], int], places: int) -> None:
        """Add devices to `handles`, now or later.

        `pending` counts the chunks that are to be done; `places` is the most workers that a device
        has at a time, waiting ones included. Raises Halt.
        """

    def poll(self) -> None:
        """Take in what has happened. Raises Halt if nothing can be started any more."""

    def descriptors(self) -> list[int]:
        """Return descriptors that become readable when there is something to `poll`."""

    def is_preparing(self, handle: DeviceHandle) -> bool:
        """Say whether a start there has to wait, since a template is still loading the model."""

    def start(self, handle: DeviceHandle, files: AttemptFiles, spec: Spec) -> Worker:
        """Start a worker for the attempt. Raises OSError if none can be started, Halt."""

    def close(self) -> None:
        """End the engine's own processes; all workers have ended."""
