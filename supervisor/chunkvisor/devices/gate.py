"""Holds the next worker back until its GPU is fit for use: asks nvidia-smi beside the loop, never in it.

It never decides what the answers mean: `health` does.
"""

import contextlib
import os
import time
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
from chunkvisor.errors import ExitCode, Halt

_PAUSE_S = 2.0
_SETTLE_S = 30.0
"""A driver gives the memory of a killed process back within seconds; after this, what is held is somebody's."""
_FORMAT = "--format=csv,noheader,nounits"


class Sensor(Protocol):
    """Reads the state of one GPU, wherever it is."""

    def first(self) -> Future[Reading]:
        """Begin the reading before our first worker; it may take nvidia-smi's time limit."""

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

    def first(self) -> Future[Reading]:
        """See Sensor."""
        return self.ask()

    def ask(self) -> Future[Reading]:
        """See Sensor."""
        return self._pool.submit(_read, self._device, self._kernel_log)

    def close(self) -> None:
        """See Sensor."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class GpuGate:
    """The state of one device, asked for after every fault; a device that is no GPU is always fit."""

    def __init__(
        self,
        device: Device,
        wait_timeout_s: float,
        emit: Callable[..., None],
        sensor_of: Callable[[Device], Sensor] = SmiSensor,
        need_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`need_bytes()` is what a worker needs before its first batch; 0 = not known."""
        self._device = device
        self._need_bytes = need_bytes
        self._wait_timeout_s = wait_timeout_s
        self._emit = emit
        self._sensor = sensor_of(device) if is_watched(device) else None
        self._asked: Future[Reading] | None = None
        self._asked_s = 0.0
        self._suspected_s: float | None = None
        self._first: Reading | None = None
        self._used_to_bytes = 0
        self._blind, self._alone = False, False
        self.success_s = float("-inf")
        """When something succeeded last, on any device: what is waited for since then has cost the run nothing."""
        self._told = ""

    def begin(self) -> None:
        """Begin the first look, for `open`: with many GPUs and a hung nvidia-smi, all of them wait at once."""
        if self._sensor is not None:
            self._asked = self._sensor.first()

    def open(self) -> None:
        """Take the memory in use before our first worker as the baseline. Raises Halt (69) for a broken GPU."""
        if self._asked is None:
            self.begin()
        if self._asked is not None:
            self._first, self._asked = self._asked.result(), None
            reading = self._first
            self._used_to_bytes = reading.used_bytes or 0
            opinion = judge_gpu(reading, Demand(), frozenset())
            self._blind = opinion.health is Health.BLIND
            self._heed(opinion)

    def close(self) -> None:
        """Leave an nvidia-smi that is still under way behind."""
        if self._sensor is not None:
            self._sensor.close()

    def suspect(self) -> None:
        """A worker on this device failed, maybe by it: look at the device before the next one gets it."""
        if self._sensor is not None and self._suspected_s is None:
            self._suspected_s = time.monotonic()

    def fit(self, ours: frozenset[int]) -> bool:
        """Whether the next worker may have the device now. Raises Halt: 69 for a broken GPU, 75 for a busy one."""
        if self._suspected_s is None or self._sensor is None:
            self._alone = False  # it may have changed since the last look
            return True
        now_s = time.monotonic()
        if self._asked is None:
            if now_s - self._asked_s >= _PAUSE_S:
                self._asked, self._asked_s = self._sensor.ask(), now_s
            return False
        if not self._asked.done():
            return False
        reading, self._asked = self._asked.result(), None
        self._alone = is_alone(reading, ours)
        first = self._first if self._first is not None and self._first.used_bytes is not None else None
        demand = Demand(
            self._need_bytes(),
            self._device.memory_bytes,
            unnamed_bytes(first) if first is not None else None,
            settling=now_s - self._suspected_s < _SETTLE_S,
        )
        opinion = judge_gpu(reading, demand, ours)
        self._blind = opinion.health is Health.BLIND
        return self._heed(opinion)

    @property
    def view(self) -> View | None:
        """What is known of the GPU; None of what is none."""
        if self._device.kind != "cuda":
            return None
        return View(self._blind or self._sensor is None, self._alone, self._used_to_bytes)

    def get_used_to(self, others_bytes: int) -> None:
        """Others stay, and so they are not waited for any more."""
        self._used_to_bytes = max(self._used_to_bytes, others_bytes)

    def _heed(self, opinion: Opinion) -> bool:
        match opinion.health:
            case Health.BROKEN:
                raise Halt(
                    ExitCode.MACHINE,
                    f"{self._device} cannot be used any more",
                    why=opinion.why,
                    remedy="mend that, then run the same command again; what is done stays done",
                )
            case Health.BUSY:
                now_s = time.monotonic()
                waited_s = now_s - max(self._suspected_s or now_s, self.success_s)
                if waited_s > self._wait_timeout_s:
                    raise Halt(
                        ExitCode.TRY_AGAIN,
                        f"{self._device} stayed busy for {waited_s:.0f} s",
                        why=opinion.why,
                        remedy="end the other process, or wait for it; then run the same command again",
                    )
                self._tell("gpu_busy", opinion.why)
                return False
            case Health.SETTLING:
                return False
            case Health.BLIND:
                self._tell("gpu_blind", opinion.why)
        self._suspected_s = None
        return True

    def _tell(self, event: str, why: str) -> None:
        """Once for each thing that is the matter, not every two seconds."""
        if event != self._told:
            self._told = event
            self._emit(event, device=str(self._device), why=why)


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
