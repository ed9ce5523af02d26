"""The fire drill with a real model: each worker loads torch, so that it takes a minute of computing."""

import json
from pathlib import Path

import pytest

from harness import Workplace, finish


@pytest.mark.model
@pytest.mark.timeout(900)
def test_a_real_model_recovers(workplace: Workplace, minilm_path: Path) -> None:
    """MiniLM survives out-of-memory and a device-side assert with the same vectors."""
    # Three chunks, of which two come before and after the fault.
    workplace.write_source([f"text number {number}" for number in range(24)])
    workplace.write_config("sentence-transformers", model__name=str(minilm_path), chunk__size=8)
    names = ["oom", "device-assert"]
    asked = ("drill", str(workplace.config_path), "--json", *(f"--fault={name}" for name in names))

    ended = finish(workplace.start(*asked), timeout_s=840)

    assert ended.returncode == 0, ended.stderr
    findings = json.loads(ended.stdout)
    assert [each["fault"] for each in findings if each["recovered"]] == names
