"""What there is to see of a run at one moment, as plain frozen values."""

from dataclasses import dataclass

from chunkvisor.events.event import Severity
from chunkvisor.show.sensors import GpuReading


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker under way."""

    output: str
    chunk: int
    attempt: int
    phase: str
    """In plain words."""
    computing: bool
    """It has its `go`; the others are prepared ahead."""
    texts: int = 0
    texts_done: int = 0
    batch_rows: int = 0
    """Texts in the batch under way, or at most in one; 0 = not known yet."""
    rss_bytes: float | None = None
    silent_s: float = 0.0
    """Since its last sign of progress."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device and what works on it."""

    label: str
    workers: tuple[WorkerState, ...] = ()
    gpu: GpuReading | None = None


@dataclass(frozen=True, slots=True)
class OutputState:
    """How far an output is."""

    name: str
    rows: int
    share: float
    """Of its texts that are encoded, from 0 to 1; what the workers have done of their chunks counts."""
    chunks: int
    chunks_done: int
    complete: bool = False
    """It has its final file."""
    repeats: bool = False
    """Texts stand in several rows."""

    @property
    def rows_done(self) -> int:
        """Rows whose text is encoded."""
        return int(self.rows * self.share)

    @property
    def estimated(self) -> bool:
        """Whether `rows_done` is an estimate: nobody counts in how many rows the texts stand that are encoded."""
        return self.repeats and 0 < self.share < 1


@dataclass(frozen=True, slots=True)
class RunHealth:
    """Whether to worry."""

    severity: Severity
    words: str

    @property
    def marked(self) -> str:
        """The words, with a mark that needs no colour."""
        return {Severity.NEWS: "", Severity.CARE: "note: ", Severity.LOSS: "attention: "}[self.severity] + self.words


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment."""

    doing: str
    """What happens, in words, such as "computing"."""
    elapsed_s: float
    health: RunHealth
    outputs: tuple[OutputState, ...] = ()
    devices: tuple[DeviceState, ...] = ()
    rows_per_s: float | None = None
    """Rows encoded, by the time from the first worker's `go` to the last of them; while the run lives, of its last
    chunks. So the first start of the workers is not in it, and what comes between chunks is."""
    tokens_per_s: float | None = None
    eta_s: float | None = None
    by_tokens: bool = False
    """`eta_s` is reckoned from tokens, and not from `rows_per_s`."""
    chunks_here: int = 0
    """Committed by this run."""
    doing_s: float = 0.0
    """For how long it does that, where a person waits for it to be over; 0 = not worth telling."""
    waits_for: str = ""
    """Why nothing is started for a while; empty where nothing is in the way."""

    @property
    def rows(self) -> int:
        """Of all outputs."""
        return sum(output.rows for output in self.outputs)

    @property
    def rows_done(self) -> int:
        """Of all outputs."""
        return sum(output.rows_done for output in self.outputs)

    @property
    def estimated(self) -> bool:
        """Whether `rows_done` is an estimate."""
        return any(output.estimated for output in self.outputs)

    @property
    def chunks(self) -> int:
        """Of all outputs."""
        return sum(output.chunks for output in self.outputs)

    @property
    def chunks_done(self) -> int:
        """Of all outputs."""
        return sum(output.chunks_done for output in self.outputs)

    @property
    def share(self) -> float:
        """Of all rows that are done, from 0 to 1."""
        return sum(output.rows * output.share for output in self.outputs) / self.rows if self.rows else 0.0
