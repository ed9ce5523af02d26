"""Try settings on a sample of the first output's texts; compare rates and vectors."""

import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor.commands.plan import table_of
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import encode_spec, resolve_limits
from chunkvisor.devices.gpu import find_devices, has_bfloat16, unfit_dtype, weakest
from chunkvisor.engine.expected import difference_and_cosine
from chunkvisor.engine.modelfolder import read_model_folder
from chunkvisor.engine.modelsource import source_at_hand
from chunkvisor.engine.trial import Trial, try_texts
from chunkvisor.errors import config_error
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.identity import read_facts
from chunkvisor.store.layout import Layout
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.messages import ModelSpec, Phase

# Around what `auto` is: 2,048 on a CPU, 32,768 on a GPU.
_TOKENS = {"cpu": (1024, 4096, 8192), "cuda": (8192, 16384, 65536)}
_FIRST_TEXTS, _MOST_TEXTS = 64, 2000
# Seconds that the sample takes with the config unchanged.
_EACH_S = 4.0
# A setting that gains less than a twentieth is not worth a change of the config.
_MATTERS = 1.05
# Of the vectors of a setting to those of float32; with less, it is not recommended.
LEAST_COSINE = 0.999
_DTYPE, _ATTENTION, _BATCH, _WORKERS = (
    "model.dtype",
    "attn_implementation",
    "encode.batch_tokens",
    "workers.per_device",
)

# Names of settings -> values to try; no attention is named if the model chooses its own.
Settings = dict[str, Any]


def tune(
    loaded: LoadedConfig, price_per_hour: float | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Try settings, and return what `tune --json` prints. Takes some minutes.

    Raises Halt: 78 for a plug-in, a model that is not here, or outputs that have begun; what a run
    would end with if a source is wrong or no worker succeeds; OSError.
    """
    config, name = loaded.config, loaded.config.model.name
    if config.model.is_plugin:
        raise config_error(
            "tune compares settings of a sentence-transformers model; this config has a plug-in "
            "encoder",
            "Compare its settings by trials: `chunkvisor run CONFIG --max-rows 1000`.",
        )
    layout = Layout(config.workdir)
    source = source_at_hand(config.model, layout.model)
    if source is None:
        raise config_error(
            f"the model {name} is not on this machine yet",
            f"hf download {name} --local-dir MODEL; then chunkvisor tune CONFIG --set "
            f"model.name=MODEL",
        )
    model = source.spec(config.model)
    if any(read_facts(layout.output(output)) for output in config.outputs):
        raise config_error(
            f"outputs in {config.workdir} have begun, so their dtype and attention are fixed",
            "Tune for a new workdir: chunkvisor tune CONFIG --set workdir=OTHER",
        )
    devices = find_devices(config.device)
    on_gpu = devices[0].kind == "cuda"
    tried = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="chunkvisor-tune-") as scratch:
        tables = [table_of(config, output, None, Path(scratch), say) for output in config.outputs]
        total = sum(table.distinct for table in tables)

        def measure(settings: Settings, texts: Sequence[str]) -> tuple[Trial, float]:
            chosen = [f"{key} {value}" for key, value in settings.items() if value is not None]
            say(f"trying {', '.join(chosen)}")
            return _measure(loaded, model, settings, texts, Path(scratch))

        attention = config.model.kwargs.get(_ATTENTION)
        budget = config.effective_encode(next(iter(config.outputs))).batch_tokens or "auto"
        now: Settings = {_DTYPE: str(config.model.dtype), _ATTENTION: attention, _BATCH: budget}
        now[_WORKERS] = config.workers.per_device
        first, rate = measure(now, _sample_texts(tables[0], _FIRST_TEXTS))
        if first.vectors is None:
            raise first.failure("no text could be encoded with the config unchanged")
        now[_DTYPE] = first.dtype or "float32"
        texts = _sample_texts(tables[0], max(_FIRST_TEXTS, min(_MOST_TEXTS, int(rate * _EACH_S))))
        plain: Settings = {_DTYPE: "float32", _ATTENTION: attention, _BATCH: "auto", _WORKERS: 1}
        kind = read_model_folder(Path(source.path or "")).model_type
        # float16 has no fast kernels on a CPU.
        dtypes = ["bfloat16"] if has_bfloat16() or now[_DTYPE] == "bfloat16" else []
        attentions = ["sdpa", "eager"]
        if on_gpu:
            card = weakest(devices)
            dtypes = [each for each in ("bfloat16", "float16") if not unfit_dtype(each, kind, card)]
            if importlib.util.find_spec("flash_attn"):
                attentions.append("flash_attention_2")
        rounds: list[list[Settings]] = [
            [plain],
            [now],
            [{_DTYPE: dtype} for dtype in dtypes],
            [{_ATTENTION: name} for name in attentions],
            [{_BATCH: tokens} for tokens in _TOKENS[devices[0].kind]],
            [{_WORKERS: 2}] if len(os.sched_getaffinity(0)) > 1 else [],
        ]
        best, reference = plain, first.vectors
        for candidates in rounds:
            for settings in [{**best, **changed} for changed in candidates]:
                if settings in [each["settings"] for each in tried]:
                    continue
                trial, rate = measure(settings, texts)
                found: dict[str, Any] = {
                    "mean_cosine": None,
                    "least_cosine": None,
                    "hours": None,
                    "cost": None,
                    "problem": None,
                    "settings": settings,
                    "texts_per_s": round(rate, 3),
                    "recommended": False,
                }
                if trial.vectors is None:
                    found["problem"] = f"{trial.verdict.outcome}: {trial.verdict.reason}"
                else:
                    reference = trial.vectors if not tried else reference
                    cosines = [
                        difference_and_cosine(*each)[1]
                        for each in zip(trial.vectors, reference, strict=True)
                    ]
                    found["mean_cosine"] = float(np.mean(cosines))
                    found["least_cosine"] = min(cosines)
                    found["hours"] = total / (rate * len(devices)) / 3600
                    if price_per_hour is not None:
                        found["cost"] = found["hours"] * price_per_hour
                tried.append(found)
            chosen = _best(tried)
            best = chosen["settings"] if chosen else plain
    changes = dict[str, Any]()
    if chosen:
        chosen["recommended"] = True
        changes = {key: value for key, value in best.items() if now[key] != value}
        if _ATTENTION in changes:
            changes["model.kwargs"] = {**config.model.kwargs, _ATTENTION: changes.pop(_ATTENTION)}
    return {
        "texts": total,
        "sample": len(texts),
        "devices": len(devices),
        "changes": changes,
        "candidates": tried,
    }


def _best(tried: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the fastest that is near enough to float32, or an earlier one that is as fast."""
    best = None
    for each in tried:
        near = not each["problem"] and each["least_cosine"] >= LEAST_COSINE
        if near and (best is None or each["texts_per_s"] > best["texts_per_s"] * _MATTERS):
            best = each
    return best


def _measure(
    loaded: LoadedConfig, model: ModelSpec, settings: Settings, texts: Sequence[str], scratch: Path
) -> tuple[Trial, float]:
    """Encode every Nth text in each of N workers on one device.

    Return their sum, or a failure, and texts a second.

    The time is without the start of the workers.
    """
    config = loaded.config
    device = find_devices(config.device)[0]
    workers = settings[_WORKERS]
    encode = config.effective_encode(next(iter(config.outputs))).model_copy(
        update={"batch_tokens": settings[_BATCH]}
    )
    kwargs = dict(model.kwargs)
    if settings[_ATTENTION]:
        kwargs[_ATTENTION] = settings[_ATTENTION]

    # The workers share the cores.
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    env = {"OMP_NUM_THREADS": str(threads), **config.env}
    shared = replace(loaded, config=config.model_copy(update={"env": env}))

    def encode_share(number: int) -> Trial:
        return try_texts(
            texts[number::workers],
            replace(model, dtype=settings[_DTYPE], kwargs=kwargs),
            encode_spec(encode),
            device,
            shared,
            # An output's name has no such dot.
            Path(tempfile.mkdtemp(prefix=".try-", dir=scratch)),
            limits=resolve_limits(encode, device.kind, plugin=False),
        )

    with ThreadPoolExecutor(workers) as pool:
        trials = list(pool.map(encode_share, range(workers)))
    shares = []
    for trial in trials:
        if trial.vectors is None:
            return trial, 0.0
        shares.append(trial.vectors)
    vectors = np.empty((len(texts), shares[0].shape[1]), dtype=np.float32)
    for number, share in enumerate(shares):
        vectors[number::workers] = share
    # On a CPU the cores that compute tokenize as well; on a GPU that is done ahead.
    phases = (Phase.TOKENIZE, Phase.FORWARD) if device.kind == "cpu" else (Phase.FORWARD,)
    seconds = max(sum(trial.phase_s.get(phase, 0.0) for phase in phases) for trial in trials)
    return replace(trials[0], vectors=vectors), len(texts) / max(seconds, 1e-6)


def _sample_texts(table: StagedTable, count: int) -> list[str]:
    """Read at most `count` texts, evenly spread."""
    return table.texts_at(np.unique(np.linspace(0, table.distinct - 1, count).astype(np.int64)))


def tune_lines(tuned: dict[str, Any]) -> list[str]:
    """Return the table of candidates, the recommended one marked, and what to do."""
    row = "{:<2}{:<10}{:<19}{:>7}{:>9}{:>10}{:>9}{:>9}{:>11}{:>8}".format
    heads = "dtype,attention,tokens,workers,texts/s,cosine,least,all of it,cost"
    lines = [row("", *heads.split(","))]
    for each in tuned["candidates"]:
        cells = [str(value or "auto") for value in each["settings"].values()]
        if each["problem"]:
            lines += [row("", *cells, *"-----"), f"    failed: {each['problem']}"]
            continue
        figures = (
            f"{each['texts_per_s']:,.1f}",
            f"{each['mean_cosine']:.5f}",
            f"{each['least_cosine']:.5f}",
            human_time(each["hours"] * 3600),
            "-" if each["cost"] is None else f"{each['cost']:.2f}",
        )
        lines.append(row("*" if each["recommended"] else "", *cells, *figures))
    lines += [
        "",
        f"tried on {counted(tuned['sample'], 'text')} of {tuned['texts']:,}; cosines are to the "
        f"first row.",
    ]
    if any(each["recommended"] for each in tuned["candidates"]):
        changes = ", ".join(f"{key}: {value}" for key, value in tuned["changes"].items())
        lines += [
            "* is recommended: the fastest near enough; of two within 5 %, the one that was tried "
            "first.",
            f"To set in the config: {changes}"
            if changes
            else "The config has these settings already.",
        ]
    return lines
