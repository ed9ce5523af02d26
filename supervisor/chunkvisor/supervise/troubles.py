"""What went wrong since a run last got on, and which rows it gave up: for the words with which it ends early. Pure."""

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
from chunkvisor.events.output import OutputOpened
from chunkvisor.events.run import Draining
from chunkvisor.units import counted, human_time, listed

_STOPPED = (ExitCode.TRY_AGAIN, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
_NAMED = 10
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
    _rows_before: dict[str, int] = field(default_factory=dict)
    """By output, how many rows earlier runs gave up."""

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
            case OutputOpened():
                self._rows_before.setdefault(event.output, event.quarantined)  # opened again, it has ours as well
            case Quarantined():
                self._rows.append(f"{event.output} row {event.row} ({event.place})")

    def added_to(self, halt: Halt, now_s: float) -> Halt:
        """The Halt, with the troubles as its reason where a run was stopped amid them, and the rows that it gave up."""
        if halt.code is ExitCode.QUARANTINED:  # it names them itself
            return halt
        parts, log, see = [halt.why] if halt.why else [], halt.log, halt.see
        stopped = halt.code in _STOPPED and not halt.why
        if stopped and self._failures and self._since_s is not None:
            most, last = max(self._failures.values(), key=lambda each: each[0])
            count = sum(number for number, _ in self._failures.values())
            lasts_s = now_s - self._since_s
            since = f"in the last {human_time(lasts_s)} nothing was encoded, and " if lasts_s >= 1 else ""
            parts.append(
                f"{since}{counted(count, 'attempt')} failed{f', {most:,} of them so' if most < count else ''}: "
                f"{last.outcome}: {last.reason}"
            )
            log, see = Path(last.log) if last.log else log, last.rule or last.outcome
        if rows := self._rows_in_words():
            parts.append(rows)
        why = "\n       ".join(parts)  # below each other
        if why == halt.why:
            return halt
        return Halt(halt.code, halt.what, why=why, remedy=halt.remedy, log=log, see=see)

    def _rows_in_words(self) -> str:
        """Which rows have no vector, as far as they have been found; empty where there are none."""
        before = sum(self._rows_before.values())
        earlier = f"{counted(before, 'row')} in earlier runs" if before else ""
        found = "; ".join(filter(None, (listed(self._rows, _NAMED) if self._rows else "", earlier)))
        return f"without a vector so far: {found}" if found else ""
