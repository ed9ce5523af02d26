"""The texts to be measured of each output: an earlier run's table where it still fits, else one staged for the purpose.

The workdir is only read: this needs no lock, and works beside a live run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.commands.planning.estimate import stride
from chunkvisor.config.model import Config
from chunkvisor.config.specs import encode_spec, resolve_limits
from chunkvisor.decide.chunksize import propose, worker_rate
from chunkvisor.decide.cut import Shape
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.journal import read_with_trials
from chunkvisor.ingest.child import stage_table
from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.fixed import Fixed, Plan, read_fixed
from chunkvisor.store.layout import Layout
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.seal import DamagedError
from chunkvisor.supervise.staging import request_of, staged_before
from chunkvisor_worker.contract.messages import EncodeSpec, Limits

MOST_TEXTS = 1_000_000
"""Of more distinct texts than this, evenly spread chunks are measured."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What is to be measured of one output."""

    table: StagedTable
    plan: Plan
    every: int
    """Every Nth chunk is looked at."""
    encode: EncodeSpec
    limits: Limits
    begun: Fixed | None = None
    """What an earlier run has fixed of the output."""
    size_reason: str | None = None
    """Why the chunks have their size, where it was left to us."""

    @property
    def ours(self) -> bool:
        """What an earlier run has done is of this table, and of vectors of this shape."""
        same_texts = self.begun is not None and self.begun.identity.source_digest == self.table.digest
        return same_texts and self.same_shape

    @property
    def same_shape(self) -> bool:
        """Whether an earlier run, if there was one, wanted vectors of the same shape."""
        return self.begun is None or self.begun.identity.shape == Shape(self.encode.truncate_dim, self.encode.normalize)

    def texts(self) -> list[range]:
        """Numbers of the texts looked at, chunk by chunk."""
        return [range(*self.plan.bounds(chunk)) for chunk in range(0, self.plan.count, self.every)]


def sample_of(config: Config, name: str, max_rows: int | None, scratch: Path, say: Callable[[str], None]) -> Sample:
    """The sample of one output; a table that is staged for it lies in `scratch`. Raises Halt, OSError."""
    layout = Layout(config.workdir).output(name)
    table = _table(config, layout, max_rows, scratch / name, say)
    try:
        fixed = read_fixed(layout)
    except DamagedError:
        fixed = None  # a run says so
    encode = config.effective_encode(name)
    kind = "cpu" if "cpu" in config.device else "cuda"
    size, why = fixed.chunk_size if fixed else config.effective_chunk_size(name), None
    if size == "auto":
        rate = worker_rate(
            read_with_trials(config.workdir, Layout(config.workdir).events), config.model.name, kind, name
        )
        proposed = propose(rate, kind)
        size, why = proposed.texts, proposed.reason
    plan = Plan(table.distinct, size)
    limits = resolve_limits(encode, kind, plugin=config.model.is_plugin)
    spec = encode_spec(encode)
    return Sample(table, plan, stride(plan.count, plan.chunk_size, MOST_TEXTS), spec, limits, fixed, why)


def _table(
    config: Config, layout: OutputLayout, max_rows: int | None, folder: Path, say: Callable[[str], None]
) -> StagedTable:
    request = request_of(config, layout.name, max_rows)
    if staged_before(request, layout) is not None:
        try:
            return StagedTable.open(layout.table)
        except DamagedError:
            pass  # `clean` has removed it, or it is damaged: the next run stages it anew, and so do we
    say(f"{layout.name}: reading its source")
    try:
        return stage_table(request, folder, lambda: None)
    except Halt as halt:
        if halt.code is not ExitCode.DISK:
            raise
        where = f"plan keeps the texts in {folder.parent.parent} while it works"
        raise Halt(
            ExitCode.DISK,
            halt.what,
            why=f"{halt.why}; {where}" if halt.why else where,
            remedy="free some space there, or name another folder by the variable TMPDIR",
        ) from halt
