"""The doctor: what its sensors read of fakes, and the command from end to end."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from chunkvisor.child import run_child
from chunkvisor.commands.doctor import readings
from chunkvisor.commands.doctor.finding import Blame, Finding, State, render, to_json
from chunkvisor.commands.doctor.readings import (
    DriverReading,
    GpuProcess,
    GpuReading,
    SampleReading,
    measure,
    memory_limit,
    parse,
    read_driver,
    read_folder,
    read_hub,
    tasks_left,
)
from chunkvisor.devices.gpu import Device, ProbeReading, ask_torch
from chunkvisor.engine.trial import environment_of
from chunkvisor.judge import Verdict
from chunkvisor_worker.contract.exits import PARENT_PID, Outcome
from chunkvisor_worker.contract.messages import Cause, Fault, Phase, ProbedGpu, ProbeReport
from chunkvisor_worker.contract.wire import from_json
from chunkvisor_worker.contract.wire import to_json as message_to_json
from harness import Workplace, finish, wait_for

GIB = 1 << 30
UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER_UUID = "GPU-99999999-2222-3333-4444-555555555555"
SAMPLE = SampleReading(Verdict(Outcome.COMMITTED, "done"))


SMI_XML = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>575.51.02</driver_version>
  <cuda_version>12.9</cuda_version>
  <gpu id="00000000:01:00.0">
    <product_name>NVIDIA A100-SXM4-40GB</product_name>
    <uuid>{UUID}</uuid>
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <mig_devices><mig_device><index>0</index></mig_device><mig_device><index>1</index></mig_device></mig_devices>
    <gpu_recovery_action>None</gpu_recovery_action>
    <fb_memory_usage><total>40960 MiB</total><used>1024 MiB</used></fb_memory_usage>
    <compute_mode>Default</compute_mode>
    <ecc_errors><volatile>
      <sram_correctable>7</sram_correctable>
      <sram_uncorrectable_parity>1</sram_uncorrectable_parity>
      <sram_uncorrectable_secded>N/A</sram_uncorrectable_secded>
      <dram_uncorrectable>2</dram_uncorrectable>
    </volatile></ecc_errors>
    <remapped_rows><remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
    <processes><process_info>
      <pid>99999999</pid><type>C</type><process_name>/opt/python3 train.py --token x</process_name>
      <used_memory>1000 MiB</used_memory>
    </process_info></processes>
  </gpu>
  <gpu id="00000000:02:00.0"><uuid>{OTHER_UUID}</uuid></gpu>
</nvidia_smi_log>
"""


def test_the_answer_of_nvidia_smi_is_read() -> None:
    """All fields are found; those that a driver does not tell stay empty; a command line is cut to its program."""
    reading = parse(SMI_XML)

    assert (reading.driver, reading.cuda) == ("575.51.02", "12.9")
    assert reading.gpus == (
        GpuReading(
            UUID,
            "NVIDIA A100-SXM4-40GB",
            40 * GIB,
            GIB,
            "Default",
            mig=True,
            mig_slices=2,
            ecc_uncorrectable=3,
            remap_pending=True,
            recovery_action="None",
            processes=(GpuProcess(99999999, "python3", 1000 << 20),),
        ),
        GpuReading(OTHER_UUID),
    )


def test_the_kernel_module_is_read(tmp_path: Path) -> None:
    """The version stands in /proc; device files that may not be opened are told apart."""
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.51.02  Fri Apr 25 06:39:52 UTC 2025\n")
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()

    reading = read_driver(version, tmp_path)

    assert reading == DriverReading("575.51.02", (str(tmp_path / "nvidia0"), str(tmp_path / "nvidiactl")))
    assert read_driver(tmp_path / "none", tmp_path / "none") == DriverReading()


@pytest.mark.parametrize(
    ("lines", "files", "left", "memory"),
    [
        ("0::/box\n", {"box/pids.max": "max", "box/memory.max": "max"}, None, None),
        ("0::/box\n", {"box/pids.max": "100", "box/pids.current": "40"}, 60, None),
        ("0::/a/b\n", {"a/pids.max": "50", "a/pids.current": "45", "a/b/pids.max": "100"}, 5, None),
        (
            "0::/\n",
            {"memory.max": "1000", "memory.current": "900", "memory.stat": "anon 1\ninactive_file 300\n"},
            None,
            (1000, 400),
        ),
        ("4:memory:/box\n", {"memory/memory.limit_in_bytes": str((1 << 63) - 4096)}, None, None),
        (
            "4:memory:/box\n9:pids:/box\n",
            {
                "memory/memory.limit_in_bytes": "1000",
                "memory/memory.usage_in_bytes": "100",
                "pids/pids.max": "9",
                "pids/pids.current": "10",
            },
            0,
            (1000, 900),
        ),
    ],
)
def test_limits_of_a_container(
    tmp_path: Path, lines: str, files: dict[str, str], left: int | None, memory: tuple[int, int] | None
) -> None:
    """Both versions of cgroup are read, in our group and all above it, and the tightest limit counts."""
    own = tmp_path / "own"
    own.write_text(lines)
    for name, content in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    assert tasks_left(tmp_path / "fs", own) == left
    assert memory_limit(tmp_path / "fs", own) == memory


def test_a_folder_that_does_not_exist_is_judged_by_the_one_above(tmp_path: Path) -> None:
    """Space and permission are those of where it would be made; a file in the way is no folder."""
    (tmp_path / "file").touch()

    reading = read_folder(tmp_path / "a" / "b")
    assert reading.writable
    assert reading.free_bytes
    assert reading.path == str(tmp_path / "a" / "b")
    assert not read_folder(tmp_path / "file" / "x").writable


@pytest.mark.parametrize(
    ("variables", "has_token", "offline"),
    [
        ({}, False, False),
        ({"HF_TOKEN": "hf_secret"}, True, False),
        ({"HF_HUB_OFFLINE": "1"}, False, True),
        ({"TRANSFORMERS_OFFLINE": "yes"}, False, True),
        ({"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1"}, False, False),
    ],
)
def test_hub_settings(tmp_path: Path, variables: dict[str, str], has_token: bool, offline: bool) -> None:
    """A token is found but never kept; the two offline switches are one, and 0 in the first masks the second."""
    reading = read_hub({"HF_HOME": str(tmp_path), **variables})

    assert (reading.has_token, reading.offline) == (has_token, offline)
    assert reading.cache.path == str(tmp_path / "hub")
    assert "secret" not in repr(reading)


def test_a_token_file_counts(tmp_path: Path) -> None:
    """`hf auth login` leaves a file."""
    (tmp_path / "token").write_text("hf_secret")

    assert read_hub({"HF_HOME": str(tmp_path)}).has_token


def test_vectors_are_measured() -> None:
    """The difference between the equal texts is relative; the other text must have another vector."""
    reading = measure(SAMPLE, np.array([[4, 2], [1, 1], [4, 3]], dtype=np.float32))

    assert (reading.dimension, reading.difference, reading.tells_apart) == (2, 0.25, True)
    assert not measure(SAMPLE, np.ones((3, 2), dtype=np.float32)).tells_apart


def test_the_childs_environment() -> None:
    """It is a worker's; without a device the child sees what the command sees."""
    base = {"CUDA_VISIBLE_DEVICES": "1", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    devices = (Device("cuda", "GPU-a"), Device("cuda", "GPU-b"))

    assert environment_of(base, devices, {})["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert environment_of(base, (Device("cpu"),), {})["CUDA_VISIBLE_DEVICES"] == ""
    without = environment_of(base, (), {"X": "y"})
    assert without["CUDA_VISIBLE_DEVICES"] == "1"
    assert without["X"] == "y"
    assert without[PARENT_PID] == str(os.getpid())
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" not in without
    assert "CUDA_VISIBLE_DEVICES" not in environment_of({}, (), {})


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    """Past its time limit, and after its own end, the child and what it has started are gone (the fixture looks)."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"

    with pytest.raises(TimeoutError):
        run_child([sys.executable, "-c", script], tmp_path / "log", timeout_s=0.5)
    leaving = f"{script.replace('run', 'Popen')}; raise SystemExit(7)"
    assert run_child([sys.executable, "-c", leaving], tmp_path / "log", timeout_s=60) == 7


def test_a_probe_report_survives_the_wire() -> None:
    """The report is read back as it was written, nested messages and all."""
    fault = Fault(Phase.CUDA_INIT, (Cause("builtins.RuntimeError", ("builtins.Exception",), "no"),), "")
    report = ProbeReport(
        Phase.CUDA_INIT, {"torch": "1"}, "13.0", None, ("sm_80",), (ProbedGpu("A", (8, 0), 2, 1),), fault
    )

    assert from_json(ProbeReport, message_to_json(report)) == report


def test_the_report_is_readable() -> None:
    """One line a finding, the mend below, a sum at the end; the same as JSON, `ok` false with a fault."""
    findings = [
        Finding("a", State.OK, "well"),
        Finding("b", State.FAULT, "broken\nfor two reasons", "mend it", Blame.CONFIG),
    ]

    assert render(findings) == [
        "ok       a: well",
        "fault    b: broken",
        "         for two reasons",
        "         do: mend it",
        "",
        "1 fault, 0 warnings; correct the faults before a run",
    ]
    assert to_json(findings)["ok"] is False
    assert to_json(findings)["findings"][1] == {
        "check": "b",
        "state": "fault",
        "meaning": "broken\nfor two reasons",
        "mend": "mend it",
        "blame": "config",
    }
    assert to_json(findings[:1])["ok"] is True


def fake_smi(folder: Path, body: str) -> dict[str, str]:
    """An environment in which nvidia-smi is a script."""
    path = folder / "bin" / "nvidia-smi"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return {"PATH": f"{path.parent}{os.pathsep}{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "0"}


_probed: dict[str | None, ProbeReading] = {}
"""By CUDA_VISIBLE_DEVICES, what torch told."""


@pytest.fixture(autouse=True)
def asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is asked once for each GPU that workers are to see: to load it takes two seconds of computing."""

    def told(environment: Mapping[str, str]) -> ProbeReading:
        gpu = environment.get("CUDA_VISIBLE_DEVICES")
        if gpu not in _probed:
            _probed[gpu] = ask_torch(environment)
        return _probed[gpu]

    monkeypatch.setattr(readings, "ask_torch", told)


def states(stdout: str) -> dict[str, str]:
    """Check -> state, of --json."""
    return {row["check"]: row["state"] for row in json.loads(stdout)["findings"]}


def test_doctor_of_a_plugin_config(workplace: Workplace) -> None:
    """A job that this machine can do: exit code 0, a sample was encoded, and nothing is made in the workdir."""
    workplace.write_source(["a"])
    workplace.write_config("good:make")

    ended = workplace.call("doctor", str(workplace.config_path), "--json")

    assert ended.returncode == 0, ended.stdout
    assert json.loads(ended.stdout)["ok"] is True
    assert states(ended.stdout)["encoding"] == "ok"
    assert not workplace.workdir.exists()


@pytest.fixture(scope="module")
def probed() -> ProbeReading:
    """What torch says here."""
    return ask_torch(os.environ)


@pytest.fixture
def torch_asked_once(probed: ProbeReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a doctor that is about something else: to import torch takes seconds."""
    monkeypatch.setattr(readings, "ask_torch", lambda _: probed)


@pytest.mark.usefixtures("torch_asked_once")
def test_doctor_knows_the_disk_need_after_a_run(workplace: Workplace) -> None:
    """Rows and dimension are taken from the workdir of a run that is not complete."""
    workplace.write_source(["a", "b", "c"])
    workplace.write_config("good:make")
    assert workplace.run().returncode == 0
    (workplace.workdir / "out.npy").unlink()

    ended = workplace.call("doctor", str(workplace.config_path))

    assert "3 rows of 8 dimensions need" in ended.stdout


@pytest.mark.usefixtures("torch_asked_once")
def test_doctor_of_a_source_that_is_not_there(workplace: Workplace) -> None:
    """What a run would refuse of its sources, the doctor names as a fault of the config."""
    workplace.write_config("good:make")
    ended = workplace.call("doctor", str(workplace.config_path))
    assert ended.returncode in (69, 78)
    assert f"fault    source: out: There is no file {workplace.source}" in ended.stdout


@pytest.mark.usefixtures("torch_asked_once")
def test_doctor_of_a_wrong_config(workplace: Workplace) -> None:
    """The config's faults are findings beside those of the machine: exit code 78."""
    workplace.config_path.write_text("workdri: x\n")

    ended = workplace.call("doctor", str(workplace.config_path), "--json")

    assert ended.returncode == 78
    assert states(ended.stdout)["config"] == "fault"
    assert "workdri" in ended.stdout


@pytest.mark.usefixtures("torch_asked_once")
def test_doctor_of_a_broken_plugin(workplace: Workplace) -> None:
    """A plug-in that cannot be imported is the config's fault, and its log's last line is shown."""
    workplace.write_source(["a"])
    workplace.write_config("no_such_module:make")

    ended = workplace.call("doctor", str(workplace.config_path))

    assert ended.returncode == 78, ended.stdout
    assert "no_such_module" in ended.stdout


_STUCK = """import pathlib, time
class Stuck:
    def encode(self, texts, batch_size):
        pathlib.Path(__file__).with_name("waiting").touch()
        time.sleep(600)
def make(model, device):
    return Stuck()
"""


@pytest.mark.usefixtures("torch_asked_once")
def test_doctor_of_an_encoder_that_hangs(workplace: Workplace) -> None:
    """The sample is given up after stall_timeout, with the line at which it hung."""
    (workplace.folder / "stuck.py").write_text(_STUCK)
    workplace.write_source(["a"])
    workplace.write_config("stuck:make", recovery__stall_timeout=0.5)

    ended = workplace.call("doctor", str(workplace.config_path), "--json")

    found = next(each for each in json.loads(ended.stdout)["findings"] if each["check"] == "encoding")
    assert found["state"] == "fault"
    assert "stall_timeout" in found["meaning"]
    assert f'File "{workplace.folder / "stuck.py"}", line 5' in found["meaning"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_doctor_that_is_ended_leaves_no_worker(workplace: Workplace, how: signal.Signals) -> None:
    """Its worker ends with it (the fixture looks); told to stop, it removes its folder as well."""
    (workplace.folder / "stuck.py").write_text(_STUCK)
    workplace.write_source(["a"])
    workplace.write_config("stuck:make")
    scratch = workplace.folder / "tmp"
    scratch.mkdir()
    process = workplace.start("doctor", str(workplace.config_path), env={"TMPDIR": str(scratch)})
    wait_for((workplace.folder / "waiting").exists, timeout_s=180)

    process.send_signal(how)

    assert finish(process).returncode == (143 if how is signal.SIGTERM else -how)
    assert how is signal.SIGKILL or not list(scratch.glob("chunkvisor-*"))


@pytest.mark.usefixtures("torch_asked_once")
def test_doctor_of_a_model_that_is_nowhere(workplace: Workplace) -> None:
    """A path without a model and a hub id that is not in the cache are told apart, without asking the hub."""
    workplace.write_source(["a"])
    workplace.write_config("sentence-transformers", model__name="./no/such/folder")
    ended = workplace.call("doctor", str(workplace.config_path), "--json")
    assert states(ended.stdout)["model"] == "fault"

    workplace.write_config("sentence-transformers", model__name="nobody/has-this-model")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(workplace.folder / "hub"), "HF_TOKEN": "hf_verysecret"}
    ended = workplace.call("doctor", str(workplace.config_path), env=offline)
    assert "HF_HUB_OFFLINE forbids" in ended.stdout
    assert "verysecret" not in ended.stdout + ended.stderr


@pytest.mark.usefixtures("torch_asked_once")
def test_doctor_with_a_gpu_in_trouble(workplace: Workplace) -> None:
    """What nvidia-smi says of the chosen GPU is reported: exit code 69."""
    workplace.write_source(["a"])
    workplace.write_config("good:make", device="cuda")
    xml = workplace.folder / "smi.xml"
    xml.write_text(SMI_XML.replace("<gpu_recovery_action>None<", "<gpu_recovery_action>Node Reboot Required<"))
    body = f'case "$*" in *"-q -x"*) cat {xml};; *) echo "0, {UUID}, NVIDIA A100, 40960, 00000000:01:00.0";; esac'

    ended = workplace.call("doctor", str(workplace.config_path), "--json", env=fake_smi(workplace.folder, body))

    assert ended.returncode == 69, ended.stdout
    found = states(ended.stdout)
    assert (found["gpu-health"], found["gpu-memory"], found["encoding"]) == ("fault", "note", "ok")


@pytest.mark.usefixtures("torch_asked_once")
def test_doctor_with_broken_nvml(workplace: Workplace) -> None:
    """A version mismatch is explained in words, and does not keep the doctor from its other checks."""
    env = fake_smi(workplace.folder, 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18')

    ended = workplace.call("doctor", env=env)

    assert ended.returncode == 0
    assert "of different versions" in ended.stdout
    assert "memory: " in ended.stdout


@pytest.mark.model
def test_doctor_of_a_real_model(workplace: Workplace, minilm_path: Path) -> None:
    """The real model passes: tokenizer and vectors are sound, and torch computes."""
    workplace.write_source(["a"])
    workplace.write_config("sentence-transformers", model__name=str(minilm_path))

    ended = workplace.call("doctor", str(workplace.config_path), "--json")

    assert ended.returncode == 0, ended.stdout
    found = states(ended.stdout)
    assert {found[check] for check in ("torch", "model", "tokenizer", "encoding")} == {"ok"}


@pytest.mark.model
@pytest.mark.soak(only=True)
def test_doctor_of_a_model_without_its_tokenizer(workplace: Workplace, minilm_path: Path) -> None:
    """A model folder that lacks the tokenizer's files is the config's fault, though its vectors would look right."""
    workplace.write_source(["a"])
    folder = workplace.folder / "model"
    folder.mkdir()
    for path in minilm_path.iterdir():
        if path.name not in ("tokenizer.json", "vocab.txt"):
            (folder / path.name).symlink_to(path)
    workplace.write_config("sentence-transformers", model__name=str(folder))

    ended = workplace.call("doctor", str(workplace.config_path), "--json")

    assert ended.returncode == 78, ended.stdout
    assert states(ended.stdout)["tokenizer"] == "fault"
