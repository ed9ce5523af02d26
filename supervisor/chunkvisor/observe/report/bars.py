"""The bar charts of a report: attempts by outcome, time by phase and by length, lengths of the texts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import dropwhile

import numpy as np

from chunkvisor.ingest.tablefiles import TableFiles
from chunkvisor.observe.histogram import Distribution, distribution
from chunkvisor.observe.report.attempts import kind_of
from chunkvisor.observe.report.costs import ChunkCost
from chunkvisor.observe.report.trouble import clean
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.units import human_time
from chunkvisor_worker.contract.files import open_regular

_OUTCOMES = 20
_SAMPLE, _BLOCK = 200_000, 10_000
"""Of a large table that many texts are looked at, in blocks."""
_PHASES = {
    "start": "start of the interpreter",
    "import": "imports",
    "model_load": "loading the model",
    "tokenize": "tokenising",
    "ready": "ready, waiting for the device",
    "cuda_init": "starting CUDA",
    "weights_copy": "copying the weights to the device",
    "forward": "encoding",
    "write": "writing vectors",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar chart."""

    label: str
    amount: float
    words: str
    css: str = "s1"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of the distinct texts of one output, in bytes of UTF-8."""

    output: str
    distribution: Distribution
    sampled: bool
    bars: list[Bar]


def outcome_bars(attempts: Mapping[str, int]) -> list[Bar]:
    """The most frequent outcomes."""
    total = sum(attempts.values())
    counts = sorted(attempts.items(), key=lambda item: -item[1])[:_OUTCOMES]
    return [
        Bar(clean(outcome, 40), count, f"{count:,} ({_percent(count / total)})", f"k-{kind_of(outcome)}")
        for outcome, count in counts
    ]


def phase_bars(phase_s: Mapping[str, float]) -> Iterator[Bar]:
    """In the order in which a worker goes through them; those that nobody knows last."""
    for name in [*_PHASES, *(phase_s.keys() - _PHASES.keys() - {"done"})]:
        if (seconds := phase_s.get(name, 0.0)) > 0:
            yield Bar(_PHASES.get(name, clean(name, 40)), seconds, duration(seconds), "s2" if name == "ready" else "s1")


def cost_bars(by_length: Mapping[int, ChunkCost]) -> Iterator[Bar]:
    """Seconds of the devices by the mean length of the texts that an attempt had, the shortest first."""
    for bits, cost in sorted(by_length.items()):
        if cost.seconds > 0:
            low = 1 << max(bits - 1, 0)
            words = f"{duration(cost.seconds)}, {cost.texts / cost.seconds:,.0f} texts/s"
            yield Bar(f"{low:,} to {2 * low - 1:,}" if low > 1 else "1", cost.seconds, words)


def lengths_of(outputs: Iterable[OutputLayout]) -> Iterator[Lengths]:
    """Of each whose table can be read; from its offsets alone."""
    for output in outputs:
        try:
            with open_regular(TableFiles(output.table).offsets) as file:
                offsets = np.memmap(file, dtype="<u8", mode="r")
        except (OSError, ValueError):
            continue
        if (count := len(offsets) - 1) < 1:
            continue
        # Blocks all over a large table: neighbours are often alike, and single reads would touch every page.
        block = count if count <= _SAMPLE else _BLOCK
        starts = np.linspace(0, count - block, min(count, _SAMPLE) // block).astype(int)
        sizes = np.concatenate([np.diff(offsets[at : at + block + 1].astype(np.int64)) for at in starts])
        found = distribution(np.clip(sizes, 0, np.iinfo(np.int32).max).astype(np.int32), None)
        bars = [
            Bar(f"{each.low:,} to {each.high:,}", each.count, _percent(each.count / found.count))
            for each in dropwhile(lambda each: not each.count, found.bins)
        ]
        yield Lengths(output.name, found, count > _SAMPLE, bars)


def _percent(share: float) -> str:
    return "< 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """A time in words, below ten seconds with two digits."""
    return human_time(seconds) if seconds >= 10 or not seconds else f"{seconds:.2g} s"
