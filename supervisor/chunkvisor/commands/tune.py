"""Try dtypes, token budgets and numbers of workers on a sample of the config's texts; compare rates and vectors."""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.commands.audit import failure
from chunkvisor.commands.plan import table_of
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import encode_spec, model_spec, resolve_limits
from chunkvisor.devices.dtypes import Card, advised_dtype, unfit_dtype
from chunkvisor.devices.gpu import find_devices, has_bfloat16, weakest
from chunkvisor.engine.modelfolder import read_model_folder
from chunkvisor.engine.modelsource import source_at_hand
from chunkvisor.engine.trial import Conditions, Trial, difference_and_cosine, environment_of, try_texts
from chunkvisor.errors import config_error
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.identity import read_facts
from chunkvisor.store.layout import Layout
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.messages import ModelSpec, Phase

# Around what `auto` is: 2,048 on a CPU, 32,768 on a GPU.
_TOKENS = {"cpu": (1024, 4096, 8192), "cuda": (8192, 16384, 65536)}
_FIRST_TEXTS, _MOST_TEXTS = 64, 2000
# Seconds that the sample takes with the config as it is.
_EACH_S = 4.0
# A setting that gains less than a twentieth is not worth a change of the config.
_MATTERS = 1.05
# Of the vectors of a setting to those of float32; with less, it is not recommended.
LEAST_COSINE = 0.999
_DTYPE, _BATCH, _WORKERS = "model.dtype", "encode.batch_tokens", "workers.per_device"

# Keys of the config -> values to try.
Settings = dict[str, Any]


def tune(loaded: LoadedConfig, price_per_hour: float | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Try settings, and return what `tune --json` prints. Takes a minute or two.

    Raises Halt: 78 for a plug-in or a model that is not here; what a run would end with if a source is wrong or no
    worker succeeds; OSError.
    """
    config, name = loaded.config, loaded.config.model.name
    if config.model.is_plugin:
        what = "tune compares dtypes and batches of a sentence-transformers model; this config has a plug-in encoder"
        remedy = "compare its settings by trials: chunkvisor run CONFIG --max-rows 1000 reports rows/s at its end"
        raise config_error(what, remedy=remedy)
    if (source := source_at_hand(config.model, Layout(config.workdir).model)) is None:
        remedy = f"hf download {name} --local-dir MODEL; then chunkvisor tune CONFIG --set model.name=MODEL"
        raise config_error(f"the model {name} is not here yet", remedy=remedy)
    model = model_spec(config.model, source.path, source.revision)
    facts = (read_facts(Layout(config.workdir).output(output)) for output in config.outputs)
    begun = next((each.dtype for each in facts if each is not None), None)
    devices, tried = find_devices(config.device), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="chunkvisor-tune-") as scratch:
        tables = [table_of(config, output, None, Path(scratch), say) for output in config.outputs]
        total = sum(table.distinct for table in tables)

        def measure(settings: Settings, texts: Sequence[str]) -> tuple[list[Trial], float | None]:
            say(f"trying {', '.join(f'{key} {value}' for key, value in settings.items())}")
            return _measure(loaded, model, settings, texts, Path(scratch))

        budget = config.effective_encode(next(iter(config.outputs))).batch_tokens or "auto"
        now: Settings = {_DTYPE: str(config.model.dtype), _BATCH: budget, _WORKERS: config.workers.per_device}
        trials, rate = measure(now, _texts(tables, _FIRST_TEXTS))
        if rate is None:
            raise failure(trials[0], "no text could be encoded with the config as it is")
        now[_DTYPE] = trials[0].dtype or "float32"
        texts, reference = _texts(tables, max(_FIRST_TEXTS, min(_MOST_TEXTS, int(rate * _EACH_S)))), []

        def try_all(candidates: Iterable[Settings]) -> dict[str, Any] | None:
            """Measure those that are new; return the best so far: the fastest, or an earlier one that is as fast."""
            for settings in candidates:
                if settings in [each["settings"] for each in tried]:
                    continue
                trials, rate = measure(settings, texts)
                found: dict[str, Any] = dict.fromkeys(("mean_cosine", "least_cosine", "hours", "cost"))
                found |= {"settings": settings, "texts_per_s": round(rate or 0.0, 3), "recommended": False}
                found["problem"] = f"{trials[0].verdict.outcome}: {trials[0].verdict.reason}" if rate is None else ""
                if rate is not None:
                    vectors = _in_order(trials)
                    reference.append(vectors)
                    cosines = [difference_and_cosine(*pair)[1] for pair in zip(vectors, reference[0], strict=True)]
                    found |= {"mean_cosine": float(np.mean(cosines)), "least_cosine": min(cosines)}
                    found["hours"] = total / (rate * len(devices)) / 3600
                    found["cost"] = None if price_per_hour is None else found["hours"] * price_per_hour
                tried.append(found)
            best = None
            for each in tried:
                near = not each["problem"] and each["least_cosine"] >= LEAST_COSINE
                if near and (best is None or each["texts_per_s"] > best["texts_per_s"] * _MATTERS):
                    best = each
            return best

        plain = {_DTYPE: begun or "float32", _BATCH: "auto", _WORKERS: 1}
        # Vectors that have begun stay as they are, so the config's own dtype is not tried then.
        best = try_all([plain, now] if begun is None else [plain])
        notes = [f"outputs in the workdir have begun in {begun}, and keep it"] if begun is not None else []
        if begun is None:
            kind = read_model_folder(Path(source.path or "")).model_type
            dtypes = other_dtypes(now[_DTYPE], devices[0].kind, weakest(devices), kind, notes)
            best = try_all({**plain, _DTYPE: dtype} for dtype in dtypes)
        now_best = best["settings"] if best else plain
        best = try_all({**now_best, _BATCH: tokens} for tokens in _TOKENS[devices[0].kind])
        if len(os.sched_getaffinity(0)) > 1:
            best = try_all([{**(best["settings"] if best else plain), _WORKERS: 2}])
    changes = {}
    if best is not None:
        best["recommended"] = True
        changes = {key: value for key, value in best["settings"].items() if now[key] != value}
    head = {"texts": total, "sample": len(texts), "devices": len(devices), "note": "; ".join(notes)}
    return {**head, "changes": changes, "candidates": tried}


def other_dtypes(
    configured: str, device: str, card: Card | None, model_type: str | None, notes: list[str]
) -> list[str]:
    """Return the other dtypes that suit machine and model, and note which are left out."""
    if device == "cpu":
        # float16 has no fast kernels on a CPU.
        if has_bfloat16() or configured == "bfloat16":
            return ["bfloat16"]
        notes.append("bfloat16 is not tried: this CPU has no instructions for it")
        return []
    dtypes = ["bfloat16", "float16"]
    unfit = [dtype for dtype in dtypes if card is not None and unfit_dtype(dtype, model_type, card) is not None]
    notes += [f"{each} is not tried on {card}: {advised_dtype(model_type, card).why}" for each in unfit if card]
    return [dtype for dtype in dtypes if dtype not in unfit]


def _measure(
    loaded: LoadedConfig, model: ModelSpec, settings: Settings, texts: Sequence[str], scratch: Path
) -> tuple[list[Trial], float | None]:
    """Encode every Nth text in each of N workers on one device: return how they ended, and texts a second.

    The time is without the start of the workers. If one failed, it comes first, and the rate is None.
    """
    config, device, workers = loaded.config, find_devices(loaded.config.device)[0], settings[_WORKERS]
    environment = environment_of(os.environ, [device], config.env, workers=workers)
    conditions = Conditions(device.kind, environment, (str(loaded.folder),), config.recovery)
    encode = config.effective_encode(next(iter(config.outputs))).model_copy(update={"batch_tokens": settings[_BATCH]})
    limits, of_dtype = resolve_limits(encode, device.kind, plugin=False), replace(model, dtype=settings[_DTYPE])

    def encoded(number: int) -> Trial:
        folder = Path(tempfile.mkdtemp(prefix=".try-", dir=scratch))  # an output's name has no such dot
        return try_texts(texts[number::workers], of_dtype, encode_spec(encode), conditions, folder, limits=limits)

    with ThreadPoolExecutor(workers) as pool:
        trials = list(pool.map(encoded, range(workers)))
    if any(trial.vectors is None for trial in trials):
        return sorted(trials, key=lambda trial: trial.vectors is not None), None
    # On a CPU the cores that compute tokenize as well; on a GPU that is done ahead.
    phases = (Phase.TOKENIZE, Phase.FORWARD) if device.kind == "cpu" else (Phase.FORWARD,)
    seconds = max(sum(trial.phase_s.get(phase, 0.0) for phase in phases) for trial in trials)
    return trials, len(texts) / max(seconds, 1e-6)


def _in_order(trials: Sequence[Trial]) -> npt.NDArray[np.float32]:
    """Put the vectors of every Nth text into the order of the texts."""
    shares = [trial.vectors for trial in trials if trial.vectors is not None]
    vectors = np.empty((sum(map(len, shares)), shares[0].shape[1]), dtype=np.float32)
    for number, share in enumerate(shares):
        vectors[number :: len(shares)] = share
    return vectors


def _texts(tables: Sequence[StagedTable], count: int) -> list[str]:
    """Read about `count` texts, evenly spread over all outputs; at least one of each."""
    total, texts = sum(table.distinct for table in tables), list[str]()
    for table in tables:
        share = max(1, round(count * table.distinct / total))
        texts += table.texts_of(np.unique(np.linspace(0, table.distinct - 1, share).astype(np.int64)))
    return texts


def draw(tuned: dict[str, Any]) -> list[str]:
    """Return lines: a row for each candidate, the recommended one marked, and below them what to do."""
    head = ("dtype", "tokens", "workers", "texts/s", "cosine", "least", "all of it", "cost")
    lines = ["  " + "".join(f"{name:>10}" for name in head)]
    for each in tuned["candidates"]:
        cells = [*map(str, each["settings"].values()), *"-----"]
        if not each["problem"]:
            cost = "-" if each["cost"] is None else f"{each['cost']:.2f}"
            cells[3:6] = f"{each['texts_per_s']:,.1f}", f"{each['mean_cosine']:.5f}", f"{each['least_cosine']:.5f}"
            cells[6:] = human_time(each["hours"] * 3600), cost
        lines.append(("* " if each["recommended"] else "  ") + "".join(f"{cell:>10}" for cell in cells))
        lines += [f"    failed: {each['problem']}"] * bool(each["problem"])
    lines += ["", f"tried on {counted(tuned['sample'], 'text')} of {tuned['texts']:,}; cosines are to the first row."]
    lines += [f"Note: {tuned['note']}."] * bool(tuned["note"])
    if not any(each["recommended"] for each in tuned["candidates"]):
        return lines
    changes = ", ".join(f"{key}: {value}" for key, value in tuned["changes"].items())
    lines.append("* is recommended: the fastest near enough; of two within 5 %, the one that was tried first.")
    return [*lines, f"To set in the config: {changes}" if changes else "The config has these settings already."]
