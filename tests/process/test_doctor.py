"""The doctor from end to end."""

import json
import os
from typing import Any

import pytest

from harness import Workplace, write_program

UUID = "GPU-11111111-2222-3333-4444-555555555555"
STUCK = """import time
class Stuck:
    def encode(self, texts, batch_size):
        time.sleep(600)
def make(model, device):
    return Stuck()
"""


@pytest.fixture
def job(workplace: Workplace) -> Workplace:
    """A job of one text."""
    workplace.prepare(["a"], "good:make")
    return workplace


def found(job: Workplace, expected: int, **env: str) -> dict[str, Any]:
    """Return the findings of `doctor --json`, by check."""
    told = json.loads(job.does("doctor", "--json", env=env, code=expected).stdout)
    assert told["ok"] is (expected == 0)
    return {row["check"]: row for row in told["findings"]}


def test_a_job_that_this_machine_can_do(job: Workplace) -> None:
    """A sample is encoded, and no workdir is made; a missing source and an unknown key are faults
    of the config.
    """
    assert found(job, 0)["encoding"]["state"] == "ok"
    assert not job.workdir.exists()

    job.source.unlink()
    assert f"out: There is no file {job.source}" in found(job, 78)["source"]["meaning"]

    job.config_path.write_text("workdri: x\n")
    told = found(job, 78)
    assert ("workdri" in told["config"]["meaning"], told["torch"]["state"]) == (True, "ok")


def test_an_encoder_that_does_not_work(job: Workplace) -> None:
    """One that cannot be imported is the config's fault; one that hangs is given up."""
    job.write_config("no_such_module:make")
    assert "no_such_module" in found(job, 78)["encoding"]["meaning"]

    (job.folder / "stuck.py").write_text(STUCK)
    job.write_config("stuck:make", recovery__stall_timeout=0.5)
    assert "stall_timeout" in found(job, 69)["encoding"]["meaning"]


def test_a_model_that_is_nowhere(job: Workplace) -> None:
    """A path without a model and a hub id that is not in the cache are told apart, without asking
    the hub.
    """
    job.write_config("sentence-transformers", model__name="./no/such/folder")
    assert "no model folder" in found(job, 78)["model"]["meaning"]

    job.write_config("sentence-transformers", model__name="nobody/has-this-model")
    told = found(job, 78, HF_HUB_OFFLINE="1", HF_HOME=str(job.folder / "hub"))
    assert "the hub may not be asked" in told["model"]["meaning"]


def test_a_gpu_in_trouble(job: Workplace) -> None:
    """What nvidia-smi says of the chosen GPU is reported, and the sample is encoded all the same."""
    job.write_config("good:make", device="cuda")
    device = f"0, {UUID}, A100, 40960, 0:01:00.0"
    body = (
        f"""case "$*" in *recovery*) echo "3, Node Reboot Required";; *) echo "{device}";; esac"""
    )
    path = job.folder / "bin" / "nvidia-smi"
    write_program(path, f"#!/bin/sh\n{body}\n")

    told = found(
        job, 69, PATH=f"{path.parent}{os.pathsep}{os.environ['PATH']}", CUDA_VISIBLE_DEVICES="0"
    )

    assert (told["gpu-health"]["state"], told["encoding"]["state"]) == ("fault", "ok")
