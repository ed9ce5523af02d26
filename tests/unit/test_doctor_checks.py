"""What the doctor's checks make of readings, as a table."""

import math
import os
import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunkvisor.commands.doctor import (
    FAULT,
    NOTE,
    OK,
    WARNING,
    Case,
    Finding,
    Sample,
    container_memory,
    doctor_lines,
    examine,
    exit_code,
    findings_to_json,
)
from chunkvisor.config.load import from_values
from chunkvisor.config.model import OutputConfig
from chunkvisor.devices.gpu import Device, ProbeReading, SmiAnswer
from chunkvisor.devices.handles import Health, HealthReport
from chunkvisor.engine.expected import Expected
from chunkvisor.engine.modelfolder import ModelFolder
from chunkvisor.engine.trial import Trial
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.judge import Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Cause, Fault, Phase, ProbedGpu, ProbeReport

GIB = 1 << 30
UUID = "GPU-11111111-2222-3333-4444-555555555555"
LISTED = f"GPU 0: NVIDIA A100 (UUID: {UUID})\n"
MISMATCH = SmiAnswer(18, "Failed to initialize NVML: Driver/library version mismatch")
GPU = Device("cuda", UUID)
A100 = ProbedGpu("NVIDIA A100", (8, 0), 40 * GIB)
REPORT = ProbeReport(Phase.DONE, {"torch": "2.14.1"}, cuda="13.0", gpus=(A100,))
VECTORS = np.array([[4, 2], [1, 1], [4, 2]], dtype=np.float32)
DONE = Trial(Verdict(Outcome.COMMITTED, "done"), VECTORS, "")
ILLEGAL = ProbeReading(
    replace(REPORT, phase=Phase.FORWARD), -4, "Fatal Python error: Illegal instruction\n"
)
OTHER = replace(DONE, vectors=VECTORS[::-1] + 1)


def well(**changes: Any) -> Case:
    """Return the readings of a machine and a job in perfect health, with changes."""
    values = {
        "workdir": "work",
        "model": {"name": "some/model"},
        "outputs": {"out": {"source": "s.txt"}},
    }
    case = Case(
        config=from_values(values, Path("/tmp")),
        devices=(GPU,),
        smi=SmiAnswer(0, LISTED),
        health={GPU: HealthReport(Health.GOOD)},
        device_files={"/dev/nvidia0": True},
        probe=ProbeReading(REPORT, 0),
        memory=(60 * GIB, 64 * GIB),
        place="cache",
        sources={"out": ""},
        samples=[Sample(DONE, GPU)],
    )
    return replace(case, **changes)


Changes = dict[str, Any]
"""What is other than in `well`."""


def judged(health: Health, why: str) -> Changes:
    """Have another opinion of the GPU."""
    return {"health": {GPU: HealthReport(health, why)}}


def torch(message: str = "", name: str = "builtins.RuntimeError", **changes: Any) -> Changes:
    """Have a probe that has computed on no GPU, because of an error."""
    fault = (
        Fault(Phase.CUDA_INIT, (Cause(name, ("builtins.Exception",), message),), "")
        if message
        else None
    )
    report = replace(REPORT, **{"gpus": (), "fault": fault, "phase": Phase.CUDA_INIT, **changes})
    return {"probe": ProbeReading(report, 1)}


def failing(outcome: Outcome, **changes: Any) -> Changes:
    """Have a sample that failed."""
    verdict = Verdict(outcome, "why", "mend it", **changes)
    return {"samples": [Sample(Trial(verdict, None, "last words"), GPU)]}


def vectors(*rows: tuple[float, float], **changes: Any) -> Changes:
    """Have other vectors."""
    trial = replace(DONE, vectors=np.array(rows, dtype=np.float32))
    return {"samples": [Sample(trial, GPU, **changes)]}


def card(capability: tuple[int, int], dtype: str, kind: str) -> Changes:
    """Have another GPU, with a model in that dtype."""
    report = replace(REPORT, gpus=(replace(A100, name="NVIDIA", capability=capability),))
    model = ModelFolder(model_type=kind)
    return {"probe": ProbeReading(report, 0), "dtype": dtype, "model": model}


def template(words: str) -> Changes:
    """Have a template that is probably not meant."""
    output = OutputConfig.model_validate({"source": "a.csv", "template": words})
    return {"sources": {"out": output.template_note}}


NO_GPU: Changes = {
    "smi": SmiAnswer(None, ""),
    "device_files": {},
    **torch("Found no NVIDIA driver on your system"),
}
UNLIKE = Sample(DONE, GPU, unexpected=Halt(ExitCode.CONFIG, "other vectors", why="cosine 0.2"))
EXPECTED = Expected(Path("e.jsonl"), ("a", "b"), VECTORS[:2])
REFUSED = torch("Unrecognized key 'foo' in CUDA allocator config.", "builtins.ValueError")
WRONG_PRODUCT = torch("a product of matrices of ones sums up to 7", "builtins.ArithmeticError")
TOO_OLD = torch("The NVIDIA driver on your system is too old (found version 12020).")

CASES: list[tuple[str, str, str, Changes]] = [
    # the driver and nvidia-smi
    ("driver", OK, "nvidia-smi lists 1 GPU", {}),
    ("driver", FAULT, "has no NVIDIA driver", NO_GPU),
    (
        "driver",
        FAULT,
        "no permission to open /dev/nvidia0",
        {"device_files": {"/dev/nvidia0": False}},
    ),
    ("driver", WARNING, "does not fit the NVIDIA driver", {"smi": MISMATCH}),
    ("driver", WARNING, "not on PATH", {"smi": SmiAnswer(None, "")}),
    (
        "gpu",
        FAULT,
        "has no GPU",
        {"refused": {"gpu": Halt(ExitCode.MACHINE, "this machine has no GPU")}},
    ),
    ("gpu-health", OK, "reports no fault", {}),
    (
        "gpu-health",
        FAULT,
        "recovery action",
        judged(Health.BROKEN, "the driver asks for a recovery action"),
    ),
    (
        "gpu-memory",
        WARNING,
        "are held by",
        judged(Health.BUSY, "39 GiB of the GPU's memory are held by x"),
    ),
    # torch
    ("torch", OK, "torch 2.14.1 is built for CUDA 13.0, and computes", {}),
    ("torch", FAULT, "cannot be imported", torch("No module", phase=Phase.IMPORT, versions={})),
    ("torch", FAULT, "it hangs", {"probe": ProbeReading(replace(REPORT, phase=Phase.IMPORT))}),
    ("torch", FAULT, "a build for another CPU", {"probe": ILLEGAL}),
    ("torch-gpu", OK, "torch computes on NVIDIA A100", {}),
    ("torch-gpu", FAULT, "not built for CUDA", torch(cuda=None, phase=Phase.DONE)),
    ("torch-gpu", FAULT, "older than the CUDA", TOO_OLD),
    ("torch-gpu", WARNING, "a product of matrices of ones", {"place": "plugin"} | WRONG_PRODUCT),
    # variables
    ("torch-gpu", FAULT, "has an option that torch does not take", REFUSED),
    # the machine
    ("memory", FAULT, "about 2.0 GiB is needed for 2 workers", {"memory": (GIB // 2, GIB)}),
    (
        "memory",
        WARNING,
        "8.0 GiB",
        {"memory": (5 * GIB, 64 * GIB), "model": ModelFolder(weights_bytes=3 * GIB)},
    ),
    ("source", WARNING, r'"{title}\n{body}"', template(r"{title}\n{body}")),
    # the model
    (
        "model",
        OK,
        "some/model is in the local cache, 3.0 GiB",
        {"model": ModelFolder(weights_bytes=3 * GIB)},
    ),
    ("model", NOTE, "downloads it", {"place": "hub"}),
    ("dtype", WARNING, "does not have", card((7, 5), "bfloat16", "bert")),
    ("dtype", WARNING, "overflow to NaN", card((8, 0), "float16", "qwen2")),
    ("dtype", OK, "suits NVIDIA", card((9, 0), "bfloat16", "qwen2")),
    ("dtype", OK, "model.dtype float16 takes less memory", card((7, 5), "float32", "bert")),
    ("right-vectors", FAULT, "why", failing(Outcome.SETUP, rule="wrong-model")),
    (
        "encoding",
        FAULT,
        "failed: crashed: why\nlast line of its log: last words",
        failing(Outcome.CRASHED),
    ),
    ("encoding", FAULT, "differ by 0.25", vectors((4, 2), (1, 1), (4, 3))),
    ("encoding", FAULT, "each has other weights", vectors((4, 2), (1, 1), (4, 2), again=OTHER)),
    ("encoding", OK, "the same vector of 2 dimensions", vectors((4, 2), (1, 1), (4, 2.001))),
    ("encoding", WARNING, "get the same vector", vectors((4, 2), (4, 2), (4, 2))),
    ("encoding", NOTE, "pid 99", {"busy_pid": 99, "samples": []}),
    ("expect", OK, "2 texts in e.jsonl", {"expected": EXPECTED}),
    ("expect", FAULT, "cosine 0.2", {"expected": EXPECTED, "samples": [UNLIKE]}),
]


@pytest.mark.parametrize(
    ("check", "state", "words", "readings"), CASES, ids=[f"{c[0]}-{c[2][:30]}" for c in CASES]
)
def test_what_readings_mean(check: str, state: str, words: str, readings: Changes) -> None:
    """Each reading gives its check the state and the words of the table, and a mend if one is
    needed.
    """
    found = [finding for finding in examine(well(**readings)) if finding.check == check]

    worst = max(found, key=lambda finding: [OK, NOTE, WARNING, FAULT].index(finding.state))
    assert worst.state is state, worst
    assert words in worst.meaning
    assert worst.mend or state not in (WARNING, FAULT)


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"f_files": 9, "f_favail": 0}, "inodes are used"), ({}, "of `ulimit -f`")],
)
def test_a_disk_that_takes_no_files(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], words: str
) -> None:
    """No inodes, and a limit to the size of files, are warnings although there is space."""
    room = {"f_files": 0, "f_favail": 0, "f_bavail": 1 << 30, "f_frsize": 4096}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**room | limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    found = [finding for finding in examine(well()) if finding.check == "disk"]
    assert found[-1].state is WARNING
    assert words in found[-1].meaning
    assert found[-1].mend


def test_a_well_machine_is_all_well() -> None:
    """With nothing wrong every finding is `ok`."""
    findings = examine(well())

    assert [finding for finding in findings if finding.state is not OK] == []
    assert exit_code(findings) is ExitCode.COMPLETE
    wsl = well(smi=SmiAnswer(None, ""), device_files={}, devices=(Device("cuda", "0"),), health={})
    assert exit_code(examine(wsl)) is ExitCode.COMPLETE, "CUDA works without nvidia-smi"


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        (failing(Outcome.SETUP, rule="model-files-damaged", exit_code=78), 78),
        (failing(Outcome.SETUP, rule="driver-too-old", exit_code=69), 69),
        (failing(Outcome.BAD_OUTPUT), 78),
        (failing(Outcome.CRASHED), 69),
        (failing(Outcome.CRASHED) | {"place": "plugin"}, 78),
        (failing(Outcome.SETUP, exit_code=78) | {"memory": (GIB // 2, GIB)}, 69),
    ],
)
def test_exit_code(readings: Changes, expected: int) -> None:
    """A fault of the machine gives 69, also next to one of the config; the config's alone gives 78."""
    assert exit_code(examine(well(**readings))) == expected


def test_the_report_is_readable() -> None:
    """Each finding is a line, with the mend below and a sum at the end; as JSON, `ok` is false with
    a fault.
    """
    findings = [
        Finding("a", OK, "well"),
        Finding("b", FAULT, "broken\nfor two reasons", "mend it", "config"),
    ]

    lines = [
        "ok       a: well",
        "fault    b: broken",
        "         for two reasons",
        "         do: mend it",
    ]
    assert doctor_lines(findings) == [
        *lines,
        "",
        "1 fault, 0 warnings; correct the faults before a run",
    ]
    told = findings_to_json(findings)
    assert told["ok"] is False
    row = {
        "check": "b",
        "state": "fault",
        "meaning": "broken\nfor two reasons",
        "mend": "mend it",
        "blame": "config",
    }
    assert told["findings"][1] == row


def test_memory_of_a_container(tmp_path: Path) -> None:
    """The container's limit is read; cached files count as free."""
    assert container_memory(tmp_path) == (math.inf, math.inf)
    for name, content in {
        "max": "1000",
        "current": "900",
        "stat": "anon 1\ninactive_file 300\n",
    }.items():
        (tmp_path / f"memory.{name}").write_text(content)
    assert container_memory(tmp_path) == (400, 1000)
    (tmp_path / "memory.max").write_text("max\n")
    assert container_memory(tmp_path) == (math.inf, math.inf)
