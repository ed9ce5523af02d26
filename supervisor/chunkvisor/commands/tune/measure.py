"""Runs the candidates: each in a worker of its own, on a sample of the config's texts. It writes no workdir."""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chunkvisor.commands.planning.samples import sample_of
from chunkvisor.commands.trial import Conditions, Trial, environment_of, try_texts
from chunkvisor.commands.tune.candidates import BASELINE, Candidate, backends, budgets, crowds, dtypes
from chunkvisor.commands.tune.compare import Measured, best_of
from chunkvisor.commands.tune.tuning import Tuning
from chunkvisor.config.choices import Backend, Dtype
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import Config
from chunkvisor.config.sections import EncodeConfig
from chunkvisor.config.specs import encode_spec, model_spec, resolve_limits
from chunkvisor.decide.likeness import Vectors, likeness
from chunkvisor.decide.watch import Patience
from chunkvisor.devices.gpu import Device, find_devices
from chunkvisor.devices.processor import has_bfloat16
from chunkvisor.engine.conversion import ensure_converted, openvino_version, with_place
from chunkvisor.engine.modelsource import ModelSource, source_at_hand
from chunkvisor.engine.quantization import Sample as Calibration
from chunkvisor.engine.quantization import ensure_quantized, nncf_version
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.ingest.sampled import sampled
from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.fixed import read_facts, read_fixed
from chunkvisor.store.layout import Layout
from chunkvisor.supervise.quantizing import samples_of
from chunkvisor_worker.contract.messages import ModelSpec, Phase
from chunkvisor_worker.contract.processor import lacks_int8, processor_flags

_FIRST_TEXTS = 64
"""In the first look, which tells how many texts the others get."""
_EACH_S = 6.0
"""So long float32 is to compute over the sample."""
_MOST_TEXTS = 2000


def tune(loaded: LoadedConfig, least_cosine: float, say: Callable[[str], None]) -> Tuning:
    """Try the candidates. Takes a minute or two.

    Raises Halt: 78 for a plug-in, whose settings are its own; what a run would end with where a source is wrong or no
    worker succeeds; OSError.
    """
    config = loaded.config
    source = _model_at_hand(config)
    devices = find_devices(config.device)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-tune-") as name:
        scratch = Path(name)
        tables = [sample_of(config, output, None, scratch, say).table for output in config.outputs]
        model = model_spec(config.model, source.path, source.revision)
        bench = _Bench(loaded, model, devices[0], scratch, say)
        bench.calibration = samples_of(config, dict(zip(config.outputs, tables, strict=True)))
        texts = _texts(tables, _FIRST_TEXTS)
        configured = _configured(loaded, "auto")
        first = bench.run(replace(configured, dtype=str(config.model.dtype)), texts)
        if first.vectors is None:
            raise _failed(first.trial)
        configured = replace(configured, dtype=first.trial.dtype or BASELINE.dtype)
        count = max(_FIRST_TEXTS, min(_MOST_TEXTS, int(first.texts_per_s * _EACH_S)))
        bench.texts = _texts(tables, count)
        begun = _begun(loaded)
        fixed = begun and begun[1]
        measured = list(bench.round(dict.fromkeys([BASELINE, configured])))

        def best() -> Measured | None:
            return best_of([each for each in measured if begun in (None, each.candidate.vectors)], least_cosine)

        def setting() -> Candidate:
            found = best()
            return found.candidate if found is not None else BASELINE

        measured += bench.round(dtypes(devices[0].kind, fixed))
        if begun is None or begun[0] == Backend.OPENVINO:
            measured += bench.round(each for each in _backends(devices[0].kind, fixed) if each != configured)
        measured += bench.round(budgets(devices[0].kind, setting()))
        measured += bench.round(crowds(setting(), len(os.sched_getaffinity(0))))
        return Tuning(
            tuple(measured),
            best(),
            len(bench.texts),
            sum(table.distinct for table in tables),
            len(devices),
            configured,
            f"outputs in the workdir have begun with {begun[0]} in {begun[1]}, and keep it" if begun else "",
        )


def _backends(kind: str, fixed: str | None) -> list[Candidate]:
    """Those that this machine has: in int8 only where that is not known to be slow."""
    flags, installed = processor_flags(), openvino_version() is not None
    int8 = nncf_version() is not None and not lacks_int8(flags)
    return backends(kind, installed=installed, bfloat16=has_bfloat16(flags), int8=int8, fixed=fixed)


def _model_at_hand(config: Config) -> ModelSource:
    if config.model.is_plugin:
        raise config_error(
            "tune compares dtypes and batches of a sentence-transformers model; this config has a plug-in encoder",
            remedy="compare its own settings by trials: chunkvisor run CONFIG --max-rows 1000 tells rows/s at its end",
        )
    source = source_at_hand(config.model, Layout(config.workdir).model)
    if source is None:
        raise config_error(
            f"the model {config.model.name} is not here yet",
            remedy=f"fetch it into a folder: hf download {config.model.name} --local-dir MODEL; then give tune that "
            "folder: chunkvisor tune CONFIG --set model.name=MODEL",
        )
    return source


@dataclass(frozen=True, slots=True)
class _Run:
    trial: Trial
    vectors: Vectors | None
    texts_per_s: float


class _Bench:
    """Workers under the same conditions."""

    def __init__(
        self, loaded: LoadedConfig, model: ModelSpec, device: Device, scratch: Path, say: Callable[[str], None]
    ) -> None:
        self._loaded, self._model, self._device, self._scratch, self._say = loaded, model, device, scratch, say
        self._folders = 0
        self._reference: Vectors | None = None
        self.texts: list[str] = []
        self.calibration: list[Calibration] = []

    def round(self, candidates: Iterable[Candidate]) -> Iterable[Measured]:
        """Try each on the sample; the first that ever succeeds is what the others are compared with."""
        for candidate in candidates:
            try:
                run = self.run(candidate, self.texts)
            except Halt as halt:  # of the conversion
                yield Measured(candidate, problem=f"{halt.what}: {halt.why}")
                continue
            if run.vectors is None:
                verdict = run.trial.verdict
                yield Measured(candidate, problem=f"{verdict.outcome}: {verdict.reason}")
                continue
            if self._reference is None:
                self._reference = run.vectors
            rows = self._rows_of(candidate)
            yield Measured(candidate, run.texts_per_s, likeness(run.vectors[rows], self._reference[rows]))

    def run(self, candidate: Candidate, texts: Sequence[str]) -> _Run:
        """One worker, or several at the same time that share texts and cores. Raises Halt as `ensure_converted`."""
        self._say(f"trying {candidate}")
        model = self._converted(replace(self._model, dtype=candidate.dtype, backend=candidate.backend))
        workers = candidate.per_device
        shares = [list(texts[number::workers]) for number in range(workers)]
        with ThreadPoolExecutor(workers) as pool:
            trials = list(pool.map(lambda share: self._try(candidate, model, share), shares))
        found = [trial.vectors for trial in trials if trial.vectors is not None]
        if len(found) < workers:
            return _Run(next(trial for trial in trials if trial.vectors is None), None, 0.0)
        vectors = np.empty((len(texts), found[0].shape[1]), dtype=np.float32)
        for number, share in enumerate(found):
            vectors[number::workers] = share
        seconds = max(_computing_s(trial, self._device) for trial in trials)
        return _Run(trials[0], vectors, len(texts) / max(seconds, 1e-6))

    def _converted(self, model: ModelSpec) -> ModelSpec:
        """The model with its converted form, which is made where it is not there yet."""
        if model.backend != Backend.OPENVINO:
            return model
        folder = self._scratch / "openvino"
        environment = environment_of(os.environ, [self._device], self._loaded.config.env)
        if model.dtype == Dtype.INT8:
            words = "converting the model for openvino, and quantising it to int8"
            digest = ensure_quantized(model, folder, self.calibration, environment, tell=lambda: self._say(words))
            return with_place(model, folder, digest)
        model = with_place(model, folder)
        ensure_converted(model, environment, tell=lambda: self._say("converting the model for openvino"))
        return model

    def _rows_of(self, candidate: Candidate) -> list[int]:
        """Of the sample, those that judge a candidate: in int8 not what it was quantised by, if there is more."""
        seen = set[str]()
        if candidate.dtype == Dtype.INT8:
            seen.update(text for sample in self.calibration for text in sample.texts)
        return [row for row, text in enumerate(self.texts) if text not in seen] or list(range(len(self.texts)))

    def _try(self, candidate: Candidate, model: ModelSpec, texts: Sequence[str]) -> Trial:
        config = self._loaded.config
        self._folders += 1
        folder = self._scratch / f"try{self._folders}"
        folder.mkdir(mode=0o700)
        environment = environment_of(os.environ, [self._device], config.env, workers=candidate.per_device)
        place = (str(self._loaded.folder),)
        patience = Patience.of(config)
        conditions = Conditions(self._device.kind, environment, place, patience)
        encode = _first_encode(self._loaded).model_copy(update={"batch_tokens": candidate.batch_tokens})
        limits = resolve_limits(encode, self._device.kind, plugin=False)
        return try_texts(texts, model, encode_spec(encode), conditions, folder, limits=limits)


def _configured(loaded: LoadedConfig, dtype: str) -> Candidate:
    tokens = _first_encode(loaded).batch_tokens
    config = loaded.config
    tokens = "auto" if tokens is None else tokens
    return Candidate(dtype, tokens, config.workers.per_device, str(config.model.backend))


def _first_encode(loaded: LoadedConfig) -> EncodeConfig:
    return loaded.config.effective_encode(next(iter(loaded.config.outputs)))


def _computing_s(trial: Trial, device: Device) -> float:
    """On a CPU texts are tokenised by the cores that compute; on a GPU that is done ahead, beside another worker."""
    phases = (Phase.TOKENIZE, Phase.FORWARD) if device.kind == "cpu" else (Phase.FORWARD,)
    return sum(trial.phase_s.get(phase, 0.0) for phase in phases)


def _texts(tables: Sequence[StagedTable], count: int) -> list[str]:
    """So many texts of all outputs together, by their shares and from short to long."""
    return [text for some in sampled(tables, count) for text in some]


def _begun(loaded: LoadedConfig) -> tuple[str, str] | None:
    """(backend, dtype) of outputs that have begun: theirs cannot change any more."""
    layout = Layout(loaded.config.workdir)
    for output in map(layout.output, loaded.config.outputs):
        facts, fixed = read_facts(output), read_fixed(output)
        if facts is not None and fixed is not None:
            return str(fixed.identity.values.get("model.backend", Backend.TORCH)), facts.dtype
    return None


def _failed(trial: Trial) -> Halt:
    verdict = trial.verdict
    return Halt(
        ExitCode(verdict.exit_code or ExitCode.MACHINE),
        f"no text could be encoded with the config as it is: {verdict.outcome}",
        why=f"{verdict.reason}; the last line of the worker's log: {trial.log_line or 'nothing'}",
        remedy=verdict.remedy or "`chunkvisor doctor CONFIG` looks at the machine and the model",
        see=verdict.see,
    )
