"""Tells that a run waits for something: at once, and then about once a minute, however often it is tried meanwhile."""

from chunkvisor.events.event import Emit
from chunkvisor.events.run import Waiting

_EVERY_S = 60.0


class WaitTeller:
    """Of one run, or of one thing that is waited for."""

    def __init__(self, emit: Emit, limit_s: float) -> None:
        """`limit_s` is how long the run waits at most."""
        self._emit = emit
        self._limit_s = limit_s
        self._told_s: dict[int | None, float] = {}
        """How long the wait had lasted when it was last told, by device; None = of all."""

    def tell(self, delay_s: float, waited_s: float, reason: str, outcome: str, device: int | None = None) -> None:
        """The next try comes after `delay_s`; the wait has lasted `waited_s` so far, 0 = it begins."""
        told_s = self._told_s.get(device)
        again = waited_s > 0 and told_s is not None and told_s <= waited_s < told_s + _EVERY_S
        if not again:
            self._told_s[device] = waited_s
        self._emit(Waiting(delay_s, reason, outcome, round(waited_s, 1), self._limit_s, again))
