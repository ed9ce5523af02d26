"""What a run would do and need, as numbers; None where nobody can know yet."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from chunkvisor.commands.planning.histogram import Distribution


class Unit(StrEnum):
    """What lengths are counted in."""

    TOKENS = "tokens"
    ESTIMATED_TOKENS = "estimated_tokens"
    CHARACTERS = "characters"


@dataclass(frozen=True, slots=True)
class LongText:
    """One of the longest texts."""

    length: int
    row: int
    place: str
    """File and line of the row."""


@dataclass(frozen=True, slots=True)
class OutputForecast:
    """Of one output; the names are the keys of `plan --json`."""

    rows: int
    distinct_texts: int
    duplicate_share: float
    """Share of the rows whose text an earlier row has, from 0 to 1."""
    chunks: int
    chunks_done: int
    chunk_size: int
    texts_left: int
    """Distinct texts of the chunks that are not done."""
    texts_measured: int
    """Texts whose length was looked at: fewer than there are where there are very many."""
    length_unit: Unit
    max_length: int | None
    """Tokens the model reads of a text; None where it has no limit, or lengths are in characters."""
    lengths: Distribution
    longest: tuple[LongText, ...]
    batch_rows: int
    """Limits of a batch, `auto` resolved."""
    batch_tokens: int | None
    batches: int | None
    """Of the whole output, by what was measured."""
    padding_share: float | None
    """Share of the device's work that is padding, from 0 to 1."""
    dimension: int | None
    final_bytes: int | None
    """Size of the final file."""
    disk_bytes: int | None
    """Still to be written, at most, while the output is being made: staged texts, chunks, final file."""
    activation_bytes: int | None = None
    """What the largest batch takes beside the weights; None where the model's shape or the tokens are not known."""
    chunk_size_reason: str | None = None
    """Why it is that, where `auto` chose it; None once a run has fixed it."""
    texts_known: int = 0
    """Distinct texts that have a vector already, in another output or an earlier file, and are in no chunk."""
    texts_cut: int = 0
    """Those of them whose vectors are cut from longer ones, or normalized."""
    rows_empty: int = 0
    """Rows whose text is empty, or was NULL: they share one vector."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of a whole config; the names are the keys of `plan --json`."""

    outputs: dict[str, OutputForecast]
    peak_disk_bytes: int | None
    final_disk_bytes: int | None
    free_disk_bytes: int | None
    weights_bytes: int | None
    """Of the model, as loaded in its dtype."""
    workers: int
    """Processes at a time, standbys included; for each GPU where `per_gpu`."""
    per_gpu: bool
    """The config asks for every GPU, and how many there are was not asked."""
    host_memory_bytes: int | None
    """An estimate for `workers` processes."""
    total_memory_bytes: int
    gpu_memory_bytes: int | None
    """An estimate for the workers that compute on one GPU at a time; None on a CPU, or where it is not known."""
    texts_per_s: float | None
    """Of this workdir's last run with a rate."""
    time_s: float | None
    """Of computing: reading the source and the start of the workers are not in it."""
    notes: tuple[str, ...]
    """What could not be found out, and why."""
    batches_at_once: int = 1
    """That a worker on the CPU computes side by side, at most; fewer where a batch takes long."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
