"""What the state of a run is made of: how far outputs, workers and devices are, as plain values that go into JSON."""

from dataclasses import dataclass
from typing import NamedTuple

from chunkvisor.events.attempt import WorkerEnded
from chunkvisor.events.event import Severity
from chunkvisor.events.output import OutputOpened


class AttemptKey(NamedTuple):
    """Which attempt."""

    output: str
    chunk: int
    attempt: int


@dataclass(slots=True)
class OutputProgress:
    """How far an output is."""

    rows: int = 0
    distinct: int = 0
    """0 where an earlier run has completed it."""
    chunks: int = 0
    chunks_done: int = 0
    texts_done: int = 0
    """In these chunks, or taken over."""
    texts_saved: int = 0
    """Of the chunks that are not done."""
    complete: bool = False
    texts_here: int = 0
    """Encoded by this run and kept, like its tokens."""
    tokens_here: int = 0
    quarantined: int = 0
    """Texts, by this run."""
    without: int = 0
    """Rows without a vector, as far as they have been found, by this run or before it."""

    def begin(self, event: OutputOpened) -> None:
        """It is known how much there is to do, and how far earlier runs came."""
        self.rows, self.distinct, self.chunks = event.rows, event.distinct, event.chunks
        self.chunks_done, self.texts_done = event.chunks_done, event.texts_done
        self.texts_saved, self.without = event.texts_saved, event.quarantined

    def give_up(self, rows: int) -> None:
        """A text of so many rows gets no vector; nothing more is done about it, so it counts as done.

        0 = the journal is of a version that did not tell it.
        """
        self.quarantined += 1
        self.without += max(1, rows)
        self.texts_saved += bool(rows)


@dataclass(slots=True)
class ActiveWorker:
    """An attempt under way."""

    output: str
    chunk: int
    attempt: int
    device: int
    pid: int
    computing: bool = False
    """It has its `go`; the others are prepared ahead."""
    limit_rows: int = 0

    @property
    def key(self) -> AttemptKey:
        """Which attempt."""
        return AttemptKey(self.output, self.chunk, self.attempt)


@dataclass(slots=True)
class DeviceTimes:
    """Of one device, in one run; the attribute names are keys of `status --json`."""

    texts: int = 0
    """Distinct texts that it has encoded."""
    tokens: int = 0
    """Without padding; 0 where the encoder cannot count them."""
    padded_tokens: int = 0
    """With it."""
    busy_s: float = 0.0
    """From the moment a worker gets the device to its end."""
    idle_s: float = 0.0
    """Between one worker's end and the moment when the next one gets the device: what isolation costs."""
    startup_s: float = 0.0
    """Imports, loading and tokenising of all workers; what of it is not in `idle_s` was hidden behind others' work."""
    texts_per_s: float | None = None
    """While busy."""
    tokens_per_s: float | None = None
    """While busy, without padding."""
    padding_share: float | None = None
    """Of the tokens that were computed."""

    def add(self, ended: WorkerEnded) -> None:
        """Take in the end of a worker."""
        self.texts += ended.texts
        self.tokens += ended.tokens
        self.padded_tokens += ended.padded_tokens
        if self.padded_tokens:
            self.padding_share = round(1 - self.tokens / self.padded_tokens, 4)
        self.busy_s = round(self.busy_s + ended.busy_s, 4)
        self.idle_s = round(self.idle_s + ended.idle_s, 4)
        self.startup_s = round(self.startup_s + ended.startup_s, 4)
        if self.busy_s:
            self.texts_per_s = round(self.texts / self.busy_s, 3)
            self.tokens_per_s = round(self.tokens / self.busy_s, 3) if self.tokens else None


@dataclass(frozen=True, slots=True)
class Point:
    """What a run had committed at a time."""

    t: float
    texts: int
    tokens: int


@dataclass(frozen=True, slots=True)
class NewsLine:
    """A line for people."""

    severity: Severity
    t: float
    """When, in seconds since the epoch."""
    words: str


def labels_of(devices: str, node: str = "", first: int = 0) -> dict[str, str]:
    """Short names of the devices of this machine or of a node, by their numbers, which begin with `first`."""
    short = ["CPU" if name == "cpu" else f"GPU {number}" for number, name in enumerate(devices.split(", "))]
    return {str(first + number): f"{node} {name}".lstrip() for number, name in enumerate(short)}
