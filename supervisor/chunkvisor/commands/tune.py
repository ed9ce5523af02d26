"""Try dtypes, token budgets and numbers of workers on a sample of the config's texts; compare rates and vectors."""

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.commands.audit import failure
from chunkvisor.commands.plan import table_of
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import encode_spec, model_spec, resolve_limits
from chunkvisor.devices.dtypes import Card, advised_dtype, unfit_dtype
from chunkvisor.devices.gpu import Device, find_devices, has_bfloat16, weakest
from chunkvisor.engine.modelfolder import read_model_folder
from chunkvisor.engine.modelsource import ModelSource, source_at_hand
from chunkvisor.engine.trial import Conditions, Trial, environment_of, try_texts
from chunkvisor.errors import config_error
from chunkvisor.judge import Patience
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.identity import read_facts
from chunkvisor.store.layout import Layout
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.messages import ModelSpec, Phase

Vectors = npt.NDArray[np.float32]

# Around what `auto` is: 2,048 on a CPU, 32,768 on a GPU.
_TOKENS = {"cpu": (1024, 4096, 8192), "cuda": (8192, 16384, 65536)}
_FIRST_TEXTS, _MOST_TEXTS = 64, 2000
_EACH_S = 4.0
"""Seconds that the sample takes with the config as it is."""
_MATTERS = 1.05
"""A setting that gains less than a twentieth is not worth a change of the config."""
_HEAD = ("dtype", "tokens", "workers", "texts/s", "cosine", "least", "all of it", "cost")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to encode; the fields are keys of the config."""

    dtype: str = "float32"
    batch_tokens: int | str = "auto"
    per_device: int = 1

    def settings(self) -> dict[str, int | str]:
        """Return dotted key of the config -> value."""
        return {
            "model.dtype": self.dtype,
            "encode.batch_tokens": self.batch_tokens,
            "workers.per_device": self.per_device,
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of a candidate; the rate is that of one device, without the start of its workers."""

    candidate: Candidate
    texts_per_s: float = 0.0
    mean_cosine: float | None = None
    least_cosine: float | None = None
    problem: str = ""
    """Why it failed; then there are no numbers."""


@dataclass(slots=True)
class Tuning:
    """What was tried, in this order: float32 first, from the plain to the unusual."""

    texts: int
    """Distinct texts of the whole job."""
    devices: int
    least_cosine: float
    begun: str | None
    """The dtype of outputs that have begun; their vectors stay as they are, however near they are to float32."""
    configured: Candidate = field(default_factory=Candidate)
    sample: int = 0
    measured: list[Measured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Measured | None:
        """The fastest whose vectors are near enough, or an earlier one that is as fast but for chance."""
        best = None
        for each in self.measured:
            if each.least_cosine is None or self.begun not in (None, each.candidate.dtype):
                continue
            near = self.begun is not None or each.least_cosine >= self.least_cosine
            if near and (best is None or each.texts_per_s > best.texts_per_s * _MATTERS):
                best = each
        return best

    @property
    def changes(self) -> dict[str, int | str]:
        """Dotted key -> the recommended value, if the config has another."""
        now, best = self.configured.settings(), self.best
        return {key: value for key, value in best.candidate.settings().items() if now[key] != value} if best else {}


def tune(loaded: LoadedConfig, least_cosine: float, say: Callable[[str], None]) -> Tuning:
    """Try the candidates. Takes a minute or two.

    Raises Halt: 78 for a plug-in or a model that is not here; what a run would end with if a source is wrong or no
    worker succeeds; OSError.
    """
    config = loaded.config
    source, devices = _model_at_hand(loaded), find_devices(config.device)
    model_type = read_model_folder(Path(source.path or "")).model_type
    kind, encode = devices[0].kind, config.effective_encode(next(iter(config.outputs)))
    facts = (read_facts(Layout(config.workdir).output(name)) for name in config.outputs)
    begun = next((each.dtype for each in facts if each is not None), None)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-tune-") as name:
        tables = [table_of(config, output, None, Path(name), say) for output in config.outputs]
        tuning = Tuning(sum(table.distinct for table in tables), len(devices), least_cosine, begun)
        bench = _Bench(loaded, model_spec(config.model, source.path, source.revision), devices[0], Path(name), say)
        tokens = "auto" if encode.batch_tokens is None else encode.batch_tokens
        asked = Candidate(str(config.model.dtype), tokens, config.workers.per_device)
        trial, _, rate = bench.run(asked, _texts(tables, _FIRST_TEXTS))
        if trial.vectors is None:
            raise failure(trial, "no text could be encoded with the config as it is")
        tuning.configured = replace(asked, dtype=trial.dtype or "float32")
        texts = _texts(tables, max(_FIRST_TEXTS, min(_MOST_TEXTS, int(rate * _EACH_S))))
        tuning.sample = len(texts)

        def try_all(candidates: Sequence[Candidate]) -> Candidate:
            for each in dict.fromkeys(candidates):
                if each not in [earlier.candidate for earlier in tuning.measured]:
                    tuning.measured.append(bench.measure(each, texts))
            return tuning.best.candidate if tuning.best else Candidate()

        try_all([Candidate(), tuning.configured])
        best = try_all([Candidate(dtype) for dtype in other_dtypes(tuning, devices[0], weakest(devices), model_type)])
        best = try_all([replace(best, batch_tokens=tokens) for tokens in _TOKENS[kind]])
        if len(os.sched_getaffinity(0)) > 1:
            try_all([replace(best, per_device=2)])
    if tuning.measured[0].problem:
        tuning.notes.append("float32 failed: cosines are to the first setting that worked")
    return tuning


def other_dtypes(tuning: Tuning, device: Device, card: Card | None, model_type: str | None) -> list[str]:
    """Return the other dtypes that suit machine and model, and note which are left out."""
    if tuning.begun is not None:
        tuning.notes.append(f"outputs in the workdir have begun in {tuning.begun}, and keep it")
        return [tuning.begun]
    if device.kind == "cpu":
        # float16 has no fast kernels on a CPU.
        if has_bfloat16() or tuning.configured.dtype == "bfloat16":
            return ["bfloat16"]
        tuning.notes.append("bfloat16 is not tried: this CPU has no instructions for it")
        return []
    dtypes = ["bfloat16", "float16"]
    if card is not None:
        unfit = [dtype for dtype in dtypes if unfit_dtype(dtype, model_type, card) is not None]
        why = advised_dtype(model_type, card).why
        tuning.notes += [f"{dtype} is not tried on {card}: {why}" for dtype in unfit]
        dtypes = [dtype for dtype in dtypes if dtype not in unfit]
    return dtypes


class _Bench:
    """Run workers under the same conditions; the first vectors are what later ones are compared with."""

    def __init__(
        self, loaded: LoadedConfig, model: ModelSpec, device: Device, scratch: Path, say: Callable[[str], object]
    ) -> None:
        self._loaded, self._model, self._device, self._scratch, self._say = loaded, model, device, scratch, say
        self._reference: Vectors | None = None
        self._stopped = Event()

    def measure(self, candidate: Candidate, texts: Sequence[str]) -> Measured:
        """Run the candidate and compare its vectors."""
        trial, vectors, rate = self.run(candidate, texts)
        if vectors is None:
            return Measured(candidate, problem=f"{trial.verdict.outcome}: {trial.verdict.reason}")
        if self._reference is None:
            self._reference = vectors
        return Measured(candidate, rate, *cosines(vectors, self._reference))

    def run(self, candidate: Candidate, texts: Sequence[str]) -> tuple[Trial, Vectors | None, float]:
        """Return a trial (one that failed, if any did), the vectors in the order of the texts, and texts a second."""
        self._say(f"trying {', '.join(f'{key} {value}' for key, value in candidate.settings().items())}")
        workers = candidate.per_device
        shares = [list(texts[number::workers]) for number in range(workers)]
        with ThreadPoolExecutor(workers) as pool:
            try:
                trials = list(pool.map(lambda share: self._try(candidate, share), shares))
            except BaseException:  # a signal above all, which only this thread gets
                self._stopped.set()
                raise
        found = [trial.vectors for trial in trials if trial.vectors is not None]
        if len(found) < workers:
            return next(trial for trial in trials if trial.vectors is None), None, 0.0
        vectors = np.empty((len(texts), found[0].shape[1]), dtype=np.float32)
        for number, share in enumerate(found):
            vectors[number::workers] = share
        # On a CPU the cores that compute tokenize as well; on a GPU that is done ahead.
        phases = (Phase.TOKENIZE, Phase.FORWARD) if self._device.kind == "cpu" else (Phase.FORWARD,)
        seconds = max(sum(trial.phase_s.get(phase, 0.0) for phase in phases) for trial in trials)
        return trials[0], vectors, len(texts) / max(seconds, 1e-6)

    def _try(self, candidate: Candidate, texts: Sequence[str]) -> Trial:
        config, kind = self._loaded.config, self._device.kind
        environment = environment_of(os.environ, [self._device], config.env, workers=candidate.per_device)
        conditions = Conditions(kind, environment, (str(self._loaded.folder),), Patience.of(config))
        encode = config.effective_encode(next(iter(config.outputs)))
        encode = encode.model_copy(update={"batch_tokens": candidate.batch_tokens})
        limits, model = resolve_limits(encode, kind, plugin=False), replace(self._model, dtype=candidate.dtype)
        folder = Path(tempfile.mkdtemp(prefix=".try-", dir=self._scratch))  # an output's name has no such dot
        return try_texts(texts, model, encode_spec(encode), conditions, folder, self._unless_stopped, limits=limits)

    def _unless_stopped(self) -> None:
        if self._stopped.is_set():
            raise CancelledError


def cosines(vectors: Vectors, reference: Vectors) -> tuple[float, float]:
    """Return the mean and the least cosine of the rows."""
    one, other = vectors.astype(np.float64), reference.astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    found = np.divide(np.einsum("ij,ij->i", one, other), lengths, out=np.zeros(len(one)), where=lengths > 0)
    found[~one.any(axis=1) & ~other.any(axis=1)] = 1.0  # of blank texts, whose vectors may be zero
    return float(found.mean()), float(found.min())


def _texts(tables: Sequence[StagedTable], count: int) -> list[str]:
    """Read about `count` texts, evenly spread over all outputs; at least one of each."""
    total, texts = sum(table.distinct for table in tables), list[str]()
    for table in tables:
        share = max(1, round(count * table.distinct / total))
        texts += table.texts_of(np.unique(np.linspace(0, table.distinct - 1, share).astype(np.int64)))
    return texts


def _model_at_hand(loaded: LoadedConfig) -> ModelSource:
    model = loaded.config.model
    if model.is_plugin:
        raise config_error(
            "tune compares dtypes and batches of a sentence-transformers model; this config has a plug-in encoder",
            remedy="compare its settings by trials: chunkvisor run CONFIG --max-rows 1000 reports rows/s at its end",
        )
    source = source_at_hand(model, Layout(loaded.config.workdir).model)
    if source is None:
        remedy = f"hf download {model.name} --local-dir MODEL; then chunkvisor tune CONFIG --set model.name=MODEL"
        raise config_error(f"the model {model.name} is not here yet", remedy=remedy)
    return source


def to_json(tuning: Tuning, price_per_hour: float | None) -> dict[str, Any]:
    """Return plain values: numbers, hours, and the price's own currency."""
    candidates = []
    for each in tuning.measured:
        rate = each.texts_per_s * tuning.devices
        hours = tuning.texts / rate / 3600 if rate else None
        values = {"settings": each.candidate.settings(), "texts_per_s": round(each.texts_per_s, 3)}
        values |= {"mean_cosine": each.mean_cosine, "least_cosine": each.least_cosine, "hours": hours}
        values["cost"] = None if price_per_hour is None or hours is None else hours * price_per_hour
        candidates.append({**values, "problem": each.problem, "recommended": each is tuning.best})
    head = {"texts": tuning.texts, "sample": tuning.sample, "devices": tuning.devices}
    return {**head, "note": "; ".join(tuning.notes), "changes": tuning.changes, "candidates": candidates}


def draw(tuning: Tuning, price_per_hour: float | None) -> list[str]:
    """Return lines: a row for each candidate, the recommended one marked, and below them what to do."""
    values = to_json(tuning, price_per_hour)["candidates"]
    rows: list[tuple[str, ...]] = [_HEAD]
    for each in values:
        setting = tuple(map(str, each["settings"].values()))
        cells: tuple[str, ...] = ("-",) * 5
        if each["hours"] is not None:
            near = (f"{each['mean_cosine']:.5f}", f"{each['least_cosine']:.5f}")
            cost = "-" if each["cost"] is None else f"{each['cost']:.2f}"
            cells = (f"{each['texts_per_s']:,.1f}", *near, human_time(each["hours"] * 3600), cost)
        rows.append((*setting, *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row, each in zip(rows, [None, *values], strict=True):
        line = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"{'*' if each and each['recommended'] else ' '} {line}")
        if each and each["problem"]:
            lines.append(f"    failed: {each['problem']}")
    lines += ["", f"tried on {counted(tuning.sample, 'text')} of {tuning.texts:,}; cosines are to float32."]
    lines += [f"Note: {note}." for note in tuning.notes]
    which = f"with a least cosine of {tuning.least_cosine:g} or more"
    if tuning.begun is not None:
        which = "that makes the vectors of the workdir"
    if tuning.best is None:
        return [*lines, f"No setting was found {which}."]
    changes = ", ".join(f"{key}: {value}" for key, value in tuning.changes.items())
    lines.append(f"* is recommended: the fastest {which}; of two within 5 %, the one that was tried first.")
    return [*lines, f"To set in the config: {changes}" if changes else "The config has these settings already."]
