"""Finds a machine on which workers keep failing while they succeed on others.

Pure: it never looks at a machine, and never leaves one out; it hears how attempts at whole chunks end.
"""

from dataclasses import dataclass, field

from chunkvisor_worker.contract.exits import Outcome

STREAK = 3
"""So many different chunks have to fail on a machine in a row, and as many attempts to succeed elsewhere meanwhile."""


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
    """Attempts that succeeded on other machines since the first of them."""


class Suspicion:
    """The machines of a run, by name."""

    def __init__(self) -> None:
        self._streaks: dict[str, _Streak] = {}

    def failed(self, machine: str, charge: Charge) -> None:
        """An attempt failed there, which was charged to its chunk."""
        self._streaks.setdefault(machine, _Streak()).charges.append(charge)

    def succeeded(self, machine: str) -> None:
        """An attempt succeeded there."""
        self._streaks.pop(machine, None)
        for streak in self._streaks.values():
            streak.elsewhere += 1

    def guilty(self) -> str | None:
        """A machine to be left out, if there is one.

        A text that fails everywhere makes no machine guilty: it is one chunk.
        """
        for machine, streak in self._streaks.items():
            chunks = {charge.task for charge in streak.charges}
            if len(chunks) >= STREAK and streak.elsewhere >= STREAK:
                return machine
        return None

    def pardon(self, machine: str) -> list[Charge]:
        """Forget the machine; returns what its chunks were charged with by its doing."""
        streak = self._streaks.pop(machine, None)
        return streak.charges if streak is not None else []
