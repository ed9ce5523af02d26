"""Looks at GPUs: asks nvidia-smi beside the loop, never in it.

It decides nothing: `health` says what the answers mean, and the scheduler what follows.
"""

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from chunkvisor.devices.gpu import Device, ask_smi
from chunkvisor.devices.health import (
    Demand,
    Health,
    Opinion,
    Reading,
    View,
    is_alone,
    judge_gpu,
    parse_holders,
    parse_memory,
    parse_recovery_action,
    parse_xids,
    unnamed_bytes,
)
from chunkvisor.events.device import GpuBlind, GpuBusy
from chunkvisor.events.event import Emit, Event

_SETTLE_S = 30.0
"""A driver gives the memory of a killed process back within seconds; after this, what is held is somebody's."""
_FORMAT = "--format=csv,noheader,nounits"


class Sensor(Protocol):
    """Reads the state of one GPU, wherever it is."""

    def first(self) -> Reading:
        """Before our first worker; may take nvidia-smi's time limit."""

    def ask(self) -> Future[Reading]:
        """Begin a reading; nobody waits for it."""

    def close(self) -> None:
        """Leave a reading that is still under way behind."""


class SmiSensor:
    """A Sensor of a GPU of this machine."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kernel_log = _KernelLog()
        # A thread waits for nvidia-smi, which may take its whole time limit; the loop goes on meanwhile.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nvidia-smi")

    def first(self) -> Reading:
        """See Sensor."""
        return _read(self._device, self._kernel_log)

    def ask(self) -> Future[Reading]:
        """See Sensor."""
        return self._pool.submit(_read, self._device, self._kernel_log)

    def close(self) -> None:
        """See Sensor."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class GpuGate:
    """Looks at one device when asked to; nobody can look at a device that is no GPU known to nvidia-smi."""

    def __init__(
        self,
        device: Device,
        emit: Emit,
        sensor_of: Callable[[Device], Sensor] = SmiSensor,
        need_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`need_bytes()` is what a worker needs before its first batch; 0 = not known."""
        self._device = device
        self._need_bytes = need_bytes
        self._emit = emit
        self._sensor = sensor_of(device) if is_watched(device) else None
        self._asked: Future[Reading] | None = None
        self._ended_s = float("-inf")
        self._first: Reading | None = None
        self._used_to_bytes = 0
        self._blind, self._alone = False, False
        self._told: type[Event] | None = None

    def open(self) -> Opinion | None:
        """Take the memory in use before our first worker as the baseline; None where nobody can look."""
        if self._sensor is None:
            return None
        self._first = reading = self._sensor.first()
        self._used_to_bytes = reading.used_bytes or 0
        return self._noted(judge_gpu(reading, Demand(), frozenset()))

    def close(self) -> None:
        """Leave an nvidia-smi that is still under way behind."""
        if self._sensor is not None:
            self._sensor.close()

    def worker_ended(self, now_s: float) -> None:
        """A worker that had the device has ended: its memory may take a while to come back."""
        self._ended_s = now_s
        self._alone = False  # it may have changed since the last look

    def ask(self) -> None:
        """Begin a look; nobody waits for it."""
        if self._sensor is not None and self._asked is None:
            self._asked = self._sensor.ask()

    def answer(self, ours: frozenset[int], now_s: float) -> Opinion | None:
        """What the look under way says, None until it does; `ours` are the pids of our workers on the device."""
        if self._asked is None or not self._asked.done():
            return None
        reading, self._asked = self._asked.result(), None
        self._alone = is_alone(reading, ours)
        first = self._first if self._first is not None and self._first.used_bytes is not None else None
        demand = Demand(
            self._need_bytes(),
            self._device.memory_bytes,
            unnamed_bytes(first) if first is not None else None,
            settling=now_s - self._ended_s < _SETTLE_S,
        )
        return self._noted(judge_gpu(reading, demand, ours))

    @property
    def view(self) -> View | None:
        """What is known of the GPU; None of what is none."""
        if self._device.kind != "cuda":
            return None
        return View(self._blind or self._sensor is None, self._alone, self._used_to_bytes)

    def get_used_to(self, others_bytes: int) -> None:
        """Others stay, and so they are not waited for any more."""
        self._used_to_bytes = max(self._used_to_bytes, others_bytes)

    def _noted(self, opinion: Opinion) -> Opinion:
        """Tell of it, once for each thing that is the matter, not every two seconds."""
        self._blind = opinion.health is Health.BLIND
        kind = {Health.BUSY: GpuBusy, Health.BLIND: GpuBlind}.get(opinion.health)
        if kind is not None and kind is not self._told:
            self._told = kind
            self._emit(kind(str(self._device), opinion.why))
        return opinion


def is_watched(device: Device) -> bool:
    """Whether nvidia-smi can tell of the device: a GPU that is known by its UUID."""
    return device.kind == "cuda" and device.uuid.startswith("GPU-")


class _KernelLog:
    """Xid lines of /dev/kmsg since the run began, where we may read it."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._lines: list[str] = []
        with contextlib.suppress(OSError):
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)

    def lines(self) -> list[str]:
        """All Xid lines so far; a record that was overwritten meanwhile (EPIPE) is skipped, as kmsg wants it."""
        while self._fd is not None:
            try:
                line = os.read(self._fd, 8192).decode(errors="replace")
            except BrokenPipeError:
                continue
            except OSError:
                break
            if "Xid" in line:
                self._lines.append(line)
        return self._lines


def _read(device: Device, kernel_log: _KernelLog) -> Reading:
    memory = ask_smi(("--query-gpu=memory.used", _FORMAT, "-i", device.uuid))
    if memory.returncode != 0:
        return Reading(memory.returncode)
    apps = ask_smi(("--query-compute-apps=pid,process_name,used_memory", _FORMAT, "-i", device.uuid))
    details = ask_smi(("-q", "-x", "-i", device.uuid))
    return Reading(
        0,
        parse_memory(memory.text),
        parse_recovery_action(details.text),
        parse_holders(apps.text),
        parse_xids(kernel_log.lines(), device.bus_id),
    )
