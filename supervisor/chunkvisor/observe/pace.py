"""How long it usually takes from one committed chunk to the next, and when the wait for one is too long."""

from dataclasses import dataclass

_LEAST_S = 1800.0
_TIMES = 10
_WEIGHT = 0.2
"""Of the newest interval in the running mean."""


@dataclass(slots=True)
class Pace:
    """Of one run."""

    usual_s: float | None = None
    """None until two chunks are there."""
    last_s: float | None = None
    """Of the last chunk, or the beginning of the run."""
    _chunks: int = 0

    def began(self, now_s: float) -> None:
        """A run began: the time before it does not count, what was usual still does."""
        self.last_s, self._chunks = now_s, 0

    def committed(self, now_s: float) -> None:
        """A chunk was committed."""
        if self._chunks and self.last_s is not None:
            passed_s = max(0.0, now_s - self.last_s)
            self.usual_s = passed_s if self.usual_s is None else self.usual_s + _WEIGHT * (passed_s - self.usual_s)
        self.last_s, self._chunks = now_s, self._chunks + 1

    def stalled_s(self, now_s: float) -> float | None:
        """How long nothing was committed, where that is ten times the usual and at least half an hour; else None."""
        if self.last_s is None:
            return None
        waited_s = now_s - self.last_s
        return waited_s if waited_s > max(_LEAST_S, _TIMES * (self.usual_s or 0.0)) else None
