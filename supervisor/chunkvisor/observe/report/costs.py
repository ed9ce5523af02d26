"""Where the time went: the slowest chunks, seconds by the length of the texts, and what was not encoded again."""

import heapq
from dataclasses import dataclass, field

from chunkvisor.events import attempt as of_attempt
from chunkvisor.events import output as of_output
from chunkvisor.observe.report.attempts import remember

_SLOWEST, _OPEN, _TAKEN, _MOST_BITS = 10, 400, 50, 30


@dataclass(order=True, slots=True)
class ChunkCost:
    """What the attempts at one chunk cost together."""

    seconds: float = 0.0
    """Of a device, from the first batch of each attempt."""
    output: str = ""
    chunk: int = 0
    attempts: int = 0
    texts: int = 0
    tokens: int = 0
    """Encoded; of an attempt that failed half-way, its half. 0 tokens: the encoder does not count them."""
    done_s: float = 0.0
    """When it was committed. After `--update` or `--from-scratch` another chunk has the same number."""


@dataclass(slots=True)
class Taken:
    """What an output began with: a changed source, vectors that were there already, or both."""

    at_s: float
    output: str
    generation: int = 0
    rows_before: int = 0
    rows: int = 0
    reuse: of_output.TextsReused | None = None


@dataclass(slots=True)
class Costs:
    """Of a workdir, in bounded size."""

    chunks: int = 0
    """Committed ones, like their `seconds`."""
    seconds: float = 0.0
    taken: list[Taken] = field(default_factory=list)
    _slowest: list[ChunkCost] = field(default_factory=list)
    by_length: dict[int, ChunkCost] = field(default_factory=dict)
    """Attempts by the bits of the mean number of tokens of their texts: 5 stands for 16 to 31."""
    _open: dict[tuple[str, int], ChunkCost] = field(default_factory=dict)

    def ended(self, event: of_attempt.WorkerEnded) -> None:
        """An attempt is over, well or not."""
        place = event.output[:100], event.chunk
        cost = self._open.get(place, ChunkCost(0.0, *place))
        remember(self._open, place, cost, _OPEN)
        costs = [cost]
        if event.tokens and event.texts:
            bits = min((event.tokens // event.texts).bit_length(), _MOST_BITS)
            costs.append(self.by_length.setdefault(bits, ChunkCost()))
        for each in costs:
            each.seconds += event.busy_s
            each.attempts += 1
            each.texts += event.texts
            each.tokens += event.tokens

    def committed(self, event: of_attempt.ChunkEvent, at_s: float) -> None:
        """All vectors of the chunk are there."""
        if (cost := self._open.pop((event.output[:100], event.chunk), None)) is None:
            return
        cost.done_s = at_s
        self.chunks += 1
        self.seconds += cost.seconds
        heapq.heappush(self._slowest, cost)
        if len(self._slowest) > _SLOWEST:
            heapq.heappop(self._slowest)

    def took(self, event: of_output.GenerationBegun | of_output.TextsReused, at_s: float) -> None:
        """An output begins."""
        name = event.output[:100]
        last = next((each for each in reversed(self.taken) if each.output == name), None)
        if isinstance(event, of_output.GenerationBegun):
            self._open = {place: cost for place, cost in self._open.items() if place[0] != name}
            self.taken.append(Taken(at_s, name, event.generation, event.rows_before, event.rows))
        elif last is not None and last.reuse is None:
            last.reuse = event
        else:
            self.taken.append(Taken(at_s, name, reuse=event))
        del self.taken[:-_TAKEN]

    def slowest(self) -> list[ChunkCost]:
        """The slowest chunks, the slowest first."""
        return sorted(self._slowest, reverse=True)
