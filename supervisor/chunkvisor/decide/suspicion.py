"""Finds a place, a machine or a device, where workers keep failing while they succeed at others.

Pure: it hears how attempts at whole chunks end, and leaves no place out itself.
"""

from dataclasses import dataclass, field

from chunkvisor_worker.contract.exits import Outcome

Place = int | str
"""A device by its number, a machine by its name."""

STREAK = 3
"""So many different chunks have to fail at a place in a row, and as many attempts to succeed elsewhere meanwhile."""


@dataclass(frozen=True, slots=True)
class Charge:
    """A failure that was counted as a try of its chunk."""

    task: tuple[int, int, int]
    """Which texts: output, first, one past the last."""
    outcome: Outcome


@dataclass(slots=True)
class _Streak:
    charges: list[Charge] = field(default_factory=list)
    elsewhere: int = 0
    """Attempts that succeeded at other places since the first of them."""


class Suspicion:
    """The devices of a run, or its machines."""

    def __init__(self) -> None:
        self._streaks: dict[Place, _Streak] = {}

    def failed(self, place: Place, charge: Charge) -> None:
        """An attempt failed there, which was charged to its chunk."""
        self._streaks.setdefault(place, _Streak()).charges.append(charge)

    def succeeded(self, place: Place) -> None:
        """An attempt succeeded there."""
        self._streaks.pop(place, None)
        for streak in self._streaks.values():
            streak.elsewhere += 1

    def guilty(self) -> Place | None:
        """A place to be left out, if there is one.

        A text that fails everywhere makes no place guilty: it is one chunk.
        """
        for place, streak in self._streaks.items():
            chunks = {charge.task for charge in streak.charges}
            if len(chunks) >= STREAK and streak.elsewhere >= STREAK:
                return place
        return None

    def pardon(self, place: Place) -> list[Charge]:
        """Forget the place; returns what its chunks were charged with by its doing."""
        streak = self._streaks.pop(place, None)
        return streak.charges if streak is not None else []
