"""GPUs as nvidia-smi tells of them; a fake nvidia-smi stands in for the real one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chunkvisor.devices import gpu
from chunkvisor.devices.gpu import (
    CPU,
    Device,
    ProbeReading,
    find_devices,
    is_guessed,
    parse_devices,
    select_visible,
)
from chunkvisor.errors import ExitCode, Halt
from chunkvisor_worker.contract.messages import Cause, Fault, Phase, ProbedGpu, ProbeReport

LISTING = (
    "0, GPU-aaaa1111-0000-0000-0000-000000000000, NVIDIA H200, 143771, 00000000:3B:00.0\n"
    "1, GPU-bbbb2222-0000-0000-0000-000000000000, NVIDIA A100-SXM4-80GB, 81920, 00000000:5E:00.0\n"
)
A, B = parse_devices(LISTING)
MIG = Device("cuda", "MIG-cccc", "MIG slice")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("No devices were found\n", 0),
        ("0, GPU-a, NVIDIA GB10, [N/A], 0000000F:01:00.0\n", 1),
        ("0, GPU-a, NVIDIA GB10, [Insufficient Permissions], [N/A]\n", 1),
        ("0, [N/A], NVIDIA X, 1, 00000000:01:00.0\n" + LISTING, 2),
        ("WARNING: infoROM is corrupted at gpu 0000:01:00.0\n" + LISTING, 2),
        ("\ufffd,,,,\n", 0),
    ],
    ids=["empty", "none", "no memory", "no permission", "no UUID", "warning", "nonsense"],
)
def test_lines_that_are_no_gpu_are_left_out(text: str, count: int) -> None:
    """Warnings and nonsense between the lines do no harm; memory that nvidia-smi does not tell is 0."""
    devices = parse_devices(text)
    assert len(devices) == count
    assert count != 1 or devices[0].memory_bytes == 0
    assert (str(A), A.memory_bytes, A.bus_id) == ("NVIDIA H200 (GPU-aaaa1111)", 143771 << 20, "00000000:3B:00.0")


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, [A, B]),
        ("", []),
        ("0", [A]),
        ("1,0", [B, A]),
        (" 1 , 0 ", [B, A]),
        ("GPU-bbbb2222-0000-0000-0000-000000000000,0", [B, A]),
        ("0,7,1", [A]),
        ("0,-1,1", [A]),
        ("GPU-dddd,0", []),
        ("MIG-cccc,1", [MIG, B]),
        ("GPU-", []),
        ("0,0", []),
        ("1,GPU-bbbb", []),
        ("\u00b2", []),
    ],
)
def test_cuda_visible_devices(visible: str | None, chosen: list[Device]) -> None:
    """Read as CUDA reads it: in the order given, up to the first entry that names no device."""
    assert select_visible([A, B], visible) == chosen


@pytest.mark.parametrize(("visible", "chosen"), [("2", [B]), ("1", []), ("0,2", [A, B]), ("2,1,0", [B])])
def test_numbers_are_those_of_nvidia_smi(visible: str, chosen: list[Device]) -> None:
    """A GPU that is missing from the list (number 1) does not move those behind it up."""
    first, second = LISTING.splitlines()
    devices = parse_devices(f"{first}\n1, [N/A], [GPU is lost], [N/A], 00000000:4B:00.0\n2{second[1:]}\n")
    assert select_visible(devices, visible) == chosen


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a fake nvidia-smi can be put; there is no other on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def install(smi: Path, output: str, code: int = 0) -> None:
    """Make a fake nvidia-smi that prints and exits."""
    lines = "".join(f'echo "{line}"\n' for line in output.splitlines())
    smi.write_text(f"#!/bin/sh\n{lines}exit {code}\n")
    smi.chmod(0o700)


def environment(visible: str | None) -> dict[str, str]:
    """One with or without CUDA_VISIBLE_DEVICES."""
    return {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}


@pytest.mark.parametrize(
    ("wanted", "visible", "devices"),
    [
        (["cpu"], None, (CPU,)),
        (["cuda"], None, (A, B)),
        (["cuda:1"], None, (B,)),
        (["cuda:1", "cuda:0"], None, (A, B)),
        (["cuda:1", "cuda:1"], None, (B,)),
        (["cuda:0", "cuda"], None, (A, B)),
        (["cuda"], "1,0", (B, A)),
        (["cuda:1"], "1,0", (A,)),
        (["cuda"], "MIG-cccc", (MIG,)),
    ],
)
def test_devices_are_found(smi: Path, wanted: list[str], visible: str | None, devices: tuple[Device, ...]) -> None:
    """`cuda` is every visible GPU, `cuda:N` the N-th, each once; the CPU is taken only where it is asked for."""
    install(smi, LISTING)
    assert find_devices(wanted, environment(visible)) == devices


@pytest.mark.parametrize(
    ("wanted", "visible", "words"),
    [
        (["cuda:0", "cuda:2"], None, "2 visible GPUs, and cuda:2 asks for number 2"),
        (["cuda:1"], "1", "1 visible GPU,"),
        (["cuda"], "", "0 visible GPUs"),
    ],
)
def test_gpu_that_is_not_visible(smi: Path, wanted: list[str], visible: str | None, words: str) -> None:
    """Exit code 69, with the count of GPUs that can be seen; never the CPU instead."""
    install(smi, LISTING)
    with pytest.raises(Halt) as caught:
        find_devices(wanted, environment(visible))
    assert caught.value.code is ExitCode.MACHINE
    assert words in caught.value.why
    assert caught.value.remedy


def test_gpu_off_the_bus(smi: Path) -> None:
    """nvidia-smi's exit code 15 is told as what it means."""
    install(smi, "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.", 15)
    with pytest.raises(Halt) as caught:
        find_devices(["cuda"], {})
    assert caught.value.code is ExitCode.MACHINE
    assert "fallen off the bus" in caught.value.why


WORKS = ProbedGpu("NVIDIA Quadro RTX 8000", (7, 5), 48 << 30)
NO_CUDA = ProbeReading(ProbeReport(Phase.DONE, {"torch": "2.13.0+cpu"}), 0)


def failed(words: str) -> ProbeReading:
    """Torch could not make a CUDA context, for this reason."""
    fault = Fault(Phase.CUDA_INIT, (Cause("builtins.RuntimeError", (), words),), "")
    return ProbeReading(ProbeReport(Phase.CUDA_INIT, {"torch": "2.13.0"}, "13.0", fault=fault), 20)


def computes_on(*gpus: ProbedGpu) -> ProbeReading:
    """Torch has computed on these GPUs."""
    return ProbeReading(ProbeReport(Phase.DONE, {"torch": "2.13.0"}, "13.0", gpus=gpus), 0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes a machine: its device files, and what torch says; without an nvidia-smi that works."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "_DEV", tmp_path / "dev")
    (tmp_path / "dev").mkdir()

    def make(probe: ProbeReading, *files: str) -> None:
        for name in files:
            (tmp_path / "dev" / name).touch()
        monkeypatch.setattr(gpu, "ask_torch", lambda _environment, _on_wait: probe)

    return make


@pytest.mark.parametrize(
    ("output", "code", "probe", "words"),
    [
        (
            "NVIDIA-SMI has failed because",
            9,
            NO_CUDA,
            "NVIDIA-SMI has failed because; this torch is built without CUDA",
        ),
        ("No devices were found", 0, failed("No driver.\nPlease"), "No devices were found; torch says: No driver."),
        ("", 12, ProbeReading(ProbeReport(Phase.IMPORT, {}), 1), "exit code 12; torch is not installed"),
        (None, 0, ProbeReading(None, None), "nvidia-smi is not there; torch gave no answer within 180 s"),
        (None, 0, ProbeReading(None, 1, "no module\n"), "nvidia-smi is not there; torch could not be asked: no module"),
    ],
)
def test_nothing_speaks_for_a_gpu(
    machine: Callable[..., None], smi: Path, output: str | None, code: int, probe: ProbeReading, words: str
) -> None:
    """Without a device file and without a context of torch's the run ends with 69, and says what both have said."""
    machine(probe)
    if output is not None:
        install(smi, output, code)
    with pytest.raises(Halt) as caught:
        find_devices(["cuda"], {})
    assert caught.value.code is ExitCode.MACHINE
    assert words in caught.value.why
    assert "set device to cpu" in caught.value.remedy


@pytest.mark.parametrize("files", [(), ("nvidia0", "nvidiactl")], ids=["none", "linux"])
@pytest.mark.parametrize("output", [None, "Failed to initialize NVML: Unknown Error"])
def test_what_counts_is_whether_torch_computes(
    machine: Callable[..., None], smi: Path, files: tuple[str, ...], output: str | None
) -> None:
    """Where nvidia-smi is missing or fails and CUDA works, the GPUs are those of torch, with all that it knows."""
    machine(computes_on(WORKS), *files)
    if output is not None:
        install(smi, output, 255)
    (found,) = find_devices(["cuda"], {})
    assert (found.uuid, found.name, found.memory_bytes) == ("0", WORKS.name, WORKS.total_bytes)
    assert found.capability == (7, 5)
    assert is_guessed(found)


@pytest.mark.parametrize(
    ("wanted", "visible", "uuids"),
    [
        ("cuda", None, ["0", "1"]),
        ("cuda:1", None, ["1"]),
        ("cuda", "3,5", ["3", "5"]),
        ("cuda:1", "3,5", ["5"]),
        ("cuda", "GPU-x, GPU-y,GPU-z", ["GPU-x", "GPU-y"]),
        ("cuda:2", None, []),
        ("cuda", "", []),
        ("cuda", "-1", []),
    ],
)
def test_gpus_of_torch_have_the_names_that_a_worker_needs(
    machine: Callable[..., None], wanted: str, visible: str | None, uuids: list[str]
) -> None:
    """A worker is given the entry of CUDA_VISIBLE_DEVICES, else CUDA's number; what torch does not see is refused."""
    machine(computes_on(WORKS, WORKS), "nvidia0", "nvidia1")
    if uuids:
        assert [device.uuid for device in find_devices([wanted], environment(visible))] == uuids
        return
    with pytest.raises(Halt) as caught:
        find_devices([wanted], environment(visible))
    assert caught.value.code is ExitCode.MACHINE


@pytest.mark.parametrize(
    ("files", "wanted", "visible", "names"),
    [
        (("nvidia0", "nvidia3", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-modeset"), "cuda", None, "0 1 2"),
        (("nvidia0", "nvidia1"), "cuda:1", None, "1"),
        (("nvidiactl",), "cuda:1", None, "1"),
        (("dxg",), "cuda", None, "0"),
        ((), "cuda", "GPU-x, GPU-y", "GPU-x GPU-y"),
        ((), "cuda", "2", "2"),
    ],
)
def test_where_torch_fails_a_device_file_leaves_the_judgement_to_the_worker(
    machine: Callable[..., None], files: tuple[str, ...], wanted: str, visible: str | None, names: str
) -> None:
    """A GPU may be busy for a while, and a plug-in may need no torch: the GPU is taken by its number or its name."""
    machine(failed("CUDA-capable device(s) is/are busy or unavailable"), *files)
    found = find_devices([wanted], environment(visible))
    assert found == tuple(Device("cuda", name) for name in names.split())
    assert [is_guessed(device) for device in found] == [name.isdecimal() for name in names.split()]


def test_a_gpu_on_which_torch_fails_is_left_to_the_worker(machine: Callable[..., None]) -> None:
    """Where the second of two GPUs fails in torch, both are taken, and what is known of the first is kept."""
    reading = failed("uncorrectable ECC error")
    assert reading.report is not None
    machine(replace(reading, report=replace(reading.report, gpus=(WORKS,))), "nvidia0", "nvidia1")
    first, second = find_devices(["cuda"], {})
    assert (first.capability, second) == ((7, 5), Device("cuda", "1"))


def test_the_compute_capability_is_that_of_nvidia_smi(smi: Path) -> None:
    """It is asked for; a driver that does not know the field is asked without it."""
    smi.write_text(
        "#!/bin/sh\n"
        'case "$*" in *compute_cap*) [ -e "$0.old" ] && exit 2; echo "0, GPU-a, Quadro, 49152, 0:1:0.0, 7.5";;\n'
        '*) echo "0, GPU-a, Quadro, 49152, 0:1:0.0";; esac\n'
    )
    smi.chmod(0o700)
    assert [device.capability for device in find_devices(["cuda"], {})] == [(7, 5)]
    smi.with_suffix(".old").touch()
    assert [device.capability for device in find_devices(["cuda"], {})] == [None]
    assert parse_devices("0, GPU-a, Quadro, 49152, 0:1:0.0, [N/A]\n")[0].capability is None
