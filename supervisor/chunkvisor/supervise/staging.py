"""What an output asks of its source: which table, what an earlier run has staged of it, and chunks of which size."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from chunkvisor.config.model import Config
from chunkvisor.errors import config_error
from chunkvisor.events.event import RunStarted, WorkerEnded
from chunkvisor.events.journal import Entry
from chunkvisor.sources.resolve import IngestRequest, is_remote, resolve, signature
from chunkvisor.store.identity import Staged, read_staged
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.records import DamagedError, digest_of


def request_of(config: Config, name: str, max_rows: int | None) -> IngestRequest:
    """Say what the output wants of its source. Raises Halt (78) if that has a file of the workdir's state."""
    output, layout = config.outputs[name], Layout(config.workdir)
    # A run would write into its own source, or read what it has written.
    here = resolve([source for source in output.source if not is_remote(source)])
    if found := next((file.path for file in here if layout.owns(file.path)), None):
        raise config_error(
            f"outputs.{name}.source: {found} is a file that chunkvisor keeps in the workdir for itself",
            remedy="choose another workdir, best an empty folder, or a pattern that does not match it",
        )
    return IngestRequest(
        sources=output.source,
        column=output.column,
        template=output.template,
        sql=output.sql,
        skip_blank=output.skip_blank,
        where=output.where,
        columns=output.columns,
        max_rows=max_rows,
        memory_limit_bytes=int(config.ingest.memory_limit),
    )


def asked(request: IngestRequest) -> dict[str, Any]:
    """Say what the staged table depends on, but for the contents of the files. Raises Halt if a file is gone."""
    values = asdict(replace(request, memory_limit_bytes=0))
    return {"request": digest_of(values), "signature": signature(resolve(request.sources))}


def staged_before(request: IngestRequest, layout: OutputLayout) -> Staged | None:
    """Read what an earlier run staged of the same request and untouched files. Raises Halt if a file is gone."""
    try:
        record = read_staged(layout)
    except DamagedError:
        return None
    return record.staged if record is not None and record.asked == asked(request) else None


TARGET_S = 40.0
"""A chunk takes a worker about this long: a fault costs little, and a worker's start little of it."""

LEAST_TEXTS, MOST_TEXTS = 100, 50_000

_LEADING = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
"""Round sizes begin with these: neighbors are at most 1.5 apart, so that the nearest keeps within 30 to 60 s."""

_UNMEASURED = {"cpu": 500, "cuda": 3000}
"""By device: 12 texts/s, as of 0.1 billion parameters on a few cores; 70, as of 1.5 billion on a GPU."""


@dataclass(frozen=True, slots=True)
class ChunkSize:
    """A size, and why it is that."""

    texts: int
    reason: str


def propose(texts_per_s: float | None, device_kind: str) -> ChunkSize:
    """Propose a round size for a worker of that rate; None = no rate is known, then one that suits many devices."""
    if texts_per_s is None:
        return ChunkSize(_UNMEASURED[device_kind], f"usual for {device_kind}; no rate of this model is known here yet")
    wanted = texts_per_s * TARGET_S
    steps = (round(leading * 10**power) for power in range(1, 6) for leading in _LEADING)
    sizes = [size for size in steps if LEAST_TEXTS <= size <= MOST_TEXTS]
    texts = min(sizes, key=lambda size: max(size, wanted) / min(size, wanted))
    rate = f"{texts_per_s:,.0f}" if texts_per_s >= 10 else f"{texts_per_s:.2g}"
    return ChunkSize(texts, f"at {rate} texts/s, {max(1, round(texts / texts_per_s)):,} s a chunk")


def worker_rate(entries: Iterable[Entry], model: str, device_kind: str, output: str) -> float | None:
    """Compute the texts a second of one worker, from its `go` to its end.

    The last run of that model on that kind of device that has anything to measure counts; texts of the output if there
    were any, else of all outputs. None if there is no such run.
    """
    ours, fresh = False, False
    sums: dict[str, tuple[int, float]] = {}
    for _, _, event in entries:
        if isinstance(event, RunStarted):
            kind = "cpu" if event.device == "cpu" else "cuda"
            ours, fresh = event.model == model and kind == device_kind, True
        elif ours and isinstance(event, WorkerEnded) and event.returncode == 0 and event.texts > 0 and event.busy_s > 0:
            if fresh:
                sums, fresh = {}, False
            texts, busy_s = sums.get(event.output, (0, 0.0))
            sums[event.output] = (texts + event.texts, busy_s + event.busy_s)
    counted = [sums[output]] if output in sums else list(sums.values())
    return sum(texts for texts, _ in counted) / sum(busy_s for _, busy_s in counted) if counted else None
