"""How long the run has waited for a world that is not ready, and what of that counts against `recovery.wait_timeout`.

Pure: the caller says what time it is, by a clock that does not jump.
"""

import math
from dataclasses import dataclass, field

from chunkvisor_worker.contract.exits import Outcome

Cause = tuple[Outcome, int | None]
"""What is waited for, and on which device (its number); None = all of them wait."""


@dataclass(slots=True)
class Waits:
    """The spells of waiting under way. A spell is wall time: however many workers meet its cause, it is one."""

    _since_s: dict[Cause, float] = field(default_factory=dict)
    _success_s: float = -math.inf
    """When something succeeded last, anywhere."""
    _in_vain: set[Cause] = field(default_factory=set)

    def spell_s(self, cause: Cause, now_s: float) -> float:
        """How long the spell has lasted; 0 = it would begin now."""
        return now_s - self._since_s.get(cause, now_s)

    def without_success_s(self, cause: Cause, now_s: float) -> float:
        """How much of the spell nothing has succeeded anywhere; all of eternity after one that was in vain."""
        if cause in self._in_vain:
            return math.inf
        return now_s - max(self._since_s.get(cause, now_s), self._success_s)

    def wait(self, cause: Cause, now_s: float) -> None:
        """It is waited for: a spell begins, or goes on."""
        self._since_s.setdefault(cause, now_s)

    def in_vain(self, cause: Cause) -> None:
        """The wait has not helped: it is not repeated in this run."""
        self._in_vain.add(cause)

    def got_through(self, cause: Cause) -> None:
        """The cause is gone: the next time begins a new spell."""
        self._since_s.pop(cause, None)

    def succeeded(self, now_s: float) -> None:
        """Something was done and stored: what all devices waited for is there."""
        self._success_s = now_s
        self.free(None)

    def free(self, device: int | None) -> None:
        """Nothing that was waited for on the device (None = on all together) is in the way any more."""
        for cause in [cause for cause in self._since_s if cause[1] == device]:
            del self._since_s[cause]
