"""`chunkvisor tune`: what is tried, how it is compared, and how a config is edited."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from chunkvisor.commands import tune as tuning_module
from chunkvisor.commands.tune import (
    BASELINE,
    Candidate,
    Measured,
    best_of,
    budgets,
    crowds,
    draw,
    dtypes,
    to_json,
    tune,
)
from chunkvisor.config.load import load
from chunkvisor.config.yaml import with_values
from chunkvisor.decide.likeness import Likeness, likeness
from chunkvisor.engine.trial import Conditions, Trial
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.judge import Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec


def test_what_is_tried() -> None:
    """Each round begins with the best of the one before; outputs that have begun keep their dtype."""
    assert [each.dtype for each in dtypes("cpu", bfloat16=True, fixed=None)] == ["bfloat16"]
    assert dtypes("cpu", bfloat16=False, fixed=None) == []
    assert [each.dtype for each in dtypes("cpu", bfloat16=False, fixed="bfloat16")] == ["bfloat16"]
    assert [each.dtype for each in dtypes("cuda", bfloat16=False, fixed=None)] == ["bfloat16", "float16"]
    assert dtypes("cuda", bfloat16=True, fixed="float32") == []
    assert [each.dtype for each in dtypes("cuda", bfloat16=True, fixed="float16")] == ["float16"]
    best = Candidate("bfloat16", 8192)
    assert {each.dtype for each in budgets("cpu", best)} == {"bfloat16"}
    assert [each.batch_tokens for each in budgets("cpu", best)] == [1024, 4096, 8192]
    assert crowds(best, 2) == [Candidate("bfloat16", 8192, 2)]
    assert crowds(best, 1) == []


def test_vectors_are_compared() -> None:
    """Cosines row by row, zero vectors of blank texts among them, and the ten nearest of each text."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((50, 16)).astype(np.float32)
    vectors[7] = 0
    longer = likeness(vectors * 3, vectors)
    assert (longer.mean_cosine, longer.least_cosine, longer.neighbours) == pytest.approx((1.0, 1.0, 1.0))
    turned = vectors.copy()
    turned[3] = -turned[3]
    assert likeness(turned, vectors).least_cosine == pytest.approx(-1.0)
    other = likeness(rng.standard_normal((50, 16)).astype(np.float32), vectors)
    assert other.neighbours < 0.5
    assert likeness(vectors[:1], vectors[:1]).neighbours == 1.0


def test_the_fastest_that_is_near_enough() -> None:
    """What is too far from float32, or failed, is not taken, nor what is faster by chance alone."""
    near, far = Likeness(1.0, 0.9999, 1.0), Likeness(0.99, 0.9, 0.8)
    plain, chance = Measured(BASELINE, 100, near), Measured(Candidate("float32", 1024), 104, near)
    fast, wrong = Measured(Candidate("bfloat16"), 150, near), Measured(Candidate("float16"), 300, far)
    failed = Measured(Candidate("float32", 8192), problem="gpu_oom: no")
    assert best_of([plain, chance], 0.999) is plain
    assert best_of([plain, chance, fast, wrong, failed], 0.999) is fast
    assert best_of([plain, fast, wrong], 0.5) is wrong
    assert best_of([failed, wrong], 0.999) is None


_DTYPE = ("model", "dtype")
_TOKENS = ("encode", "batch_tokens")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (
            "model:\n  name: m   # mine\n  dtype: auto  # theirs\n# the end\n",
            "model:\n  name: m   # mine\n  dtype: bfloat16  # theirs\n# the end\n\nencode:\n  batch_tokens: 4096\n",
        ),
        (
            "model: {name: m, dtype: 'auto'}\nencode:   # batches\n    normalize: true\n",
            "model: {name: m, dtype: bfloat16}\nencode:   # batches\n    batch_tokens: 4096\n    normalize: true\n",
        ),
        (
            "model: {name: m}  # a model\nencode: {}\n",
            "model: {dtype: bfloat16, name: m}  # a model\nencode: {batch_tokens: 4096}\n",
        ),
        (
            'encode: {prompt: "batch_tokens: 1", batch_tokens: auto}\nmodel: {dtype: auto}',
            'encode: {prompt: "batch_tokens: 1", batch_tokens: auto}\nmodel: {dtype: auto}',
        ),
    ],
    ids=["blocks", "braces", "not-there", "beyond-us"],
)
def test_a_config_is_edited(text: str, written: str) -> None:
    """Comments, order and quotes stay; a form that cannot be edited safely is left to the person."""
    edited = with_values(text, {_DTYPE: "bfloat16", _TOKENS: 4096})
    if edited is None:
        assert text == written
        return
    assert edited == written
    assert yaml.safe_load(edited)["encode"]["batch_tokens"] == 4096


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config of 200 texts and made-up workers: the CPU has bfloat16, twice as fast, and 8,192 tokens fail."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_text("")
    (tmp_path / "rows.txt").write_text("".join(f"{'word ' * (number % 9 + 1)}{number}\n" for number in range(200)))
    path = tmp_path / "config.yaml"
    path.write_text("workdir: w\nmodel: {name: ./model}\ndevice: cpu\noutputs: {out: {source: rows.txt}}\n")

    def made_up(
        texts: list[str],
        model: ModelSpec,
        encode: EncodeSpec,
        conditions: Conditions,
        folder: Path,
        on_wait: Callable[[], None],
        limits: Limits,
    ) -> Trial:
        if limits.tokens == 8192:
            return Trial(Verdict(Outcome.HOST_OOM, "no memory"), None, "killed")
        half = model.dtype == "bfloat16"
        vectors = np.array([[len(text), ord(text[-1]), 1 + half * 1e-4] for text in texts], dtype=np.float32)
        phases = {"forward": len(texts) / (20.0 if half else 10.0)}
        loaded = "float32" if model.dtype == "auto" else model.dtype
        return Trial(Verdict(Outcome.COMMITTED, "done"), vectors, "", phases, loaded)

    monkeypatch.setattr(tuning_module, "try_texts", made_up)
    monkeypatch.setattr(tuning_module, "processor_flags", lambda: frozenset({"avx512_bf16"}))
    return path


def test_a_tuning(config: Path) -> None:
    """The table has every candidate, marks the best, and says what is to change in the config."""
    said: list[str] = []
    tuning = tune(load(config), 0.999, said.append)
    assert tuning.best is not None
    assert tuning.best.candidate.dtype == "bfloat16"
    assert tuning.changes[_DTYPE] == "bfloat16"
    lines = draw(tuning, 0.999, 2.0)
    assert next(line for line in lines if line.startswith("* ")).split()[1] == "bfloat16"
    assert any("failed: host_oom: no memory" in line for line in lines)
    assert "model.dtype: bfloat16" in lines[-1]
    values = to_json(tuning, 2.0)
    assert [each["recommended"] for each in values["candidates"]].count(True) == 1
    assert values["candidates"][0]["settings"] == {
        "model.dtype": "float32",
        "encode.batch_tokens": "auto",
        "workers.per_device": 1,
    }
    assert values["candidates"][0]["hours"] == pytest.approx(200 / 10 / 3600)
    assert values["candidates"][0]["cost"] == pytest.approx(200 / 10 / 3600 * 2)
    assert said[-1].startswith("trying bfloat16")
    assert tuning.note == ""


_PLAIN_CPU = frozenset({"sse2", "avx2"})
_NOTE = "Note: bfloat16 is not tried: this CPU has no instructions for it."


def test_bfloat16_is_left_out_where_the_cpu_has_none(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch it would take most of the time, only to be the slowest; a line says that it was not tried."""
    monkeypatch.setattr(tuning_module, "processor_flags", lambda: _PLAIN_CPU)
    said: list[str] = []
    tuning = tune(load(config), 0.999, said.append)
    assert not any("bfloat16" in line for line in said)
    assert _NOTE in draw(tuning, 0.999, None)


@pytest.mark.parametrize("key", ["model.dtype=bfloat16", "begun"])
def test_bfloat16_is_tried_where_it_is_asked_for(config: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """By the config, or by outputs that have begun in it; also with the plain budget, on whatever CPU."""
    monkeypatch.setattr(tuning_module, "processor_flags", lambda: _PLAIN_CPU)
    if key == "begun":
        monkeypatch.setattr(tuning_module, "_begun", lambda _loaded: "bfloat16")
    changes = [] if key == "begun" else [key]
    tuning = tune(load(config, ["encode.batch_tokens=2000", *changes]), 0.999, lambda _step: None)
    assert Candidate("bfloat16") in [each.candidate for each in tuning.measured]
    assert _NOTE not in draw(tuning, 0.999, None)


def test_what_has_begun_is_tuned_however_near_its_vectors_are(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay as they are; so their budgets and workers are tried, not those of float32."""
    monkeypatch.setattr(tuning_module, "_begun", lambda _loaded: "bfloat16")
    tuning = tune(load(config, ["model.dtype=bfloat16"]), 0.9999999999, lambda _step: None)
    assert {each.candidate.dtype for each in tuning.measured[1:]} == {"bfloat16"}
    assert {each.candidate.batch_tokens for each in tuning.measured} > {"auto", 1024, 4096}
    assert tuning.best is not None
    assert "* is recommended: the fastest that makes the vectors of the workdir." in draw(tuning, 0.9999999999, None)


def test_float32_fails(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the others are compared with is told: it is not float32 then."""
    made_up: Callable[..., Trial] = tuning_module.try_texts  # type: ignore[attr-defined]  # as `config` has left it

    def failing(texts: list[str], model: ModelSpec, *rest: Any, **more: Any) -> Trial:
        if model.dtype == "float32":
            return Trial(Verdict(Outcome.GPU_OOM, "no memory"), None, "out of memory")
        return made_up(texts, model, *rest, **more)

    monkeypatch.setattr(tuning_module, "try_texts", failing)
    lines = draw(tune(load(config, ["model.dtype=bfloat16"]), 0.999, lambda _step: None), 0.999, None)
    assert "tried on 80 texts of 200." in lines
    assert any(line.startswith("Note: float32 failed: cosines are to the vectors of bfloat16") for line in lines)


def test_an_output_may_have_any_name(config: Path) -> None:
    """Such as that of a folder in which something is tried."""
    config.write_text(config.read_text().replace("{out:", "{try1:"))
    assert tune(load(config), 0.999, lambda _step: None).best is not None


def test_a_signal_ends_what_is_tried(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes to the main thread; the worker is waited for in another one, and does not end by itself."""
    begun = threading.Event()

    def stuck(*given: Any, **_more: Any) -> Trial:
        begun.set()
        on_wait: Callable[[], None] = given[5]
        while True:
            on_wait()
            time.sleep(0.01)

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    monkeypatch.setattr(tuning_module, "try_texts", stuck)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            tune(load(config), 0.999, lambda _step: None)
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_is_tried_twice(config: Path) -> None:
    """Neither the config's own setting in a later round, nor what the first look has told of all the sample."""
    said: list[str] = []
    changes = ["model.dtype=bfloat16", "encode.batch_tokens=4096"]
    tune(load(config, changes), 0.999, said.append)
    assert said.count("trying bfloat16, batch_tokens 4096") == 2  # the first look, and the whole sample
    (config.parent / "rows.txt").write_text("".join(f"{number}\n" for number in range(50)))
    said.clear()
    tuning = tune(load(config, changes), 0.999, said.append)
    assert said.count("trying bfloat16, batch_tokens 4096") == 1
    assert Candidate("bfloat16", 4096) in [each.candidate for each in tuning.measured]


def test_a_plugin_has_settings_of_its_own(config: Path) -> None:
    """There is nothing to tune, with code 78."""
    with pytest.raises(Halt) as caught:
        tune(load(config, ["model.encoder=good:make"]), 0.999, lambda _step: None)
    assert caught.value.code is ExitCode.CONFIG
