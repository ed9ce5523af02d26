"""The fire drill and the tuning of a real model: each worker loads torch, so that they take minutes
of computing.
"""

import json
from pathlib import Path

import pytest

from chunkvisor.devices.gpu import has_bfloat16
from harness import Workplace, finish

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]


def test_a_drill(workplace: Workplace, minilm_path: Path) -> None:
    """MiniLM survives out-of-memory and a device-side assert with the same vectors."""
    # Three chunks, of which two come before and after the fault.
    workplace.prepare(
        [f"text number {number}" for number in range(24)],
        "sentence-transformers",
        model__name=str(minilm_path),
        chunk__size=8,
    )
    names = ["oom", "device-assert"]
    asked = ("drill", str(workplace.config_path), "--json", *(f"--fault={name}" for name in names))
    ended = finish(workplace.start(*asked), timeout_s=840, code=0)
    assert [each["fault"] for each in json.loads(ended.stdout) if each["recovered"]] == names


def test_a_tuning(workplace: Workplace, minilm_path: Path) -> None:
    """Each candidate is measured in a worker of its own; float32 equals itself; what is written
    runs.
    """
    workplace.prepare(
        [f"text number {number} " + "and more " * (number % 40) for number in range(800)],
        "sentence-transformers",
        model__name=str(minilm_path),
        chunk__size=400,
    )
    ended = workplace.does("tune", "--json", "--write")
    found = json.loads(ended.stdout)["candidates"]
    # float32, three budgets, two workers
    assert len(found) >= 5 + has_bfloat16()
    assert found[0]["settings"]["model.dtype"] == "float32"
    assert found[0]["least_cosine"] == pytest.approx(1.0, abs=1e-6)
    for each in found:
        assert each["texts_per_s"] > 0
        assert each["least_cosine"] > 0.99
    assert not workplace.workdir.exists()
    workplace.ends(0)
