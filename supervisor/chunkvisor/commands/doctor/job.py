"""Reads what concerns one config: its model's files, its workdir, and what a worker makes of a sample of texts.

It downloads nothing and changes nothing in the workdir: the sample is made in a temporary folder. The hub is asked only
for a model that a run would have to download.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from chunkvisor.assemble.manifest import read_done_manifest
from chunkvisor.commands.doctor.host import read_folder, read_hub
from chunkvisor.commands.doctor.readings import JobReading, SampleReading, SourceReading, Whereabouts
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import Config
from chunkvisor.config.modelsection import ModelConfig
from chunkvisor.config.specs import encode_spec, model_spec
from chunkvisor.decide.verdict import Verdict
from chunkvisor.decide.watch import Patience
from chunkvisor.devices.gpu import Device
from chunkvisor.devices.processor import has_bfloat16, processor_flags
from chunkvisor.engine.expect import Expected, read_expected
from chunkvisor.engine.modelchecks import check_model_files
from chunkvisor.engine.modelfolder import ModelFolder, computed_dtype, read_model_folder
from chunkvisor.engine.modelsource import ModelSource, fetch_model, source_at_hand
from chunkvisor.engine.trial import Conditions, try_texts
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.ingest.firstrow import try_first_row
from chunkvisor.ingest.sourcesize import measure_source
from chunkvisor.show.status import State, read_status
from chunkvisor.store.artifact import Vectors
from chunkvisor.store.fixed import read_facts, read_staged
from chunkvisor.store.layout import Layout
from chunkvisor.store.seal import DamagedError
from chunkvisor.supervise.staging import request_of
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import ONLY_ASK, EncodeSpec

_FETCH_TIMEOUT_S = 120.0
_ASK_TIMEOUT_S = 30.0
_TEXT = "The quick brown fox jumps over the lazy dog."
_TEXTS = (_TEXT, "Row after row, the vectors were written to the disk before dawn.", _TEXT)
"""The first and the last are equal; with a batch for each, their vectors come from two passes of the same shape."""


def read_job(
    loaded: LoadedConfig,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    scratch: Path,
    say: Callable[[str], None],
) -> JobReading:
    """Everything about the config's job; the samples need device and model to be there. Raises OSError."""
    config, layout = loaded.config, Layout(loaded.config.workdir)
    whereabouts, source, problem = _find_model(loaded, layout, scratch)
    folder = read_model_folder(Path(source.path)) if source is not None and source.path else ModelFolder()
    found = check_model_files(config, source.path if source is not None else None)
    rows, dimension = _known_size(layout, list(config.outputs))
    reading = JobReading(
        model=config.model.name,
        whereabouts=whereabouts,
        problem=problem,
        findings=found,
        no_download=_ask_hub(config.model, scratch, say) if whereabouts is Whereabouts.HUB else None,
        weights_bytes=folder.weights_bytes,
        workers=max(1, len(devices)) * (config.workers.per_device + config.workers.standby),
        workdir=read_folder(config.workdir),
        rows=rows,
        dimension=dimension,
        busy_pid=_busy_pid(config.workdir),
        sources=tuple(_sources(config, layout, say)),
        dtype=computed_dtype(config.model, source.path) if source is not None else None,
        model_type=folder.model_type,
        cpu_has_bfloat16=has_bfloat16(processor_flags()),
    )
    if reading.busy_pid is not None or source is None or found.faults:
        return reading
    expected: Expected | None = None
    if config.model.expect is not None:
        try:
            expected = read_expected(config.model.expect)
        except Halt as halt:
            return replace(reading, expect_problem=(halt.what, halt.remedy))
        reading = replace(reading, expected=(str(expected.path), len(expected.texts)))
    return replace(reading, samples=tuple(_samples(loaded, source, devices, environment, scratch, say, expected)))


def _sources(config: Config, layout: Layout, say: Callable[[str], None]) -> Iterator[SourceReading]:
    say("reading the first rows of each output")
    for name in config.outputs:
        size = None
        try:
            request = request_of(config, name, None)
            with suppress(DamagedError, OSError):
                size = measure_source(request) if read_staged(layout.output(name)) is None else None
            if size is None:
                try_first_row(request)
        except Halt as halt:
            if halt.code is ExitCode.CONFIG:
                words = f"{halt.what} {halt.why}".strip()
                yield SourceReading(name, (words, halt.remedy or "correct it in the config"))
                continue
        yield SourceReading(name, size=size, note=config.outputs[name].template_note)


def _find_model(loaded: LoadedConfig, layout: Layout, scratch: Path) -> tuple[Whereabouts, ModelSource | None, str]:
    """(where the model is, its files, why it is nowhere)."""
    model = loaded.config.model
    if model.is_plugin:
        return Whereabouts.PLUGIN, ModelSource(None, model.revision), ""
    try:
        if (source := source_at_hand(model, layout.model)) is not None:
            return Whereabouts.FOLDER if source.path == model.name else Whereabouts.CACHED, source, ""
    except Halt as halt:
        return Whereabouts.NOWHERE, None, halt.what
    offline, backend = {**os.environ, "HF_HUB_OFFLINE": "1"}, str(model.kwargs.get("backend", "torch"))
    with suppress(TimeoutError):
        found = fetch_model(
            model.name, model.revision, backend, scratch / "fetch", lambda: None, offline, _FETCH_TIMEOUT_S
        )
        if isinstance(found, ModelSource):
            return Whereabouts.CACHED, found, ""
    return Whereabouts.HUB, None, ""


def _ask_hub(model: ModelConfig, scratch: Path, say: Callable[[str], None]) -> Verdict | None:
    """Why it would not give the model; None where it would, or may not be asked."""
    if read_hub(os.environ).offline:
        return None
    say(f"asking the model hub for {model.name}")
    try:
        found = fetch_model(
            model.name, model.revision, ONLY_ASK, scratch / "ask", lambda: None, timeout_s=_ASK_TIMEOUT_S
        )
    except TimeoutError:
        return Verdict(Outcome.HUB, f"it has given no answer within {_ASK_TIMEOUT_S:.0f} s")
    return found if isinstance(found, Verdict) else None


def _samples(
    loaded: LoadedConfig,
    source: ModelSource,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    scratch: Path,
    say: Callable[[str], None],
    expected: Expected | None,
) -> Iterator[SampleReading]:
    """Every way of encoding on the first device, and the first of them on the others.

    The first is done by two processes, each of which loads the model.
    """
    config = loaded.config
    model = model_spec(config.model, source.path, source.revision)
    patience = Patience.of(config)
    outputs_of: dict[EncodeSpec, list[str]] = {}
    for name in config.outputs:
        outputs_of.setdefault(encode_spec(config.effective_encode(name)), []).append(name)
    general = encode_spec(config.encode)
    if expected is not None:  # its vectors are those of `encode`, without the overrides of outputs
        outputs_of.setdefault(general, [])
    encodes = list(outputs_of)
    todo = [(device, encode) for device in devices for encode in (encodes if device is devices[0] else encodes[:1])]
    for number, (device, encode) in enumerate(todo):
        say(f"encoding a sample of texts on {device}")
        folder = scratch / f"sample{number}"
        folder.mkdir(mode=0o700)
        on_device = {**environment, "CUDA_VISIBLE_DEVICES": device.uuid}
        conditions = Conditions(device.kind, on_device, (str(loaded.folder),), patience)
        asked = expected if expected is not None and device is devices[0] and encode == general else None
        texts = (*_TEXTS, *asked.texts) if asked else _TEXTS
        trial = try_texts(texts, model, encode, conditions, folder)
        sample = SampleReading(trial.verdict, log_line=trial.log_line, linear=trial.linear, notes=trial.notes)
        if trial.vectors is not None:
            sample = measure(sample, trial.vectors[: len(_TEXTS)])
            if asked is not None:
                quantized = "quantization_config" in model.kwargs
                wrong = asked.problem(trial.vectors[len(_TEXTS) :], trial.dtype, quantized=quantized)
                sample = replace(sample, unexpected=wrong)
        if trial.vectors is not None and number == 0:
            say("encoding it once more in another process")
            folder = scratch / "again"
            folder.mkdir(mode=0o700)
            again = try_texts(_TEXTS, model, encode, conditions, folder)
            if again.vectors is None:
                sample = SampleReading(again.verdict, log_line=again.log_line)
            else:
                sample = replace(sample, elsewhere=_distance(trial.vectors[: len(_TEXTS)], again.vectors))
        outputs = f"outputs {', '.join(outputs_of[encode]) or 'none'}" if len(encodes) > 1 else ""
        where = ", ".join(filter(None, [outputs, str(device) if len(devices) > 1 else ""]))
        yield replace(sample, where=where)


def _distance(one: Vectors, other: Vectors) -> float:
    """The largest difference, relative to the largest component; 1 for vectors of another dimension."""
    return float(np.abs(one - other).max()) / float(np.abs(one).max()) if one.shape == other.shape else 1.0


def measure(reading: SampleReading, vectors: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> SampleReading:
    """The reading with what the vectors of the sample, shape (3, dimension), tell."""
    first, other, again = vectors
    return replace(
        reading,
        dimension=vectors.shape[1],
        difference=float(np.abs(first - again).max()) / float(np.abs(first).max()),
        tells_apart=bool((first != other).any()),
    )


def _known_size(layout: Layout, names: list[str]) -> tuple[int | None, int]:
    """(rows of the outputs that are not complete, dimension) from earlier runs; None, 0 = unknown."""
    rows: int | None = 0
    dimension = 0
    for output in map(layout.output, names):
        try:
            if read_done_manifest(output) is not None:
                continue
            record, facts = read_staged(output), read_facts(output)
        except (DamagedError, OSError):
            return None, dimension
        dimension = max(dimension, facts.dimension if facts is not None else 0)
        rows = None if record is None or rows is None else rows + record.staged.rows
    return rows, dimension


def _busy_pid(workdir: Path) -> int | None:
    try:
        status = read_status(workdir)
    except (Halt, OSError):
        return None
    return status.pid if status.state is State.RUNNING else None
