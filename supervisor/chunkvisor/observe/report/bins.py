"""Values over time in a bounded number of bins.

Pure: it never keeps more than `limit` bins, however long a run lasts; they become twice as wide instead.
"""

import math
from dataclasses import dataclass, field

LIMIT = 240
"""More points than this cannot be told apart in a plot that is as wide as a page."""


@dataclass(frozen=True, slots=True)
class Bin:
    """What was added at times within one bin."""

    start_s: float
    total: float
    count: int
    most: float


@dataclass(slots=True)
class Bins:
    """Bins of equal width along the clock; those into which nothing falls cost nothing."""

    limit: int = LIMIT
    width_s: float = 1.0
    _bins: dict[int, tuple[float, int, float]] = field(default_factory=dict)

    def add(self, at_s: float, value: float) -> None:
        """Add a value at that time, seconds since the epoch."""
        total, count, most = self._bins.get(number := math.floor(at_s / self.width_s), (0.0, 0, -math.inf))
        self._bins[number] = (total + value, count + 1, max(most, value))
        while len(self._bins) > self.limit:
            self._widen()

    def spread(self, start_s: float, stop_s: float, amount: float) -> None:
        """Add an amount that came about evenly between two times."""
        # Wider bins first: a chunk of many hours must not be cut into thousands of seconds.
        while stop_s - start_s > self.limit * self.width_s:
            self._widen()
        at_s, length_s = start_s, stop_s - start_s
        while at_s < stop_s:
            end_s = min(stop_s, (math.floor(at_s / self.width_s) + 1) * self.width_s)
            if end_s <= at_s:  # a bin that is narrower than a float's step
                break
            self.add((at_s + end_s) / 2, amount * (end_s - at_s) / length_s)
            at_s = end_s
        if length_s <= 0:
            self.add(stop_s, amount)

    def coarsen(self, width_s: float) -> None:
        """Make the bins at least so wide: what lies between them is drawn as well."""
        while self.width_s < width_s:
            self._widen()

    def bins(self) -> list[Bin]:
        """Those that have a value, oldest first."""
        return [Bin(number * self.width_s, *value) for number, value in sorted(self._bins.items())]

    def total_at(self, at_s: float) -> float:
        """What was added in the bin of that time."""
        return self._bins.get(math.floor(at_s / self.width_s), (0.0, 0, 0.0))[0]

    def _widen(self) -> None:
        self.width_s *= 2
        old, self._bins = self._bins, {}
        for number, (total, count, most) in old.items():
            other = self._bins.get(number // 2, (0.0, 0, -math.inf))
            self._bins[number // 2] = (total + other[0], count + other[1], max(most, other[2]))
