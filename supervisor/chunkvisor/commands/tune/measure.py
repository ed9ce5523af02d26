"""Tries the candidates in rounds, on a sample of the config's texts. It writes no workdir."""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from chunkvisor.commands.planning.samples import sample_of
from chunkvisor.commands.tune.bench import Bench, Run, first_encode
from chunkvisor.commands.tune.candidates import BASELINE, Candidate, budgets, crowds, dtypes
from chunkvisor.commands.tune.compare import Measured, best_of
from chunkvisor.commands.tune.tuning import Tuning
from chunkvisor.config.choices import Dtype
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import Config
from chunkvisor.config.specs import model_spec
from chunkvisor.decide.dtypes import Card, advised_dtype, unfit_dtype
from chunkvisor.devices.gpu import find_devices, weakest
from chunkvisor.devices.processor import has_bfloat16, processor_flags
from chunkvisor.engine.modelfolder import read_model_folder
from chunkvisor.engine.modelsource import ModelSource, source_at_hand
from chunkvisor.engine.trial import Trial
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.ingest.sampled import sampled
from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.fixed import read_facts
from chunkvisor.store.layout import Layout

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
        tables = [sample_of(config, output, None, scratch, say).table for output in config.outputs]
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
    """So many texts of all outputs together, by their shares and from short to long."""
    return [text for some in sampled(tables, count) for text in some]


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
