"""Sensors: what they note, that they stay small, and that nvidia-smi cannot hurt them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.devices import gpu
from chunkvisor.devices.gpu import parse_load
from chunkvisor.events.event import AttemptStarted, RunStarted
from chunkvisor.events.state import RunState
from chunkvisor.show import record
from chunkvisor.show.record import Sensors
from chunkvisor.store.layout import InvocationFiles
from harness import wait_for

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "uuids", "expected"),
    [
        ("0, GPU-a, 1024, 81920, [N/A], 61, 512.5\n", ["GPU-a"], [(0, {"memory_used_bytes": GIB, "power_w": 512.5})]),
        (
            "0, GPU-a, , , 1, , \n1, GPU-b, , , 2, , \n2, GPU-c, , , 3, , \n",
            ["GPU-c", "GPU-a"],
            [(0, {"utilization": 3.0}), (1, {"utilization": 1.0})],
        ),
        ("3, GPU-x, , , 4, , \n", ["3"], [(0, {"utilization": 4.0})]),
        ("0, GPU-a, nan, inf, -1, 1e99, 5\n", ["GPU-a"], [(0, {"power_w": 5.0})]),
        ("Failed to initialize NVML\n,,,\n0, GPU-a, 1\n", ["GPU-a"], []),
    ],
    ids=["bytes", "in-the-order-of-the-run", "by-index", "nonsense", "garbage"],
)
def test_answer_of_nvidia_smi(text: str, uuids: list[str], expected: list[tuple[int, dict[str, Any]]]) -> None:
    """Readings are of the run's own GPUs, in bytes, and have what nvidia-smi knows."""
    found = parse_load(text, uuids)
    assert [each["device"] for each in found] == [device for device, _ in expected]
    assert all(wanted.items() <= each.items() for each, (_, wanted) in zip(found, expected, strict=True))


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
    assert (line["gpus"], line["workers_bytes"] > 0) == ([], True)
    child.communicate()
