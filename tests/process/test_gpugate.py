"""How a run treats its GPU between two workers; a fake nvidia-smi tells of it what the test has laid out."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkvisor.devices.gpu import CPU, Device
from chunkvisor.devices.health import GpuGate, Health, Opinion, View
from chunkvisor.events.event import Emit, Event, GpuBusy
from harness import Workplace, expected, finish, wait_for
from scripted_workplace import ScriptedWorkplace
from soaked import wide

TEXTS = [f"t{number}" for number in range(8)]
UUID = "GPU-00000000-aaaa"
GPU = Device("cuda", UUID, "NVIDIA Fake", 81920 << 20, "00000000:3B:00.0")
SMI = """#!/bin/sh
say() { cat "$FAKE_SMI/$1" 2>/dev/null || echo "$2"; }
code() { c=$(say "$1.code" 0); [ "$c" = 0 ] || { echo "Failed to initialize NVML"; exit "$c"; }; }
echo "$*" >> "$FAKE_SMI/asked"
case "$*" in
  *--query-gpu=index*) code index; echo "0, GPU-00000000-aaaa, NVIDIA Fake, 81920, 00000000:3B:00.0" ;;
  *--query-gpu=memory.used,gpu*) code memory; echo "$(say memory 3), $(say action None)" ;;
  *--query-compute-apps*) say apps "" ;;
  *) exit 2 ;;
esac
"""


def into(told: list[Event | str]) -> Emit:
    """Keeps what is told."""

    def emit(event: Event | str, /, **details: Any) -> None:
        told.append(event)

    return emit


class FakeSmi:
    """What nvidia-smi is to say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def say(self, **answers: object) -> None:
        """Memory (MiB), apps (lines), action, index_code and memory_code (exit codes); None = as if all were well."""
        for name, answer in answers.items():
            path = self._folder / name.replace("_code", ".code")
            if answer is None:
                path.unlink(missing_ok=True)
            else:
                (self._folder / "new").write_text(f"{answer}\n")
                (self._folder / "new").replace(path)

    def asked(self) -> list[str]:
        """Its command lines so far."""
        path = self._folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSmi:
    """A fake nvidia-smi, the first on PATH."""
    folder = tmp_path / "smi"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("FAKE_SMI", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return FakeSmi(folder)


@pytest.fixture
def place(smi: FakeSmi, tmp_path: Path) -> ScriptedWorkplace:
    """Two chunks on the fake GPU, the first worker of which crashes."""
    made = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=4, device="cuda")
    made.lay("t0", "crash")
    return made


def events_of(place: Workplace, name: str) -> list[dict[str, Any]]:
    """The journal's events of that name; none while there is no journal."""
    try:
        return [event for event in place.events() if event["event"] == name]
    except (OSError, ValueError):
        return []


def start(place: Workplace) -> subprocess.Popen[str]:
    """`chunkvisor run` of the config."""
    return place.start("run", str(place.config_path))


def test_healthy_gpu_is_asked_after_faults_only(smi: FakeSmi, place: ScriptedWorkplace) -> None:
    """nvidia-smi is asked at the start and after a worker failed, not between chunks that went well."""
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    by_the_gate = [line for line in smi.asked() if line.startswith("--query-gpu=memory.used,gpu")]  # not by the sensors
    assert len(by_the_gate) == 2
    assert not events_of(place, "gpu_busy")
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))


def test_memory_held_by_a_stranger_is_waited_for(smi: FakeSmi, place: ScriptedWorkplace) -> None:
    """After a fault the GPU is full: the run waits, says who holds it, and goes on when it is free."""
    place.lay("t0", "wait_for_release")
    place.lay("t1", "crash")
    process = start(place)
    wait_for(lambda: place.calls())
    smi.say(memory=81500, apps="77, /usr/bin/intruder, 81000")
    (place.folder / "release").touch()
    (busy,) = wait_for(lambda: events_of(place, "gpu_busy"))
    assert "/usr/bin/intruder (pid 77)" in busy["why"]
    calls = len(place.calls())
    asked = len(smi.asked())
    wait_for(lambda: len(smi.asked()) > asked + 3)
    assert len(place.calls()) == calls
    smi.say(memory=None, apps=None)
    ended = finish(process)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("waiting,") == 1
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))


def test_memory_that_stays_held(smi: FakeSmi, place: ScriptedWorkplace) -> None:
    """Past recovery.wait_timeout the run ends with 75, names the holder, and keeps what is done."""
    place.write_config("scripted:make", chunk__size=4, device="cuda", recovery__wait_timeout=1)
    place.lift("t0")
    place.lay("t4", "wait_for_release")
    place.lay("t5", "crash")
    process = start(place)
    wait_for(lambda: len(place.calls()) == 2)
    smi.say(memory=81500, apps="77, /usr/bin/intruder, 81000")
    (place.folder / "release").touch()
    ended = finish(process)
    assert ended.returncode == 75, ended.stderr
    assert "stayed busy" in ended.stderr
    assert "/usr/bin/intruder (pid 77)" in ended.stderr
    assert place.status()["outputs"]["out"]["chunks_done"] == 1
    smi.say(memory=None, apps=None)
    assert place.run_here().returncode == 0
    assert place.calls()[-1] == TEXTS[4:]


def test_recovery_action_ends_the_run(smi: FakeSmi, place: ScriptedWorkplace) -> None:
    """A driver that asks for a reset after a fault ends the run with 69, in the driver's words."""
    place.lay("t0", "wait_for_release")
    place.lay("t1", "crash")
    process = start(place)
    wait_for(lambda: place.calls())
    smi.say(action="Drain and Reset")
    (place.folder / "release").touch()
    ended = finish(process)
    assert ended.returncode == 69, ended.stderr
    assert "the driver asks for a recovery action: Drain and Reset" in ended.stderr
    assert "correct that, then run the same command again\n" in ended.stderr  # nothing has been finished


@pytest.mark.parametrize("answers", [{"memory_code": 15}, {"index_code": 15}])
def test_broken_gpu_at_the_start(smi: FakeSmi, place: ScriptedWorkplace, answers: dict[str, object]) -> None:
    """Nothing is started on a GPU that is known to be broken."""
    smi.say(**answers)
    ended = place.run_here()
    assert ended.returncode == 69, ended.stderr
    assert "fallen off the bus" in ended.stderr
    assert not place.calls()


@pytest.mark.soak
@pytest.mark.parametrize("code", [18, *wide(255, 9)])
def test_broken_nvml_is_one_warning(smi: FakeSmi, place: ScriptedWorkplace, code: int) -> None:
    """nvidia-smi that fails once the run has begun is told once; CUDA works, and the run is completed."""
    place.lay("t4", "crash")
    smi.say(memory_code=code)
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("going on without its readings, CUDA may work all the same") == 1
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))


@pytest.mark.parametrize("device", [CPU, Device("cuda", "0"), Device("cuda", "MIG-cccc", "MIG slice")], ids=str)
def test_what_nvidia_smi_does_not_know_is_always_fit(smi: FakeSmi, device: Device) -> None:
    """The CPU, a GPU known by its index alone and a MIG slice are not asked for."""
    gate = GpuGate(device, into([]))
    assert gate.open() is None
    gate.ask()
    assert gate.answer(frozenset(), 0) is None
    assert not smi.asked()


@pytest.fixture
def gate(smi: FakeSmi) -> GpuGate:
    """An open gate before the fake GPU, with 3 MiB in use."""
    made = GpuGate(GPU, into([]))
    assert made.open() == Opinion(Health.GOOD)
    return made


def answered(gate: GpuGate, ours: frozenset[int] = frozenset(), now_s: float = 1000) -> Opinion:
    """What the look under way says in the end."""
    return wait_for(lambda: gate.answer(ours, now_s), timeout_s=20)


def test_gate_never_waits_for_nvidia_smi(gate: GpuGate, smi: FakeSmi) -> None:
    """A look is begun once, and answered when nvidia-smi has; until then, and without one, there is no answer."""
    assert gate.answer(frozenset(), 0) is None
    gate.ask()
    gate.ask()
    assert answered(gate).health is Health.GOOD
    assert (
        len([line for line in smi.asked() if line.startswith("--query-gpu=memory.used,gpu")]) == 2
    )  # the first at open
    assert gate.answer(frozenset(), 0) is None


def test_a_gpu_that_others_fill_is_busy_and_told_once(smi: FakeSmi) -> None:
    """However often it is looked at while that lasts."""
    told: list[Event | str] = []
    gate = GpuGate(GPU, into(told))
    gate.open()
    smi.say(memory=81500, apps="77, /usr/bin/intruder, 81000")
    for _ in range(2):
        gate.ask()
        assert answered(gate).health is Health.BUSY
    assert [type(event) for event in told] == [GpuBusy]
    assert gate.view == View(blind=False, alone=False, before_bytes=3 << 20)


def test_memory_of_a_worker_that_has_just_ended_comes_back(gate: GpuGate, smi: FakeSmi) -> None:
    """What nobody is named for is waited for a few seconds after a worker's end; then it is somebody's."""
    smi.say(memory=9000)
    gate.worker_ended(999)
    gate.ask()
    assert answered(gate, now_s=1000).health is Health.SETTLING
    gate.ask()
    assert answered(gate, now_s=1100).health is Health.GOOD


def test_whom_the_gate_is_used_to(gate: GpuGate) -> None:
    """Those who stay count as there from the start; fewer of them change nothing."""
    for held_bytes, known_bytes in ((5 << 30, 5 << 30), (1 << 30, 5 << 30)):
        gate.get_used_to(held_bytes)
        assert gate.view is not None
        assert gate.view.before_bytes == known_bytes
