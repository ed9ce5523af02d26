"""What went wrong since a run last got on, and which rows it gave up: for the words with which it is stopped. Pure."""

from dataclasses import dataclass, field
from pathlib import Path

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.attempt import (
    AttemptInterrupted,
    BatchesKept,
    ChunkCommitted,
    FailureEvent,
    Go,
    PartCommitted,
    Quarantined,
)
from chunkvisor.events.event import Event
from chunkvisor.events.run import Draining
from chunkvisor.units import counted, human_time, listed

_STOPPED = (ExitCode.TRY_AGAIN, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
_NAMED = 3
"""Rows, at most."""


@dataclass(slots=True)
class Troubles:
    """Of one run, by its events."""

    _since_s: float | None = None
    """When it last got on; None = it has not begun."""
    _draining: bool = False
    _failures: dict[tuple[str, str], tuple[int, FailureEvent]] = field(default_factory=dict)
    """Since then, by outcome and rule: how many, and the last of them."""
    _rows: list[str] = field(default_factory=list)
    """Given up, with their places in the source."""

    def heed(self, event: Event, now_s: float) -> None:
        """Take in what has happened; `now_s` in seconds, by any clock."""
        match event:
            case Draining():
                self._draining = True  # what is finished or saved now is no sign that it would have got on
            case Go() if self._since_s is None:
                self._since_s = now_s
            case ChunkCommitted() | PartCommitted() | BatchesKept() if not self._draining:
                self._since_s = now_s
                self._failures.clear()
            case AttemptInterrupted():
                pass
            case FailureEvent():
                key = event.outcome, event.rule
                count, _ = self._failures.get(key, (0, event))
                self._failures[key] = count + 1, event
            case Quarantined():
                self._rows.append(f"{event.output} row {event.row} ({event.place})")

    def added_to(self, halt: Halt, now_s: float) -> Halt:
        """The Halt, with the troubles as its reason where a run was stopped amid them; else as it is."""
        if halt.code not in _STOPPED or halt.why:
            return halt
        parts, log, see = list[str](), halt.log, halt.see
        if self._failures and self._since_s is not None:
            most, last = max(self._failures.values(), key=lambda each: each[0])
            count = sum(number for number, _ in self._failures.values())
            parts.append(
                f"in the last {human_time(now_s - self._since_s)} nothing was encoded, and {counted(count, 'attempt')} "
                f"failed{f', {most:,} of them so' if most < count else ''}: {last.outcome}: {last.reason}"
            )
            log, see = Path(last.log) if last.log else log, last.rule or last.outcome
        if self._rows:
            parts.append(f"could not be encoded: {listed(self._rows, _NAMED)}")
        return Halt(halt.code, halt.what, why="; ".join(parts), remedy=halt.remedy, log=log, see=see)
