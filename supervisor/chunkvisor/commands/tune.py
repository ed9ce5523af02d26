"""Tries what this machine offers on a sample of the config's texts, and compares rates and vectors."""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from chunkvisor.commands.plan import table_of
from chunkvisor.config.choices import Dtype
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import Config, EncodeConfig, encode_spec, model_spec, resolve_limits
from chunkvisor.decide.likeness import Likeness, Vectors, likeness
from chunkvisor.devices.dtypes import Card, advised_dtype, unfit_dtype
from chunkvisor.devices.gpu import Device, find_devices, has_bfloat16, processor_flags, weakest
from chunkvisor.engine.modelfolder import read_model_folder
from chunkvisor.engine.modelsource import ModelSource, source_at_hand
from chunkvisor.engine.trial import Conditions, Trial, environment_of, try_texts
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.judge import Patience
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.identity import read_facts
from chunkvisor.store.layout import Layout
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.messages import ModelSpec, Phase


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to encode; the fields are keys of the config."""

    dtype: str
    """`model.dtype`; never auto, which means another thing for each checkpoint."""
    batch_tokens: int | str = "auto"
    """`encode.batch_tokens`."""
    per_device: int = 1
    """`workers.per_device`."""

    def __str__(self) -> str:
        workers = f", {self.per_device} workers" if self.per_device > 1 else ""
        return f"{self.dtype}, batch_tokens {self.batch_tokens}{workers}"

    def values(self) -> dict[tuple[str, str], int | str]:
        """Section and key of the config -> value."""
        return {
            ("model", "dtype"): self.dtype,
            ("encode", "batch_tokens"): self.batch_tokens,
            ("workers", "per_device"): self.per_device,
        }


BASELINE = Candidate(str(Dtype.FLOAT32))
"""What the others are compared with: vectors of single precision."""

_DTYPES = {"cpu": (Dtype.BFLOAT16,), "cuda": (Dtype.BFLOAT16, Dtype.FLOAT16)}
"""Beside float32. On a CPU float16 has no kernels of its own and is slower than float32."""

_TOKENS = {"cpu": (1024, 4096, 8192), "cuda": (8192, 16384, 65536)}
"""Around what `auto` is: 2,048 on a CPU; on a GPU 32,768, cut to what fits the memory."""


def dtypes(kind: str, *, bfloat16: bool, fixed: str | None) -> list[Candidate]:
    """The first round, on a CPU with `bfloat16` only where told so.

    With `fixed`, only that dtype, since outputs that have begun keep theirs.
    """
    if fixed is not None:
        return [replace(BASELINE, dtype=fixed)] if fixed != BASELINE.dtype else []
    return [replace(BASELINE, dtype=str(dtype)) for dtype in _DTYPES[kind] if bfloat16 or kind != "cpu"]


def budgets(kind: str, best: Candidate) -> list[Candidate]:
    """The second round: other token budgets."""
    return [replace(best, batch_tokens=tokens) for tokens in _TOKENS[kind]]


def crowds(best: Candidate, cores: int) -> list[Candidate]:
    """The third round: two workers on the device, where there are cores for both."""
    return [replace(best, per_device=2)] if cores >= 2 else []


_MATTERS = 1.05


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of a candidate."""

    candidate: Candidate
    texts_per_s: float = 0.0
    """On one device, while it computes; the start of a worker is not in it."""
    likeness: Likeness | None = None
    """None where it failed."""
    problem: str = ""
    """Why it failed."""

    def fits(self, least_cosine: float) -> bool:
        """Whether its vectors are near enough to be recommended."""
        return self.likeness is not None and self.likeness.least_cosine >= least_cosine


def best_of(measured: Sequence[Measured], least_cosine: float) -> Measured | None:
    """The fastest whose vectors are near enough, or one before it that is as fast but for chance; None = there is none.

    They are tried from the plain to the unusual: what gains less than a twentieth is no reason to change a config.
    """
    best: Measured | None = None
    for each in measured:
        if each.fits(least_cosine) and (best is None or each.texts_per_s > best.texts_per_s * _MATTERS):
            best = each
    return best


@dataclass(frozen=True, slots=True)
class Tuning:
    """All that was tried."""

    measured: tuple[Measured, ...]
    """In the order in which it was tried; the first is float32."""
    best: Measured | None
    sample: int
    """Texts that each was tried on."""
    texts: int
    """Distinct texts of the whole job."""
    devices: int
    configured: Candidate
    """What the config asks for now."""
    note: str = ""
    vectors_fixed: bool = False
    """Outputs have begun: the recommended setting is one that makes their vectors, however near to float32."""

    @property
    def changes(self) -> dict[tuple[str, str], int | str]:
        """Section and key -> the recommended value, where the config has another."""
        if self.best is None:
            return {}
        now = self.configured.values()
        return {place: value for place, value in self.best.candidate.values().items() if now[place] != value}

    def hours(self, measured: Measured) -> float | None:
        """What the whole job would take at that rate."""
        rate = measured.texts_per_s * self.devices
        return self.texts / rate / 3600 if rate else None


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it."""

    trial: Trial
    """Of the worker; of several, of one that failed, or of the first."""
    vectors: Vectors | None
    """Of shape (texts, dimension), in the order of the texts; None where it failed."""
    texts_per_s: float
    """While it computes; 0 where it failed."""


class Bench:
    """Workers under the same conditions."""

    def __init__(
        self, loaded: LoadedConfig, model: ModelSpec, device: Device, scratch: Path, say: Callable[[str], None]
    ) -> None:
        self._loaded, self._model, self._device, self._scratch, self._say = loaded, model, device, scratch, say
        self._folders = 0
        self._reference: Vectors | None = None
        self._tried = set[Candidate]()
        self._stopped = Event()
        self.texts: list[str] = []
        self.known: dict[Candidate, Run] = {}
        """What has been run already on these texts."""

    def round(self, candidates: Iterable[Candidate]) -> Iterable[Measured]:
        """Try each on the sample, but for those of earlier rounds.

        The first that ever succeeds is what the others are compared with.
        """
        for candidate in candidates:
            if candidate in self._tried:
                continue
            self._tried.add(candidate)
            run = self.known.get(candidate) or self.run(candidate, self.texts)
            if run.vectors is None:
                verdict = run.trial.verdict
                yield Measured(candidate, problem=f"{verdict.outcome}: {verdict.reason}")
                continue
            if self._reference is None:
                self._reference = run.vectors
            yield Measured(candidate, run.texts_per_s, likeness(run.vectors, self._reference))

    def run(self, candidate: Candidate, texts: Sequence[str]) -> Run:
        """One worker, or several at the same time that share texts and cores."""
        self._say(f"trying {candidate}")
        model = replace(self._model, dtype=candidate.dtype)
        workers = candidate.per_device
        shares = [list(texts[number::workers]) for number in range(workers)]
        with ThreadPoolExecutor(workers) as pool:
            try:
                trials = list(pool.map(lambda share: self._try(candidate, model, share), shares))
            except BaseException:  # a signal above all, which only this thread gets
                self._stopped.set()
                raise
        found = [trial.vectors for trial in trials if trial.vectors is not None]
        if len(found) < workers:
            return Run(next(trial for trial in trials if trial.vectors is None), None, 0.0)
        vectors = np.empty((len(texts), found[0].shape[1]), dtype=np.float32)
        for number, share in enumerate(found):
            vectors[number::workers] = share
        seconds = max(_computing_s(trial, self._device) for trial in trials)
        return Run(trials[0], vectors, len(texts) / max(seconds, 1e-6))

    def _try(self, candidate: Candidate, model: ModelSpec, texts: Sequence[str]) -> Trial:
        config = self._loaded.config
        self._folders += 1
        folder = self._scratch / f".try{self._folders}"  # no output has such a name
        folder.mkdir(mode=0o700)
        environment = environment_of(os.environ, [self._device], config.env, workers=candidate.per_device)
        place = (str(self._loaded.folder),)
        patience = Patience.of(config)
        conditions = Conditions(self._device.kind, environment, place, patience)
        encode = first_encode(self._loaded).model_copy(update={"batch_tokens": candidate.batch_tokens})
        limits = resolve_limits(encode, self._device.kind, plugin=False)
        return try_texts(texts, model, encode_spec(encode), conditions, folder, self._unless_stopped, limits=limits)

    def _unless_stopped(self) -> None:
        if self._stopped.is_set():
            raise CancelledError


def first_encode(loaded: LoadedConfig) -> EncodeConfig:
    """How the config's first output is encoded: all candidates are."""
    return loaded.config.effective_encode(next(iter(loaded.config.outputs)))


def _computing_s(trial: Trial, device: Device) -> float:
    """On a CPU texts are tokenised by the cores that compute; on a GPU that is done ahead, beside another worker."""
    phases = (Phase.TOKENIZE, Phase.FORWARD) if device.kind == "cpu" else (Phase.FORWARD,)
    return sum(trial.phase_s.get(phase, 0.0) for phase in phases)


_HEAD = ("dtype", "tokens", "workers", "texts/s", "cosine", "least", "neighbours", "all of it", "cost")


def draw(tuning: Tuning, least_cosine: float, price_per_hour: float | None) -> list[str]:
    """Lines: a row for each candidate, the recommended one marked, and below them what to do."""
    rows = [_HEAD, *(_cells(tuning, each, price_per_hour) for each in tuning.measured)]
    if price_per_hour is None:
        rows = [row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row, each in zip(rows, (None, *tuning.measured), strict=True):
        mark = "*" if each is not None and each is tuning.best else " "
        lines.append(
            f"{mark} " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
        if each is not None and each.problem:
            lines.append(f"    failed: {each.problem}")
    to = "" if tuning.measured[0].problem else "; cosines are to float32"
    lines += ["", f"tried on {counted(tuning.sample, 'text')} of {tuning.texts:,}{to}."]
    if tuning.note:
        lines.append(f"Note: {tuning.note}.")
    near = f"a least cosine of {least_cosine:g} or more"
    if tuning.best is None:
        lines.append(f"Nothing has {near}." if not tuning.vectors_fixed else "Nothing makes the workdir's vectors.")
    else:
        which = "that makes the vectors of the workdir" if tuning.vectors_fixed else f"with {near}"
        lines.append(f"* is recommended: the fastest {which}.")
        lines.append("Of two that differ by less than 5 %, it is the one that was tried first.")
        changes = [f"{section}.{key}: {value}" for (section, key), value in tuning.changes.items()]
        lines.append(
            f"To set in the config: {', '.join(changes)}" if changes else "The config has these settings already."
        )
    return lines


def to_json(tuning: Tuning, price_per_hour: float | None) -> dict[str, Any]:
    """Plain values: numbers, hours, and the price's own currency."""
    return {
        "texts": tuning.texts,
        "sample": tuning.sample,
        "devices": tuning.devices,
        "note": tuning.note,
        "changes": {f"{section}.{key}": value for (section, key), value in tuning.changes.items()},
        "candidates": [_values(tuning, each, price_per_hour) for each in tuning.measured],
    }


def _values(tuning: Tuning, each: Measured, price_per_hour: float | None) -> dict[str, Any]:
    hours = tuning.hours(each)
    alike = each.likeness
    return {
        "settings": {f"{section}.{key}": value for (section, key), value in each.candidate.values().items()},
        "texts_per_s": round(each.texts_per_s, 3),
        "mean_cosine": alike and alike.mean_cosine,
        "least_cosine": alike and alike.least_cosine,
        "same_neighbours": alike and alike.neighbours,
        "hours": hours,
        "cost": None if price_per_hour is None or hours is None else hours * price_per_hour,
        "problem": each.problem,
        "recommended": each is tuning.best,
    }


def _cells(tuning: Tuning, each: Measured, price_per_hour: float | None) -> tuple[str, ...]:
    candidate, hours = each.candidate, tuning.hours(each)
    setting = (candidate.dtype, str(candidate.batch_tokens), str(candidate.per_device))
    if each.likeness is None or hours is None:
        return (*setting, *["-"] * (len(_HEAD) - len(setting)))
    alike = each.likeness
    cost = "" if price_per_hour is None else f"{hours * price_per_hour:.2f}"
    rate = f"{each.texts_per_s:,.0f}" if each.texts_per_s >= 10 else f"{each.texts_per_s:.2g}"
    likeness = (f"{alike.mean_cosine:.5f}", f"{alike.least_cosine:.5f}", f"{alike.neighbours:.0%}")
    return (*setting, rate, *likeness, human_time(hours * 3600), cost)


_FIRST_TEXTS = 64
"""In the first look, which tells how many texts the others get."""
_EACH_S = 4.0
"""So long the sample is to take with the config as it is."""
_MOST_TEXTS = 2000

_NO_BFLOAT16 = "bfloat16 is not tried: this CPU has no instructions for it"


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
        tables = [table_of(config, output, None, scratch, say) for output in config.outputs]
        model = model_spec(config.model, source.path, source.revision)
        bench = Bench(loaded, model, devices[0], scratch, say)
        texts = _texts(tables, _FIRST_TEXTS)
        configured = _configured(loaded, "auto")
        first = _first_look(bench, replace(configured, dtype=str(config.model.dtype)), texts)
        configured = replace(configured, dtype=first.trial.dtype or BASELINE.dtype)
        count = max(_FIRST_TEXTS, min(_MOST_TEXTS, int(first.texts_per_s * _EACH_S)))
        bench.texts = _texts(tables, count)
        if bench.texts == texts:
            bench.known[configured] = first
        begun = _begun(loaded)
        measured = list(bench.round([BASELINE, configured]))

        # The vectors of what has begun stay as they are, however near they are.
        limit = least_cosine if begun is None else -1.0

        def best() -> Measured | None:
            return best_of([each for each in measured if begun in (None, each.candidate.dtype)], limit)

        def setting() -> Candidate:
            found = best()
            return found.candidate if found is not None else BASELINE

        card, model_type = weakest(devices), read_model_folder(Path(source.path or "")).model_type
        others, unfit = _suitable(_others(devices[0].kind, configured, begun), model_type, card)
        measured += bench.round(others)
        measured += bench.round(budgets(devices[0].kind, setting()))
        measured += bench.round(crowds(setting(), len(os.sched_getaffinity(0))))
        return Tuning(
            tuple(measured),
            best(),
            len(bench.texts),
            sum(table.distinct for table in tables),
            len(devices),
            configured,
            "; ".join(filter(None, [_note(measured, begun, devices[0].kind), *unfit])),
            vectors_fixed=begun is not None,
        )


def _others(kind: str, configured: Candidate, begun: str | None) -> list[Candidate]:
    """Other dtypes that this machine has; bfloat16 on a CPU that is slower in it only where the config has it."""
    wanted = has_bfloat16(processor_flags()) or configured.dtype == Dtype.BFLOAT16
    return dtypes(kind, bfloat16=wanted, fixed=begun)


def _suitable(
    candidates: Sequence[Candidate], model_type: str | None, card: Card | None
) -> tuple[list[Candidate], list[str]]:
    """Those whose dtype suits the card and the model, and of the others why they are not tried."""
    if card is None:
        return list(candidates), []
    fits = [each for each in candidates if unfit_dtype(each.dtype, model_type, card) is None]
    others = dict.fromkeys(each.dtype for each in candidates if each not in fits)
    why = advised_dtype(model_type, card).why
    return fits, [f"{dtype} is not tried on {card}: {why}" for dtype in others]


def _note(measured: Sequence[Measured], begun: str | None, kind: str) -> str:
    notes = []
    reference = next((each for each in measured if not each.problem), measured[0])
    if reference is not measured[0]:
        notes.append(f"float32 failed: cosines are to the vectors of {reference.candidate}")
    if begun is not None:
        notes.append(f"outputs in the workdir have begun in {begun}, and keep it")
    elif kind == "cpu" and not any(each.candidate.dtype == Dtype.BFLOAT16 for each in measured):
        notes.append(_NO_BFLOAT16)
    return "; ".join(notes)


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


def _configured(loaded: LoadedConfig, dtype: str) -> Candidate:
    tokens = first_encode(loaded).batch_tokens
    config = loaded.config
    tokens = "auto" if tokens is None else tokens
    return Candidate(dtype, tokens, config.workers.per_device)


def _texts(tables: Sequence[StagedTable], count: int) -> list[str]:
    """Read about `count` texts, evenly spread over all outputs; at least one of each."""
    total, texts = sum(table.distinct for table in tables), list[str]()
    for table in tables:
        share = max(1, round(count * table.distinct / total))
        texts += table.texts_of(np.unique(np.linspace(0, table.distinct - 1, share).astype(np.int64)))
    return texts


def _begun(loaded: LoadedConfig) -> str | None:
    """The dtype of outputs that have begun: it cannot change any more."""
    layout = Layout(loaded.config.workdir)
    for output in map(layout.output, loaded.config.outputs):
        if (facts := read_facts(output)) is not None:
            return facts.dtype
    return None


def _first_look(bench: Bench, configured: Candidate, texts: Sequence[str]) -> Run:
    """The config as it is. Raises Halt where that fails."""
    first = bench.run(configured, texts)
    if first.vectors is None:
        raise _failed(first.trial)
    return first


def _failed(trial: Trial) -> Halt:
    verdict = trial.verdict
    return Halt(
        ExitCode(verdict.exit_code or ExitCode.MACHINE),
        f"no text could be encoded with the config as it is: {verdict.outcome}",
        why=f"{verdict.reason}; the last line of the worker's log: {trial.log_line or 'nothing'}",
        remedy=verdict.remedy or "`chunkvisor doctor CONFIG` looks at the machine and the model",
        see=verdict.see,
    )
