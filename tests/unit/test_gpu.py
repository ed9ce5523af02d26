"""GPUs as nvidia-smi tells of them; a fake nvidia-smi stands in for the real one."""

from pathlib import Path
from typing import Any

import pytest

from chunkvisor.devices import gpu
from chunkvisor.devices.gpu import CPU, Device, ask_smi, find_devices, is_guessed, parse_devices, select_visible
from chunkvisor.errors import ExitCode, Halt

LISTING = (
    "0, GPU-aaaa1111-0000-0000-0000-000000000000, NVIDIA H200, 143771, 00000000:3B:00.0\n"
    "1, GPU-bbbb2222-0000-0000-0000-000000000000, NVIDIA A100-SXM4-80GB, 81920, 00000000:5E:00.0\n"
)
A, B = parse_devices(LISTING)
MIG = Device("cuda", "MIG-cccc", "MIG slice")


def test_listing_is_parsed() -> None:
    """Name, UUID and memory in bytes, in nvidia-smi's order."""
    assert (
        Device("cuda", "GPU-aaaa1111-0000-0000-0000-000000000000", "NVIDIA H200", 143771 << 20, "00000000:3B:00.0") == A
    )
    assert B.name == "NVIDIA A100-SXM4-80GB"
    assert str(A) == "NVIDIA H200 (GPU-aaaa1111)"


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


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, [A, B]),
        ("", []),
        ("0", [A]),
        ("1,0", [B, A]),
        (" 1 , 0 ", [B, A]),
        ("GPU-bbbb", [B]),
        ("GPU-bbbb2222-0000-0000-0000-000000000000,0", [B, A]),
        ("0,7,1", [A]),
        ("-1", []),
        ("0,-1,1", [A]),
        ("NoDevFiles", []),
        ("GPU-dddd,0", []),
        ("MIG-cccc", [MIG]),
        ("MIG-cccc,1", [MIG, B]),
        ("0x1", []),
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
        (["cuda:0"], None, (A,)),
        (["cuda:1"], None, (B,)),
        (["cuda:1", "cuda:0"], None, (A, B)),
        (["cuda:1", "cuda:1"], None, (B,)),
        (["cuda:0", "cuda"], None, (A, B)),
        (["cuda"], "1", (B,)),
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
        (["cuda:2"], None, "2 visible GPUs"),
        (["cuda:0", "cuda:2"], None, "cuda:2 asks for number 2"),
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


def pretend_driver(monkeypatch: pytest.MonkeyPatch, *, there: bool) -> None:
    """Let the driver's device file be there, or not."""
    exists = Path.exists

    def pretend(path: Path, **options: Any) -> bool:
        return there if str(path) == "/dev/nvidiactl" else exists(path, **options)

    monkeypatch.setattr(Path, "exists", pretend)


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver.", 9, "NVIDIA-SMI has failed"),
        ("", 12, "exit code 12"),
        (None, 0, "nvidia-smi is not there"),
    ],
    ids=["9", "12", "missing"],
)
def test_no_driver(smi: Path, monkeypatch: pytest.MonkeyPatch, output: str | None, code: int, words: str) -> None:
    """Without a driver the run ends with 69 and says what nvidia-smi said."""
    pretend_driver(monkeypatch, there=False)
    if output is not None:
        install(smi, output, code)
    with pytest.raises(Halt) as caught:
        find_devices(["cuda"], {})
    assert caught.value.code is ExitCode.MACHINE
    assert words in caught.value.why
    assert "set device to cpu" in caught.value.remedy


@pytest.mark.parametrize(("visible", "uuid"), [(None, "1"), ("3,5", "5"), ("GPU-x,GPU-y", "GPU-y")])
def test_broken_nvml_leaves_the_judgement_to_the_worker(
    smi: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, uuid: str
) -> None:
    """Where the driver's device files are there but nvidia-smi fails, CUDA may work: the GPU is taken by its index."""
    install(smi, "Failed to initialize NVML: Driver/library version mismatch", 18)
    pretend_driver(monkeypatch, there=True)
    assert find_devices(["cuda:1"], environment(visible)) == (Device("cuda", uuid),)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["0", "1", "2"]),
        ("GPU-x, GPU-y", ["GPU-x", "GPU-y"]),
        ("2", ["2"]),
    ],
)
@pytest.mark.parametrize("output", [None, "Failed to initialize NVML: Unknown Error"])
def test_without_nvidia_smi_every_device_file_is_a_gpu(
    smi: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    output: str | None,
    visible: str | None,
    names: list[str],
) -> None:
    """`device: cuda` takes as many GPUs as the driver has files for, or what CUDA_VISIBLE_DEVICES names."""
    if output is not None:
        install(smi, output, 255)
    pretend_driver(monkeypatch, there=True)
    monkeypatch.setattr(gpu, "_DEV", tmp_path / "dev")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia3", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (tmp_path / "dev" / name).touch()
    found = find_devices(["cuda"], environment(visible))
    assert found == tuple(Device("cuda", name) for name in names)
    assert [is_guessed(device) for device in found] == [name.isdecimal() for name in names]


def test_answer_that_is_no_text(smi: Path) -> None:
    """Bytes that are no UTF-8 are no reason to fail; standard error belongs to the answer."""
    smi.write_text("#!/bin/sh\nprintf '\\377\\376' >&2\nexit 3\n")
    smi.chmod(0o700)
    answer = ask_smi(["-L"])
    assert answer.returncode == 3
    assert answer.text == "\ufffd\ufffd"
