"""Gathers what a forecast is made of: tables, lengths, sizes, what earlier runs have left. It writes no workdir."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from chunkvisor.assemble.combine import refuse_unequal
from chunkvisor.assemble.forms import asked_form
from chunkvisor.assemble.manifest import read_done_if_whole
from chunkvisor.assemble.numbers import Numbers
from chunkvisor.assemble.reader import Scratch
from chunkvisor.child import for_tokenizer, run_child
from chunkvisor.commands.planning.histogram import Distribution, Lengths, distribution, longest_texts
from chunkvisor.config.choices import Dtype, EngineKind
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import Config, encode_spec, model_spec, resolve_limits
from chunkvisor.devices.dtypes import Card, lacks, unfit_dtype
from chunkvisor.devices.gpu import SLOW_BFLOAT16, find_weakest, has_bfloat16, processor_flags
from chunkvisor.engine.environment import thread_count
from chunkvisor.engine.modelchecks import check_model_files, refuse_wrong_model
from chunkvisor.engine.modelfolder import ModelFolder, ModelShape, computed_dtype, read_model_folder
from chunkvisor.engine.modelsource import ModelSource, revision_at_hand, source_at_hand
from chunkvisor.engine.trial import read_expected
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import ChunkCommitted
from chunkvisor.events.journal import Entry, read_with_trials
from chunkvisor.sources.child import stage_table
from chunkvisor.sources.dedupe import WhereWriter, matches
from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.attempt import verdict_of_child
from chunkvisor.store.disk import RESERVE_BYTES, free_bytes, need_bytes
from chunkvisor.store.identity import Fixed, Identity, Plan, arithmetic_variables, identity_of, read_facts, read_fixed
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.ledger import committed_chunks
from chunkvisor.store.records import DamagedError
from chunkvisor.store.reuse import PlaceKind, read_reuse
from chunkvisor.supervise.candidates import gives_vectors, of_final, of_other_workdirs, sources_first
from chunkvisor.supervise.session import require_extras
from chunkvisor.supervise.staging import propose, request_of, staged_before, worker_rate
from chunkvisor_worker.contract.exits import BATCHES_AT_ONCE, most_lanes
from chunkvisor_worker.contract.files import LengthsFiles
from chunkvisor_worker.contract.messages import (
    EncodeSpec,
    LengthsAnswer,
    LengthsReport,
    LengthsRequest,
    LengthsTask,
    Limits,
    ModelSpec,
)
from chunkvisor_worker.contract.wire import read_message, write_message

LIBRARIES_BYTES = 1 << 30
"""About what torch and transformers take in a process, beside the weights."""

CONTEXT_BYTES = 1 << 29
"""About what a CUDA context with its libraries takes of a GPU's memory (300 to 500 MB on recent cards)."""

_HEADER_BYTES = 128


def final_bytes(rows: int, row_bytes: int) -> int:
    """Size of a final file with numpy's header; parquet is about as large."""
    return row_bytes * rows + _HEADER_BYTES


def disk_bytes(rows: int, texts_left: int, dimension: int, table_bytes: int, row_bytes: int = 0) -> int:
    """What an output still needs at most: its staged texts, the chunks to come, and the final file beside them.

    `row_bytes` is that of a final that is not float32 in an array.
    """
    return need_bytes(rows, texts_left, dimension, row_bytes) - RESERVE_BYTES + table_bytes


def memory_bytes(weights_bytes: int, activation_bytes: int, workers: int, computing: int) -> int:
    """Host memory of the workers, and of the `computing` batches that they hold there: none where that is on a GPU.

    Each loads the weights to host memory, before it moves them to its device.
    """
    return workers * (LIBRARIES_BYTES + weights_bytes) + computing * activation_bytes


def gpu_bytes(weights_bytes: int, activation_bytes: int, per_device: int) -> int:
    """Memory of one GPU on which `per_device` workers compute at a time."""
    return per_device * (CONTEXT_BYTES + weights_bytes + activation_bytes)


def last_rate(entries: Iterable[Entry]) -> float | None:
    """Texts a second over all devices, as the last commit that had a rate tells it."""
    rate = None
    for entry in entries:
        if isinstance(entry.event, ChunkCommitted) and (entry.event.texts_per_s or 0) > 0:
            rate = entry.event.texts_per_s
    return rate


def stride(chunks: int, chunk_size: int, most_texts: int) -> int:
    """N, where every Nth chunk is to be looked at, so that about `most_texts` texts are; 1 = all."""
    return max(1, -(-chunks * chunk_size // most_texts)) if chunks > 1 else 1


def scaled(count: int, measured: int, total: int) -> int:
    """A count among the measured texts, as it would be among all."""
    return round(count * total / measured) if measured else 0


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
        """Whether what an earlier run has done is of this table."""
        return self.begun is not None and self.begun.identity.source_digest == self.table.digest

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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where some may be."""

    index: Path
    numbers: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]] = lambda rows: rows
    """See `Candidate`."""


def known_texts(config: Config, samples: Mapping[str, Sample], revision: str, scratch: Path) -> dict[str, int]:
    """Of each output; no file is checked as a run checks it.

    Raises Halt (78) for a wrong `reuse_from`, OSError.
    """
    on_ray = config.engine.kind is EngineKind.RAY
    arithmetic = arithmetic_variables({} if on_ray else os.environ, config.env)
    identities = {
        name: identity_of(config, name, revision, each.table.digest, each.table.rows, arithmetic)
        for name, each in samples.items()
    }
    found, before = dict[str, int](), list[str]()
    for name in sources_first(config):
        sample, layout = samples[name], Layout(config.workdir).output(name)
        index = TableFiles(sample.table.folder).index
        if sample.ours:  # a run has looked
            try:
                reuse = read_reuse(layout)
            except DamagedError:
                reuse = None
            found[name] = reuse.taken if reuse is not None else 0
        elif config.reuse and index.exists():
            folder = scratch / f"known-{len(found)}"
            folder.mkdir(mode=0o700)
            writer = WhereWriter(folder, sample.table)
            places = [
                *_finals(config, identities[name], folder),
                *_earlier(identities, samples, before, name),
            ]
            for place in places:
                for here, there in matches(index, place.index):
                    known = place.numbers(there) >= 0
                    writer.add(0, here[known], there[known])
            encoded, _ = writer.write()
            found[name] = sample.table.distinct - encoded
        if index.exists() and gives_vectors(config, name):
            before.append(name)
    return found


def _finals(config: Config, wanted: Identity, scratch: Path) -> Iterator[_Place]:
    """What is finished."""
    layout, unpacked = Layout(config.workdir), Scratch(scratch)
    for folder in layout.outputs.glob("*/"):
        other = layout.output(folder.name)
        for each in (other, other.earlier):
            if (final := of_final(each, wanted, PlaceKind.OUTPUT, other.name, unpacked)) is not None:
                yield _Place(final.index, final.numbers)
    for final in of_other_workdirs(config.reuse_from, wanted, unpacked):
        yield _Place(final.index, final.numbers)


def _earlier(
    identities: Mapping[str, Identity],
    samples: Mapping[str, Sample],
    names: Sequence[str],
    name: str,
) -> Iterator[_Place]:
    """What the same run finishes before."""
    for other in names:
        if identities[name].of_vectors == identities[other].of_vectors:
            yield _Place(TableFiles(samples[other].table.folder).index)


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


_BLOCK_TEXTS = 1024


class UncountableError(Exception):
    """Tokens cannot be counted; the message says why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Lengths of the texts of one output."""

    lengths: Lengths
    unit: Unit
    report: LengthsReport | None = None
    """Of the child that counts tokens."""


def measure(
    config: Config, layout: Layout, samples: Sequence[Sample], scratch: Path
) -> tuple[Path | None, list[Measured], list[str]]:
    """Folder of the model, where there is one; the lengths of each output; what a person has to know of them.

    Raises Halt where the model's folder is wrong, OSError.
    """
    if config.model.is_plugin:
        note = "lengths are in characters: only the plug-in encoder itself knows its tokens"
        return None, _in_characters(samples), [note]
    source = source_at_hand(config.model, layout.model) or ModelSource(None, config.model.revision)
    refuse_wrong_model(config, source.path)
    spec = model_spec(config.model, source.path, source.revision)
    folder = scratch / "lengths"
    folder.mkdir(mode=0o700)
    try:
        answer, lengths = _count_tokens(spec, samples, folder)
    except UncountableError as error:
        note = f"lengths are in characters, tokens could not be counted: {error}"
        return Path(spec.path) if spec.path else None, _in_characters(samples), [note]
    if source.path is None:  # the child has found the tokenizer's files on the hub
        refuse_wrong_model(config, answer.path)
    notes = [f"{what}; {mend}" for what, mend in check_model_files(config, answer.path).warnings]
    if any(report.estimated for report in answer.reports):
        notes.append("tokens are estimated, one for three bytes: this model brings no tokenizer of its own")
    found = [
        Measured(each, Unit.ESTIMATED_TOKENS if report.estimated else Unit.TOKENS, report)
        for each, report in zip(lengths, answer.reports, strict=True)
    ]
    return Path(answer.path), found, notes


def _in_characters(samples: Sequence[Sample]) -> list[Measured]:
    return [Measured(_count_characters(sample), Unit.CHARACTERS) for sample in samples]


def _count_tokens(model: ModelSpec, samples: Sequence[Sample], folder: Path) -> tuple[LengthsAnswer, list[Lengths]]:
    """Ask the child, which works in the existing empty folder. Raises UncountableError, OSError."""
    files = LengthsFiles(folder)
    tasks = [
        LengthsTask(
            texts=str(TableFiles(sample.table.folder).texts),
            offsets=str(TableFiles(sample.table.folder).offsets),
            count=sample.plan.distinct,
            chunk_size=sample.plan.chunk_size,
            every=sample.every,
            encode=sample.encode,
            limits=sample.limits,
        )
        for sample in samples
    ]
    write_message(files.request, LengthsRequest(model, tuple(tasks)), durable=False)
    returncode = _run(files)
    answer = read_message(LengthsAnswer, files.answer)
    if answer is None or len(answer.reports) != len(tasks):
        verdict = verdict_of_child(returncode, files.fault, files.log)
        raise UncountableError(f"{verdict.reason} {verdict.remedy}".strip())
    try:
        lengths = [np.load(files.lengths(number), allow_pickle=False) for number in range(len(tasks))]
    except (OSError, ValueError) as error:
        raise UncountableError(f"what the tokenizer's process left cannot be read: {error}") from None
    return answer, lengths


def _count_characters(sample: Sample) -> Lengths:
    """Characters of each text looked at; int32 of shape (texts,). Raises DamagedError, OSError."""
    counts: list[int] = []
    for texts in sample.texts():
        for first in range(texts.start, texts.stop, _BLOCK_TEXTS):
            counts += map(len, sample.table.texts(first, min(texts.stop, first + _BLOCK_TEXTS)))
    return np.array(counts, dtype=np.int32)


def _run(files: LengthsFiles) -> int:
    command = [sys.executable, "-P", "-m", "chunkvisor_worker.lengths", str(files.folder)]
    return run_child(command, files.log, environment=for_tokenizer())


def activation_bytes(
    shape: ModelShape, element_bytes: int, rows: int, length: int, *, math_kernel: bool = False
) -> int:
    """Bytes that a padded batch of `rows` texts of at most `length` tokens takes at its peak.

    `element_bytes` is the size of one number in the model's dtype. The attention mask has a byte for each pair of
    tokens of a row, and is copied in the model's dtype while attention is computed; twice where the length is no
    multiple of eight.
    """
    copies = 1 if length % 8 == 0 else 2
    if shape.gated:
        feed_forward = 3 * shape.intermediate + 5 * shape.hidden
        attention = shape.hidden + 6 * shape.queries + 4 * shape.keys
    else:
        feed_forward = 2 * shape.intermediate + 3 * shape.hidden
        attention = 2 * shape.hidden + 4 * shape.queries
    of_mask = length * (1 + copies * element_bytes)
    if math_kernel:
        # Scores, their softmax (4 bytes each) and where that is nothing (1); query, key and value in float32.
        of_mask = length * (1 + element_bytes + 9 * shape.heads) + 14 * shape.queries
    a_token = max(feed_forward * element_bytes + length, attention * element_bytes + of_mask)
    return rows * length * a_token


def survey(loaded: LoadedConfig, max_rows: int | None, say: Callable[[str], None]) -> Forecast:
    """Find out what a run of the config would do. Raises Halt where the source or the model folder is wrong; OSError.

    `say` gets a line where a step may take a while.
    """
    if loaded.config.model.expect is not None:
        read_expected(loaded.config.model.expect)
    config = loaded.config
    require_extras(config)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-plan-") as name:
        scratch = Path(name)
        samples = {output: sample_of(config, output, max_rows, scratch, say) for output in config.outputs}
        refuse_unequal(config.combine, {output: sample.table.rows for output, sample in samples.items()})
        return _Survey(config, samples, scratch, whole=max_rows is None).forecast(say)


class _Survey:
    """The tables are there; the rest follows from them."""

    def __init__(self, config: Config, samples: dict[str, Sample], scratch: Path, *, whole: bool) -> None:
        self._config = config
        self._layout = Layout(config.workdir)
        self._samples = samples
        self._scratch = scratch
        self._whole = whole
        """All rows are looked at, and not the first ones alone."""
        self._notes: list[str] = []
        self._card: Card | None = None
        """The weakest GPU of the config here; None = the CPU, another machine's, or not known."""
        self._dtype: str | None = None
        """In which the model computes."""
        self._known: dict[str, int] = {}
        """Texts that have a vector already, by output."""

    def forecast(self, say: Callable[[str], None]) -> Forecast:
        config = self._config
        if not config.model.is_plugin and config.engine.kind is EngineKind.LOCAL:
            self._card = find_weakest(config.device)
        say("counting tokens" if not config.model.is_plugin else "measuring texts")
        folder, measured, notes = measure(config, self._layout, list(self._samples.values()), self._scratch)
        self._notes += notes
        revision = revision_at_hand(config.model, self._layout.model, read=bool(config.reuse_from))
        self._dtype = dtype = computed_dtype(config.model, str(folder) if folder else None)
        self._known = known_texts(config, self._samples, revision, self._scratch)
        model = read_model_folder(folder) if folder else ModelFolder()
        if self._card is not None and (unfit := unfit_dtype(dtype, model.model_type, self._card)) is not None:
            self._notes.append("; ".join(unfit))
        outputs = {name: self._output(name, each, model) for (name, each) in zip(self._samples, measured, strict=True)}
        weights = self._weights(model)
        on_cpu, per_gpu = "cpu" in config.device, "cuda" in config.device
        workers = (config.workers.per_device + config.workers.standby) * (1 if per_gpu else len(config.device))
        rate = last_rate(read_with_trials(config.workdir, self._layout.events))
        activations = self._activations(outputs.values())
        nearest = next(each for each in (config.workdir, *config.workdir.parents) if each.exists())
        at_once = self._batches_at_once(outputs.values()) if on_cpu else 1
        computing = config.workers.per_device * at_once if on_cpu else 0
        if on_cpu and dtype == Dtype.BFLOAT16 and not has_bfloat16(processor_flags()):
            self._notes.append(SLOW_BFLOAT16)
        on_gpu = None
        if weights is not None and activations is not None and not on_cpu:
            on_gpu = gpu_bytes(weights, activations, config.workers.per_device)
        return Forecast(
            outputs=outputs,
            peak_disk_bytes=_sum(each.disk_bytes for each in outputs.values()),
            final_disk_bytes=_sum(each.final_bytes for each in outputs.values()),
            free_disk_bytes=free_bytes(nearest),
            weights_bytes=weights,
            workers=workers,
            per_gpu=per_gpu,
            host_memory_bytes=None if weights is None else memory_bytes(weights, activations or 0, workers, computing),
            total_memory_bytes=int(psutil.virtual_memory().total),
            gpu_memory_bytes=on_gpu,
            texts_per_s=rate,
            time_s=sum(each.texts_left for each in outputs.values()) / rate if rate else None,
            notes=tuple(self._notes),
            batches_at_once=at_once,
        )

    def _weights(self, model: ModelFolder) -> int | None:
        loaded = model.loaded_bytes(str(self._config.model.dtype))
        if loaded is None and not self._config.model.is_plugin:
            self._notes.append("the size of the weights is unknown until a run has downloaded them")
        return loaded

    def _activations(self, outputs: Iterable[OutputForecast]) -> int | None:
        """Of the largest batch of all outputs; None where that of one of them is not known."""
        each = [output.activation_bytes for output in outputs]
        known = [size for size in each if size is not None]
        if len(known) == len(each):
            return max(known, default=0)
        if not self._config.model.is_plugin:
            self._notes.append("what a batch takes of the memory is not known for this model, and is not counted")
        return None

    def _batches_at_once(self, outputs: Iterable[OutputForecast]) -> int:
        """Of one worker on the CPU, at most."""
        given = os.environ | self._config.env
        cores = len(os.sched_getaffinity(0)) // self._config.workers.per_device
        threads = thread_count(given.get("OMP_NUM_THREADS"), "cpu", cores)
        chunks = (each.batches // each.chunks for each in outputs if each.batches and each.chunks)
        return max((most_lanes(threads, batches, given.get(BATCHES_AT_ONCE, "")) for batches in chunks), default=1)

    def _output(self, name: str, measured: Measured, model: ModelFolder) -> OutputForecast:
        sample, layout = self._samples[name], self._layout.output(name)
        table, plan, report, count = sample.table, sample.plan, measured.report, len(measured.lengths)
        known = self._known.get(name, 0)
        work = Plan(plan.distinct - known, plan.chunk_size)
        done = self._done(name, work)
        texts_left = work.distinct - work.texts_in(done)
        facts = read_facts(layout) if sample.ours else None
        dimension = facts.dimension if facts is not None else sample.encode.truncate_dim or model.dimension
        if count < plan.distinct:
            which = f"those of every {sample.every:,}th chunk"
            self._notes.append(f"{name}: {count:,} of {plan.distinct:,} distinct texts were measured, {which}")
        if note := self._config.outputs[name].template_note:
            self._notes.append(f"{name}: {note}")
        max_length = report.max_length if report else None
        disk, form = 0 if not texts_left else None, asked_form(self._config.outputs[name])
        row_bytes = Numbers(form.dtype, dimension or 0).row_bytes
        if texts_left and dimension is not None:
            beside = 0 if form.is_of_rows else row_bytes
            disk = disk_bytes(table.rows, texts_left, dimension, self._table_bytes(table), beside)
        return OutputForecast(
            rows=table.rows,
            distinct_texts=table.distinct,
            duplicate_share=1 - table.distinct / table.rows,
            texts_known=known,
            rows_empty=table.empty,
            chunks=work.count,
            chunks_done=done.count(1),
            chunk_size=plan.chunk_size,
            chunk_size_reason=sample.size_reason,
            texts_left=texts_left,
            texts_measured=count,
            length_unit=measured.unit,
            max_length=max_length,
            lengths=distribution(measured.lengths, max_length),
            longest=tuple(_long_texts(sample, measured.lengths)),
            batch_rows=sample.limits.rows,
            batch_tokens=sample.limits.tokens,
            batches=scaled(report.batches, count, plan.distinct) if report else None,
            padding_share=1 - report.tokens / report.padded_tokens if report and report.padded_tokens else None,
            dimension=dimension,
            final_bytes=final_bytes(table.rows, row_bytes) if dimension is not None else None,
            disk_bytes=disk,
            activation_bytes=self._activation(sample, measured, model, max_length),
        )

    def _activation(self, sample: Sample, measured: Measured, model: ModelFolder, max_length: int | None) -> int | None:
        """Of the batch of the longest texts: the first that a worker computes, and the largest."""
        if model.shape is None or measured.unit is not Unit.TOKENS or not len(measured.lengths):
            return None
        dtype = str(self._config.model.dtype)
        longest = min(int(measured.lengths.max()), max_length or int(measured.lengths.max()))
        rows, tokens = sample.limits.rows, sample.limits.tokens
        rows = min(rows, len(measured.lengths), max(1, tokens // longest) if tokens else rows)
        emulated = self._card is not None and lacks(self._dtype, self._card)
        return activation_bytes(model.shape, model.element_bytes(dtype), rows, longest, math_kernel=emulated)

    def _done(self, name: str, work: Plan) -> bytearray:
        """One byte a chunk: 1 where a run would find it done."""
        sample, layout = self._samples[name], self._layout.output(name)
        if self._whole and sample.begun is not None and not sample.ours:
            what = "the workdir holds work on another source or other rows, which a run accepts with --update"
            self._notes.append(f"{name}: {what}")
        if not sample.ours:
            return bytearray(work.count)
        finished = read_done_if_whole(layout) is not None
        return bytearray(b"\1") * work.count if finished else committed_chunks(layout, work)

    def _table_bytes(self, table: StagedTable) -> int:
        """Of a table that the run is still to stage."""
        if self._layout.outputs in table.folder.parents:
            return 0
        return sum(path.stat().st_size for path in table.folder.iterdir())


def _long_texts(sample: Sample, lengths: Lengths) -> list[LongText]:
    numbers = sample.texts()
    found = []
    for position in longest_texts(lengths):
        # All chunks looked at are full but the last one.
        chunk, offset = divmod(position, sample.plan.chunk_size)
        row = int(sample.table.first_row(numbers[chunk][offset], numbers[chunk][offset] + 1)[0])
        found.append(LongText(int(lengths[position]), row, sample.table.place_of(row)))
    return found


def _sum(sizes: Iterable[int | None]) -> int | None:
    """None where one of them is not known."""
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total
