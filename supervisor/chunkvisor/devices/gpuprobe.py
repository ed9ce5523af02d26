"""Asks nvidia-smi how the GPUs are, without ever waiting for the answer.

There is one child at a time. When nvidia-smi has failed three times in a row, it is given up for the run.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any

_FIELDS = {
    "memory.used": ("memory_used_bytes", 1 << 20),
    "memory.total": ("memory_total_bytes", 1 << 20),
    "utilization.gpu": ("utilization", 1),
    "temperature.gpu": ("temperature_c", 1),
    "power.draw": ("power_w", 1),
}
"""What nvidia-smi calls it -> (name of ours, size of its unit)."""
_COMMAND = ("nvidia-smi", f"--query-gpu=index,uuid,{','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_TIMEOUT_S = 20.0
_FAILURES = 3
_REAP_S = 1.0
_MOST_BYTES = 64 << 10


class GpuProbe:
    """Begins a question, and has the answer at some later time."""

    def __init__(self, uuids: Sequence[str]) -> None:
        """`uuids` are those of the run's devices, by number; an index may stand for one."""
        self._uuids = list(uuids)
        self._child: subprocess.Popen[bytes] | None = None
        self._hung: list[subprocess.Popen[bytes]] = []
        self._asked_s = 0.0
        self._failures = 0

    @property
    def given_up(self) -> bool:
        """It has failed too often, and is asked no more."""
        return self._failures >= _FAILURES

    def ask(self) -> None:
        """Begin a question, unless one is under way."""
        if self._child is not None or self.given_up:
            return
        self._asked_s = time.monotonic()
        try:
            self._child = subprocess.Popen(
                _COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            self._failures += 1
            return
        assert self._child.stdout is not None
        # If a child of it has kept the other end, a read must not wait for that.
        os.set_blocking(self._child.stdout.fileno(), False)

    def answer(self) -> list[dict[str, Any]] | None:
        """The readings by device, once, when they are there; else None."""
        self._hung = [child for child in self._hung if child.poll() is None]
        child = self._child
        if child is None:
            return None
        assert child.stdout is not None
        if child.poll() is None:
            if time.monotonic() - self._asked_s > _TIMEOUT_S:
                # In uninterruptible sleep it survives the kill; it is reaped when it has ended after all.
                child.kill()
                child.stdout.close()
                self._hung.append(child)
                self._child = None
                self._failures += 1
            return None
        with child.stdout:
            output = child.stdout.read(_MOST_BYTES) or b""
        self._child = None
        readings = parse(output.decode(errors="replace"), self._uuids) if child.returncode == 0 else []
        self._failures = 0 if readings else self._failures + 1
        return readings

    def close(self) -> None:
        """End what is under way."""
        for child in (*self._hung, *([self._child] if self._child is not None else [])):
            child.kill()
            if child.stdout is not None:
                child.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_REAP_S)
        self._hung, self._child = [], None


def parse(text: str, uuids: Sequence[str]) -> list[dict[str, Any]]:
    """Readings of the devices in `uuids`, by their place there; what nvidia-smi does not know is left out."""
    places = {uuid: number for number, uuid in enumerate(uuids)}
    readings = []
    for line in text.splitlines():
        index, _, rest = line.partition(",")
        values = [value.strip() for value in rest.split(",")]
        if len(values) != len(_FIELDS) + 1:
            continue
        device = places.get(values[0], places.get(index.strip()))
        if device is None:
            continue
        reading: dict[str, Any] = {"device": device}
        for (name, unit), value in zip(_FIELDS.values(), values[1:], strict=True):
            if (found := _number(value)) is not None:
                reading[name] = found if unit == 1 else int(found * unit)
        readings.append(reading)
    return sorted(readings, key=lambda each: int(each["device"]))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:  # [N/A], [Unknown Error]
        return None
    return value if 0 <= value < 1e12 else None
