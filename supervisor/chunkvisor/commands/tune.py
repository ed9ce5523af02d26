"""Try settings on a sample of the first output's texts; compare rates and vectors."""

import importlib.util
import math
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor.commands.plan import table_of
from chunkvisor.config.load import LoadedConfig, RowChoice
from chunkvisor.config.model import Config, encode_spec, resolve_limits
from chunkvisor.devices.gpu import Device, find_devices, has_bfloat16, unfit_dtype, weakest
from chunkvisor.engine.expected import difference_and_cosine
from chunkvisor.engine.modelfolder import read_model_folder
from chunkvisor.engine.modelsource import ModelSource, known_source
from chunkvisor.engine.trial import Trial, try_texts
from chunkvisor.errors import config_error
from chunkvisor.printing import Say
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.artifact import Vectors
from chunkvisor.store.identity import read_facts
from chunkvisor.store.layout import Layout
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.messages import ModelSpec, Phase

# Around what `auto` is: 2,048 on a CPU, 32,768 on a GPU.
_TOKENS = {"cpu": (1024, 4096, 8192), "cuda": (8192, 16384, 65536)}
_FIRST_TEXTS = 64
_MOST_TEXTS = 20_000
# Seconds that the sample takes with the config unchanged; with less than the second, the rates of
# two settings differ by chance.
_EACH_S = 4.0
_LEAST_S = 1.0
# A setting that gains less than a twentieth is not worth a change of the config.
_MATTERS = 1.05
# A setting whose vectors have a smaller cosine to those of float32 is not recommended.
LEAST_COSINE = 0.999
_DTYPE = "model.dtype"
_ATTENTION = "attn_implementation"
_BATCH = "encode.batch_tokens"
_WORKERS = "workers.per_device"

# Names of settings -> values to try, such as {"model.dtype": "float16"}. Without a value, the model
# chooses its attention itself.
Settings = dict[str, Any]


def tune(loaded: LoadedConfig, price_per_hour: float | None, say: Say) -> dict[str, Any]:
    """Try settings, and return what `tune --json` prints. Takes some minutes.

    Raises Halt: 78 for a plug-in, a model that is not here, or outputs that have begun; what a run
    would end with if a source is wrong or no worker succeeds; OSError.
    """
    config = loaded.config
    source = _source_to_tune(config)
    devices = find_devices(config.device)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-tune-") as scratch:
        tables = [
            table_of(config, output, RowChoice(), Path(scratch), say) for output in config.outputs
        ]
        total = sum(table.distinct for table in tables)

        def measure(settings: Settings, texts: Sequence[str]) -> tuple[Trial, float]:
            chosen = [f"{key} {value}" for key, value in settings.items() if value]
            say(f"trying {', '.join(chosen)}")
            spec = source.spec(config.model)
            return _measure(loaded, spec, devices[0], settings, texts, Path(scratch))

        now: Settings = {
            _DTYPE: str(config.model.dtype),
            _ATTENTION: config.model.kwargs.get(_ATTENTION),
            _BATCH: config.effective_encode(next(iter(config.outputs))).batch_tokens or "auto",
            _WORKERS: config.workers.per_device,
        }
        first, rate = measure(now, _sample_texts(tables[0], _FIRST_TEXTS))
        if first.vectors is None:
            raise first.failure("no text could be encoded with the config unchanged")
        count = tables[0].distinct
        if count < rate * _LEAST_S:
            raise config_error(
                f"tune cannot tell which settings are faster: the {counted(count, 'text')} of the "
                f"first output take {count / rate:.2g} s",
                f"Put an output with {math.ceil(rate * _EACH_S):,} texts or more first.",
            )
        now[_DTYPE] = first.dtype or "float32"
        texts = _sample_texts(tables[0], max(_FIRST_TEXTS, min(_MOST_TEXTS, int(rate * _EACH_S))))
        plain = {**now, _DTYPE: "float32", _BATCH: "auto", _WORKERS: 1}
        kind = read_model_folder(Path(source.path or "")).model_type
        tried = list[dict[str, Any]]()
        best = plain
        reference = first.vectors
        for changes in [[plain], [now], *_rounds(devices, kind, now)]:
            for change in changes:
                settings = {**best, **change}
                if settings in [each["settings"] for each in tried]:
                    continue
                trial, rate = measure(settings, texts)
                if trial.vectors is not None and not tried:
                    reference = trial.vectors
                row = _row(settings, trial, rate, reference)
                if row["problem"] is None:
                    row["hours"] = total / (rate * len(devices)) / 3600
                    if price_per_hour is not None:
                        row["cost"] = row["hours"] * price_per_hour
                tried.append(row)
            chosen = _best(tried)
            best = chosen["settings"] if chosen else plain
    changed = Settings()
    if chosen:
        chosen["recommended"] = True
        changed = {key: value for key, value in best.items() if now[key] != value}
        if _ATTENTION in changed:
            changed["model.kwargs"] = {**config.model.kwargs, _ATTENTION: changed.pop(_ATTENTION)}
    return {
        "texts": total,
        "sample": len(texts),
        "devices": len(devices),
        "changes": changed,
        "candidates": tried,
    }


def _source_to_tune(config: Config) -> ModelSource:
    """Return the model's files. Raises Halt (78) if there is nothing to tune."""
    if config.model.is_plugin:
        raise config_error(
            "tune compares settings of a sentence-transformers model; this config has a plug-in "
            "encoder",
            "Compare its settings by trials: `chunkvisor run CONFIG --max-rows 1000`.",
        )
    layout = Layout(config.workdir)
    source = known_source(config.model, layout.model)
    if source is None:
        name = config.model.name
        raise config_error(
            f"the model {name} is not on this machine yet",
            f"hf download {name} --local-dir MODEL; then chunkvisor tune CONFIG --set "
            f"model.name=MODEL",
        )
    if any(read_facts(layout.output(output)) for output in config.outputs):
        raise config_error(
            f"outputs in {config.workdir} have begun, so their dtype and attention are fixed",
            "Tune for a new workdir: chunkvisor tune CONFIG --set workdir=OTHER",
        )
    return source


def _rounds(
    devices: Sequence[Device], model_type: str | None, now: Settings
) -> list[list[Settings]]:
    """Return the changes to try in each round; each round has values of one setting.

    A round starts from the best settings so far.
    """
    # float16 has no fast kernels on a CPU.
    dtypes = ["bfloat16"] if has_bfloat16() or now[_DTYPE] == "bfloat16" else []
    attentions = ["sdpa", "eager"]
    kind = devices[0].kind
    if kind == "cuda":
        card = weakest(devices)
        dtypes = [
            each for each in ("bfloat16", "float16") if not unfit_dtype(each, model_type, card)
        ]
        if importlib.util.find_spec("flash_attn"):
            attentions.append("flash_attention_2")
    return [
        [{_DTYPE: each} for each in dtypes],
        [{_ATTENTION: each} for each in attentions],
        [{_BATCH: each} for each in _TOKENS[kind]],
        [{_WORKERS: 2}] if len(os.sched_getaffinity(0)) > 1 else [],
    ]


def _row(settings: Settings, trial: Trial, rate: float, reference: Vectors) -> dict[str, Any]:
    """Return the row of a setting; its cosines are to the `reference`, the vectors of float32."""
    row: dict[str, Any] = {
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
        row["problem"] = f"{trial.verdict.outcome}: {trial.verdict.reason}"
        return row
    pairs = zip(trial.vectors, reference, strict=True)
    cosines = [difference_and_cosine(found, right)[1] for found, right in pairs]
    row["mean_cosine"] = float(np.mean(cosines))
    row["least_cosine"] = min(cosines)
    return row


def _best(tried: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the fastest that is near enough to float32, or an earlier one that is as fast."""
    best = None
    for each in tried:
        near = not each["problem"] and each["least_cosine"] >= LEAST_COSINE
        if near and (best is None or each["texts_per_s"] > best["texts_per_s"] * _MATTERS):
            best = each
    return best


def _measure(
    loaded: LoadedConfig,
    model: ModelSpec,
    device: Device,
    settings: Settings,
    texts: Sequence[str],
    scratch: Path,
) -> tuple[Trial, float]:
    """Encode the texts in N workers on the device, every Nth text in each.

    Return a trial with the vectors of all texts, or one that has failed; and the texts per second,
    without the start of the workers.
    """
    config = loaded.config
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
            # The other folders in `scratch` are tables, named as outputs, which begin with no dot.
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
    """Read at most `count` texts, spread evenly over the table."""
    return table.texts_at(np.unique(np.linspace(0, table.distinct - 1, count).astype(np.int64)))


def tune_lines(tuned: dict[str, Any]) -> list[str]:
    """Return the table of candidates, the recommended one marked, and what to do."""
    row = "{:<2}{:<10}{:<19}{:>7}{:>9}{:>10}{:>9}{:>9}{:>11}{:>8}".format
    heads = "dtype,attention,tokens,workers,texts/s,mean cos,lowest,in all,cost"
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
