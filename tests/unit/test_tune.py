"""`chunkvisor tune`: what is tried, how it is compared, and how a config is edited."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from chunkvisor.commands import tune as tuning_module
from chunkvisor.commands.tune import tune, tune_lines
from chunkvisor.config.load import load, with_values
from chunkvisor.engine.trial import Trial
from chunkvisor.errors import Halt
from chunkvisor.judge import Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, ModelSpec
from harness import halts


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (
            "model:\n  name: m   # mine\n  dtype: auto  # theirs\n# the end\n",
            "model:\n  name: m   # mine\n  dtype: bfloat16  # theirs\n# the end\n\nencode:\n  "
            "batch_tokens: 4096\n",
        ),
        (
            "model: {name: m, dtype: 'auto'}\nencode:   # batches\n    normalize: true\n",
            "model: {name: m, dtype: bfloat16}\nencode:   # batches\n    batch_tokens: 4096\n    "
            "normalize: true\n",
        ),
        ("encode: {batch_tokens: auto}\nx: &x {dtype: auto}\nmodel: *x", None),
    ],
    ids=["blocks", "braces", "beyond-us"],
)
def test_a_config_is_edited(text: str, written: str | None) -> None:
    """Comments, order and quotes stay; a form that cannot be edited safely is left to the person."""
    edited = with_values(text, {"model.dtype": "bfloat16", "encode.batch_tokens": 4096})
    assert edited == written
    assert written is None or yaml.safe_load(written)["encode"]["batch_tokens"] == 4096


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config of 200 texts and made-up workers: the CPU has bfloat16, twice as fast, and 8,192
    tokens fail.
    """
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_text("")
    (tmp_path / "rows.txt").write_text(
        "".join(f"{'word ' * (number % 9 + 1)}{number}\n" for number in range(200))
    )
    path = tmp_path / "config.yaml"
    path.write_text(
        "workdir: w\nmodel: {name: ./model}\ndevice: cpu\noutputs: {out: {source: rows.txt}}\n"
    )

    def made_up(texts: list[str], model: ModelSpec, *_rest: Any, limits: Limits) -> Trial:
        if limits.tokens == 8192:
            return Trial(Verdict(Outcome.HOST_OOM, "no memory"), None, "killed")
        half = model.dtype == "bfloat16"
        vectors = np.array(
            [[len(text), ord(text[-1]), 1 + half * 1e-1] for text in texts], dtype=np.float32
        )
        phases = {"forward": len(texts) / (20.0 if half else 10.0)}
        loaded = "float32" if model.dtype == "auto" else model.dtype
        return Trial(Verdict(Outcome.COMMITTED, "done"), vectors, "", phases, loaded)

    monkeypatch.setattr(tuning_module, "try_texts", made_up)
    monkeypatch.setattr(tuning_module, "has_bfloat16", lambda: True)
    return path


def tuned(config: Path, *changes: str) -> dict[str, Any]:
    """Tune it, at two a hour."""
    return tune(load(config, changes), 2.0, lambda _step: None)


def test_a_tuning(config: Path) -> None:
    """The table has every candidate, marks the best, and says what is to change in the config."""
    found = tuned(config)
    lines = tune_lines(found)
    assert next(line for line in lines if line.startswith("* ")).split()[1] == "bfloat16"
    assert {each["settings"]["attn_implementation"] for each in found["candidates"]} == {
        None,
        "sdpa",
        "eager",
    }
    assert any("failed: host_oom: no memory" in line for line in lines)
    assert f"tried on {found['sample']} texts of 200; cosines are to the first row." in lines
    assert "model.dtype: bfloat16" in lines[-1]
    first, *others = found["candidates"]
    assert [each["recommended"] for each in others].count(True) == 1
    assert list(first["settings"].values()) == ["float32", None, "auto", 1]
    assert first["hours"] == pytest.approx(200 / 10 / 3600)
    assert first["cost"] == pytest.approx(2 * first["hours"])
    assert first["mean_cosine"] == pytest.approx(1)
    tried = [str(each["settings"]) for each in found["candidates"]]
    assert len(tried) == len(set(tried))


def test_what_is_too_far_from_float32_is_not_taken(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast it is; of settings that are as fast, the first is taken."""
    monkeypatch.setattr(tuning_module, "LEAST_COSINE", 0.9999999)
    best = next(each for each in tuned(config)["candidates"] if each["recommended"])
    assert (best["settings"]["model.dtype"], best["settings"]["encode.batch_tokens"]) == (
        "float32",
        "auto",
    )


def test_too_few_texts_tell_nothing(config: Path) -> None:
    """Texts that take less than a second are refused: their rates would differ by chance."""
    (config.parent / "rows.txt").write_text("one\ntwo\n")
    with halts(78, "cannot tell which settings are faster") as caught:
        tuned(config)
    assert "40 texts or more" in caught.value.remedy


def test_bfloat16_on_a_cpu_without_it(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the slowest, so it is not tried."""
    monkeypatch.setattr(tuning_module, "has_bfloat16", lambda: False)
    found = tuned(config, "encode.batch_tokens=2000")
    assert not any(each["settings"]["model.dtype"] == "bfloat16" for each in found["candidates"])


def test_what_cannot_be_tuned_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in encoder, and outputs that have begun, with code 78."""
    with halts(78):
        tuned(config, "model.encoder=good:make")
    monkeypatch.setattr(tuning_module, "read_facts", lambda _output: object())
    with pytest.raises(Halt, match="have begun"):
        tuned(config)
