"""Values over time in a bounded number of bins: however long a run lasts, they become twice as wide instead of more."""

import math
from dataclasses import dataclass, field

LIMIT = 240
"""More points than this cannot be told apart in a plot that is as wide as a page."""
MOST = 1e15
"""No value of ours is as large; NaN is not smaller either."""


@dataclass(slots=True)
class Bin:
    """What was added at times within one bin."""

    total: float = 0.0
    count: int = 0
    most: float = -math.inf

    def add(self, other: "Bin") -> None:
        """Put two bins together."""
        self.total += other.total
        self.count += other.count
        self.most = max(self.most, other.most)


@dataclass(slots=True)
class Bins:
    """Bins of equal width along the clock; those into which nothing falls cost nothing."""

    limit: int = LIMIT
    width_s: float = 1.0
    _bins: dict[int, Bin] = field(default_factory=dict)

    def add(self, at_s: float, value: float) -> None:
        """Add a value at that time, seconds since the epoch; what cannot be one is passed over."""
        if not abs(value) < MOST:
            return
        self._bins.setdefault(math.floor(at_s / self.width_s), Bin()).add(Bin(value, 1, value))
        while len(self._bins) > self.limit:
            self.coarsen(2 * self.width_s)

    def spread(self, start_s: float, stop_s: float, amount: float) -> None:
        """Add an amount that came about evenly between two times."""
        length_s = stop_s - start_s
        # Wider bins first: a chunk of many hours must not be cut into thousands of seconds.
        self.coarsen(length_s / self.limit)
        if length_s <= 0:
            self.add(stop_s, amount)
        at_s = start_s
        while at_s < stop_s:
            end_s = min(stop_s, (math.floor(at_s / self.width_s) + 1) * self.width_s)
            if end_s <= at_s:  # a bin that is narrower than a float's step
                break
            self.add((at_s + end_s) / 2, amount * (end_s - at_s) / length_s)
            at_s = end_s

    def coarsen(self, width_s: float) -> None:
        """Make the bins at least that wide: what lies between them is drawn as well."""
        while self.width_s < width_s:
            self.width_s *= 2
            old, self._bins = self._bins, {}
            for number, each in old.items():
                self._bins.setdefault(number // 2, Bin()).add(each)

    def items(self) -> list[tuple[float, Bin]]:
        """(its start, bin) of all that have a value, oldest first."""
        return [(number * self.width_s, each) for number, each in sorted(self._bins.items())]
