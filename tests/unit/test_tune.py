"""`chunkvisor tune`: what is tried, how it is compared, and how a config is edited."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from chunkvisor.commands import tune as tuning_module
from chunkvisor.commands.tune import Candidate, Measured, Tuning, cosines, draw, to_json, tune
from chunkvisor.config.load import load
from chunkvisor.config.yaml import with_values
from chunkvisor.engine.trial import Trial
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.judge import Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, ModelSpec

_DTYPE = ("model", "dtype")
_TOKENS = ("encode", "batch_tokens")


def test_vectors_are_compared() -> None:
    """Cosines are taken row by row; the zero vectors of a blank text are equal."""
    vectors = np.random.default_rng(0).standard_normal((50, 16)).astype(np.float32)
    vectors[7] = 0
    assert cosines(vectors * 3, vectors) == pytest.approx((1.0, 1.0))
    turned = vectors.copy()
    turned[3] *= -1
    assert cosines(turned, vectors)[1] == pytest.approx(-1.0)


def test_the_fastest_that_is_near_enough() -> None:
    """What is too far from float32, or failed, is not taken, nor what is faster by chance alone."""
    plain, chance = Measured(Candidate(), 100, 1, 1), Measured(Candidate("float32", 1024), 104, 1, 0.9999)
    fast, wrong = Measured(Candidate("bfloat16"), 150, 1, 0.9999), Measured(Candidate("float16"), 300, 0.99, 0.9)
    failed = Measured(Candidate("float32", 8192), problem="gpu_oom: no")

    def best(limit: float, *measured: Measured) -> Measured | None:
        return Tuning(1, 1, limit, None, measured=[*measured]).best

    assert best(0.999, plain, chance) is plain
    assert best(0.999, plain, chance, fast, wrong, failed) is fast
    assert best(0.5, plain, fast, wrong) is wrong
    assert best(0.999, failed, wrong) is None


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

    def made_up(texts: list[str], model: ModelSpec, *_rest: Any, limits: Limits) -> Trial:
        if limits.tokens == 8192:
            return Trial(Verdict(Outcome.HOST_OOM, "no memory"), None, "killed")
        half = model.dtype == "bfloat16"
        vectors = np.array([[len(text), ord(text[-1]), 1 + half * 1e-4] for text in texts], dtype=np.float32)
        phases = {"forward": len(texts) / (20.0 if half else 10.0)}
        loaded = "float32" if model.dtype == "auto" else model.dtype
        return Trial(Verdict(Outcome.COMMITTED, "done"), vectors, "", phases, loaded)

    monkeypatch.setattr(tuning_module, "try_texts", made_up)
    monkeypatch.setattr(tuning_module, "has_bfloat16", lambda: True)
    return path


def test_a_tuning(config: Path) -> None:
    """The table has every candidate, marks the best, and says what is to change in the config."""
    said: list[str] = []
    tuning = tune(load(config), 0.999, said.append)
    assert tuning.best is not None
    assert tuning.changes["model.dtype"] == "bfloat16"
    lines = draw(tuning, 2.0)
    assert next(line for line in lines if line.startswith("* ")).split()[1] == "bfloat16"
    assert any("failed: host_oom: no memory" in line for line in lines)
    assert f"tried on {tuning.sample} texts of 200; cosines are to float32." in lines
    assert "model.dtype: bfloat16" in lines[-1]
    first, *others = to_json(tuning, 2.0)["candidates"]
    assert [each["recommended"] for each in others].count(True) == 1
    assert first["settings"] == {"model.dtype": "float32", "encode.batch_tokens": "auto", "workers.per_device": 1}
    assert first["hours"] == pytest.approx(200 / 10 / 3600)
    assert first["cost"] == pytest.approx(200 / 10 / 3600 * 2)
    assert said[-1].startswith("trying model.dtype bfloat16")
    assert tuning.notes == []
    tried = [each.candidate for each in tuning.measured]
    assert len(tried) == len(set(tried))


@pytest.mark.parametrize("asked_for", [False, True])
def test_bfloat16_on_a_cpu_without_it(config: Path, monkeypatch: pytest.MonkeyPatch, asked_for: bool) -> None:
    """It would be the slowest, so it is tried only if the config has it; else a note says that it was not."""
    monkeypatch.setattr(tuning_module, "has_bfloat16", lambda: False)
    changes = ["encode.batch_tokens=2000", *(["model.dtype=bfloat16"] if asked_for else [])]
    tuning = tune(load(config, changes), 0.999, lambda _step: None)
    assert (Candidate("bfloat16") in [each.candidate for each in tuning.measured]) == asked_for
    note = "Note: bfloat16 is not tried: this CPU has no instructions for it."
    assert (note in draw(tuning, None)) != asked_for


def test_what_has_begun_is_tuned_however_near_its_vectors_are(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of outputs that have begun stay as they are; so their budgets are tried, not those of float32."""

    class Facts:
        dtype = "bfloat16"

    monkeypatch.setattr(tuning_module, "read_facts", lambda _output: Facts)
    tuning = tune(load(config, ["model.dtype=bfloat16"]), 0.9999999999, lambda _step: None)
    assert {each.candidate.dtype for each in tuning.measured[1:]} == {"bfloat16"}
    assert {each.candidate.batch_tokens for each in tuning.measured} > {"auto", 1024, 4096}
    assert tuning.best is not None
    assert any("the fastest that makes the vectors of the workdir" in line for line in draw(tuning, None))


def test_a_signal_ends_what_is_tried(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal comes to the main thread; the worker is waited for in another one, and does not end by itself."""
    begun = threading.Event()

    def stuck(*given: Any, **_more: Any) -> Trial:
        begun.set()
        on_wait: Callable[[], None] = given[5]
        while True:
            on_wait()

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


def test_a_plugin_is_refused(config: Path) -> None:
    """For a plug-in encoder there is nothing to tune, with code 78."""
    with pytest.raises(Halt) as caught:
        tune(load(config, ["model.encoder=good:make"]), 0.999, lambda _step: None)
    assert caught.value.code is ExitCode.CONFIG
