"""Gathers what a forecast is made of: tables, lengths, sizes, what earlier runs have left. It writes no workdir."""

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from chunkvisor.assemble.combine import refuse_unequal
from chunkvisor.assemble.form import asked_form
from chunkvisor.assemble.manifest import read_done_if_whole
from chunkvisor.assemble.numbers import Numbers
from chunkvisor.commands.planning.activations import activation_bytes
from chunkvisor.commands.planning.estimate import disk_bytes, final_bytes, gpu_bytes, last_rate, memory_bytes, scaled
from chunkvisor.commands.planning.forecast import Forecast, LongText, OutputForecast, Unit
from chunkvisor.commands.planning.histogram import Lengths, distribution, longest_texts
from chunkvisor.commands.planning.known import Known, known_texts
from chunkvisor.commands.planning.measure import Measured, measure
from chunkvisor.commands.planning.samples import Sample, sample_of
from chunkvisor.config.choices import Dtype, EngineKind
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import Config
from chunkvisor.decide.dtypes import Card, lacks, unfit_dtype
from chunkvisor.devices.gpu import find_weakest
from chunkvisor.devices.processor import SLOW_BFLOAT16, has_bfloat16, processor_flags
from chunkvisor.engine.environment import thread_count
from chunkvisor.engine.expect import read_expected
from chunkvisor.engine.modelfolder import ModelFolder, computed_dtype, read_model_folder
from chunkvisor.engine.modelsource import revision_at_hand
from chunkvisor.events.journal import read_with_trials
from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.chunkfiles import committed_chunks
from chunkvisor.store.disk import free_bytes
from chunkvisor.store.fixed import Plan, read_facts
from chunkvisor.store.layout import Layout
from chunkvisor.supervise.extras import require_extras
from chunkvisor_worker.contract.environment import BATCHES_AT_ONCE
from chunkvisor_worker.contract.lanecount import most_lanes


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
        self._known: dict[str, Known] = {}
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
        self._known = known_texts(config, self._samples, revision, dtype, self._scratch)
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
        known = self._known.get(name, Known())
        work = Plan(plan.distinct - known.texts, plan.chunk_size)
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
            texts_known=known.texts,
            texts_cut=known.cut,
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
        rows, tokens = sample.limits.of_length(longest)
        rows = min(rows, len(measured.lengths), max(1, tokens // longest) if tokens else rows)
        emulated = self._card is not None and lacks(self._dtype, self._card)
        return activation_bytes(model.shape, model.element_bytes(dtype), rows, longest, math_kernel=emulated)

    def _done(self, name: str, work: Plan) -> bytearray:
        """One byte a chunk: 1 where a run would find it done."""
        sample, layout = self._samples[name], self._layout.output(name)
        if self._whole and sample.begun is not None and not sample.ours:
            what = "on another source or other rows" if sample.same_shape else "with another truncate_dim or normalize"
            self._notes.append(f"{name}: the workdir holds work {what}, which a run accepts with --update")
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
        path, line = sample.table.line_of(row)
        place = f"{path}:{line}" if line is not None else f"{path}, row {sample.table.locate(row)[1]}"
        found.append(LongText(int(lengths[position]), row, place))
    return found


def _sum(sizes: Iterable[int | None]) -> int | None:
    """None where one of them is not known."""
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total
