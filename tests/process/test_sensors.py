"""Sensors: what they note, that they stay small, and that nvidia-smi cannot hurt them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.devices import gpu
from chunkvisor.devices.gpu import memory_used
from chunkvisor.events.event import AttemptStarted, RunStarted
from chunkvisor.events.state import RunState
from chunkvisor.show import record
from chunkvisor.show.record import Sensors
from chunkvisor.store.layout import InvocationFiles
from harness import wait_for


@pytest.mark.parametrize(
    ("text", "uuids", "expected"),
    [
        ("0, GPU-a, 1\n1, GPU-b, 2\n2, GPU-c, 3\n", ["GPU-c", "GPU-a"], {"GPU 0": 3 << 20, "GPU 1": 1 << 20}),
        ("3, GPU-x, 4\n", ["3"], {"GPU 0": 4 << 20}),
        ("Failed to initialize NVML\n,,,\n0, GPU-a, [N/A]\n0, GPU-a\n", ["GPU-a"], {}),
    ],
    ids=["in-the-order-of-the-run", "by-index", "garbage"],
)
def test_answer_of_nvidia_smi(text: str, uuids: list[str], expected: dict[str, int]) -> None:
    """Readings are of the run's own GPUs, in bytes, as far as nvidia-smi knows."""
    assert memory_used(text, uuids) == expected


def fake_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put an nvidia-smi on PATH that notes its calls; returns the notes."""
    folder.mkdir(exist_ok=True)
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho >> {folder}/calls\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "calls"


def lines_of(files: InvocationFiles) -> list[dict[str, Any]]:
    """What the sensors have written so far."""
    return [json.loads(line) for line in files.sensors.read_text().splitlines()] if files.sensors.exists() else []


def test_a_hanging_nvidia_smi_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked in the background, once at a time; without an answer the line has the workers' memory alone."""
    calls = fake_smi(tmp_path / "bin", monkeypatch, "exec sleep 600")
    monkeypatch.setattr(gpu, "_SMI_TIMEOUT_S", 0.2)
    monkeypatch.setattr(record, "INTERVAL_S", 0.0)
    files = InvocationFiles(tmp_path)
    watched, state = Sensors(files), RunState()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    for event in (RunStarted("w", "cuda", gpus=("GPU-a",)), AttemptStarted("out", 0, 1, child.pid)):
        state.apply(event, 1.0)
        watched.event(event, state)
    for _ in range(50):
        watched.tick()
    (line,) = wait_for(lambda: lines_of(files))
    assert len(calls.read_text().splitlines()) == 1
    assert list(line["held_bytes"]) == ["workers"]
    assert line["held_bytes"]["workers"] > 0
    child.communicate()
