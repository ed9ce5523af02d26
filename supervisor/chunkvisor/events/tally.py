"""What the events of a journal come to in numbers: attempts, devices, rates, and how the last run ended.

Pure: it never reads a file; events are handed in, and it goes into JSON and back.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chunkvisor_worker.contract.exits import Outcome


@dataclass(slots=True)
class DeviceStatus:
    """Of one device, in one run."""

    texts: int = 0
    tokens: int = 0
    """Without padding; 0 where the encoder cannot count them."""
    busy_s: float = 0.0
    """From a worker's `go` to its end."""
    idle_s: float = 0.0
    """Between one worker's end and the next one's `go`: what isolation costs."""
    startup_s: float = 0.0
    """Imports, loading and tokenising of all workers; what of it is not in `idle_s` was hidden behind others' work."""
    texts_per_s: float | None = None
    """While busy."""
    tokens_per_s: float | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in the end of a worker."""
        self.texts += int(_number(event.get("texts")) or 0)
        self.tokens += int(_number(event.get("tokens")) or 0)
        self.busy_s = round(self.busy_s + (_number(event.get("busy_s")) or 0), 4)
        self.idle_s = round(self.idle_s + (_number(event.get("idle_s")) or 0), 4)
        self.startup_s = round(self.startup_s + (_number(event.get("startup_s")) or 0), 4)
        if self.busy_s:
            self.texts_per_s = round(self.texts / self.busy_s, 3)
            self.tokens_per_s = round(self.tokens / self.busy_s, 3) if self.tokens else None


@dataclass(frozen=True, slots=True)
class Share:
    """How much of an output a run has to do; of a slice, its part."""

    chunks_done: int
    chunks: int

    @classmethod
    def told(cls, event: Mapping[str, Any]) -> "Share":
        """As an event has it."""
        return cls(int(_number(event.get("chunks_done")) or 0), int(_number(event.get("chunks")) or 0))


@dataclass(slots=True)
class Tally:
    """Of all events so far."""

    attempts: dict[str, int] = field(default_factory=dict)
    """Ended attempts of all runs, by outcome."""
    texts_per_s: float | None = None
    eta_s: float | None = None
    told_s: float = 0.0
    """Time of the last event."""
    ending: dict[str, Any] | None = None
    """The event that ended the last run; None while it has not said its last word."""
    devices: dict[str, DeviceStatus] = field(default_factory=dict)
    """Of the last run, by number."""
    wanted: tuple[str, ...] = ()
    """Outputs of the last run's config."""
    shares: dict[str, Share] = field(default_factory=dict)
    """By output, of the last run."""

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        self.told_s = _number(event.get("t")) or 0.0
        match event["event"]:
            case "run_started":
                self.ending, self.eta_s, self.texts_per_s, self.devices, self.shares = None, None, None, {}, {}
                wanted = event.get("outputs")
                self.wanted = tuple(map(str, wanted)) if isinstance(wanted, list) else ()
            case "output_opened":
                # The slice that joins opens the output a second time, as a whole.
                self.shares.setdefault(str(event.get("output")), Share.told(event))
            case "chunk_committed":
                self.shares[str(event.get("output"))] = Share.told(event)
                # A chunk that was taken apart was put together by no attempt of its own.
                self._count(Outcome.COMMITTED, int(bool(event.get("attempt_ok"))))
                self.texts_per_s, self.eta_s = _number(event.get("texts_per_s")), _number(event.get("eta_s"))
            case "worker_ended":
                self.devices.setdefault(str(event.get("device")), DeviceStatus()).add(event)
            case "part_committed":
                self._count(Outcome.COMMITTED)
            case "attempt_failed" | "part_failed" | "attempt_interrupted":
                self._count(str(event.get("outcome")))
            case "halted" | "run_ended":
                self.ending = dict(event)

    def _count(self, outcome: str, count: int = 1) -> None:
        self.attempts[str(outcome)] = self.attempts.get(str(outcome), 0) + count


def _number(value: object) -> float | None:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return float(value) if type(value) is int and abs(value) < 1 << 53 else None
