"""Workers that failed before their first batch, which no text can cause: how often in a row, and since when.

Pure: what follows is for the policy to say.
"""

from dataclasses import dataclass, field

from chunkvisor.decide.suspicion import Place


@dataclass(frozen=True, slots=True)
class FailedStart:
    """A worker's end before its first batch."""

    began_s: float
    """When the worker was started."""
    ended_s: float


@dataclass(slots=True)
class Starts:
    """The failed starts of a run since the last success, by place: a device, or a machine with its installation."""

    _rows: dict[Place, list[FailedStart]] = field(default_factory=dict)

    def before(self, place: Place, start: FailedStart) -> tuple[int, float]:
        """(failed starts in a row before this one, seconds since the first of them).

        A worker that was on its way when the last one failed confirms nothing: both may have met the same moment.
        """
        row = self._rows.get(place, [])
        if row and start.began_s < row[-1].ended_s:
            return len(row) - 1, start.ended_s - row[0].ended_s
        return len(row), start.ended_s - row[0].ended_s if row else 0.0

    def failed(self, place: Place, start: FailedStart) -> None:
        """Take it down, unless it confirms nothing."""
        row = self._rows.setdefault(place, [])
        if not row or start.began_s >= row[-1].ended_s:
            row.append(start)

    def succeeded(self, *places: Place) -> None:
        """A worker got past its start there."""
        for place in places:
            self._rows.pop(place, None)
