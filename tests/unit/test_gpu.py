"""GPUs as nvidia-smi reports them, whether one may be given to the next worker, and the dtypes that
suit it.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunkvisor import messages as words_of
from chunkvisor.devices import gpu, handles
from chunkvisor.devices.gpu import (
    CPU,
    Device,
    ProbeReading,
    advised_dtype,
    find_devices,
    parse_devices,
    select_visible,
    unfit_dtype,
    weakest,
)
from chunkvisor.devices.handles import (
    DeviceHandle,
    DeviceHandles,
    Health,
    MemoryHolder,
    Reading,
    judge_gpu,
    read_gpu,
)
from chunkvisor.errors import Halt
from chunkvisor.judge import OtherProcesses
from chunkvisor_worker.contract.messages import Cause, Fault, Phase, ProbedGpu, ProbeReport
from chunkvisor_worker.contract.rules import RULES
from chunkvisor_worker.contract.taxonomy import read_oom
from harness import halts
from torchwords import oom

LISTING = (
    "0, GPU-aaaa1111-0000-0000-0000-000000000000, NVIDIA H200, 143771, 9.0\n"
    "1, GPU-bbbb2222-0000-0000-0000-000000000000, NVIDIA A100-SXM4-80GB, 81920, 8.0\n"
)
A, B = parse_devices(LISTING)
MIG = Device("cuda", "MIG-cccc", "MIG slice")
GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0, GPU-a, NVIDIA GB10, [N/A], [N/A]\n", 1),
        ("0, [N/A], NVIDIA X, 1, 9.0\n" + LISTING, 2),
        ("WARNING: infoROM is corrupted at gpu 0000:01:00.0\n" + LISTING, 2),
        ("\ufffd,,,,\n", 0),
    ],
    ids=["not known", "no UUID", "warning", "nonsense"],
)
def test_lines_that_are_not_a_gpu_are_left_out(text: str, count: int) -> None:
    """Warnings and nonsense between the lines do no harm; memory that nvidia-smi does not report is
    0.
    """
    devices = parse_devices(text)
    assert len(devices) == count
    assert count != 1 or (devices[0].memory_bytes, devices[0].capability) == (0, None)
    assert (str(A), A.memory_bytes, A.capability) == (
        "NVIDIA H200 (GPU-aaaa1111)",
        143771 << 20,
        (9, 0),
    )


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, [A, B]),
        ("", []),
        (" 1 , 0 ", [B, A]),
        ("GPU-bbbb2222-0000-0000-0000-000000000000,0", [B, A]),
        ("0,7,1", [A]),
        ("0,-1,1", [A]),
        ("GPU-dddd,0", []),
        ("MIG-cccc,1", [MIG, B]),
        ("0,0", []),
        ("1,GPU-bbbb", []),
    ],
)
def test_cuda_visible_devices(visible: str | None, chosen: list[Device]) -> None:
    """Read as CUDA reads it: in the order given, up to the first entry that names no device."""
    assert select_visible([A, B], visible) == chosen


Machine = Callable[..., None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes a machine: what its nvidia-smi says, if it has one, and its device files."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "_DEV", tmp_path / "dev")
    (tmp_path / "dev").mkdir()
    smi = tmp_path / "nvidia-smi"

    def make(
        output: str | None, code: int = 0, *files: str, unknown: str = "", apps: str = ""
    ) -> None:
        if output is not None:
            refused = f'case "$*" in *{unknown}*) exit 2;; esac\n' if unknown else ""
            smi.write_text(
                f'#!/bin/sh\n{refused}case "$*" in *apps*) echo "{apps}";; *) echo "{output}"; '
                f"exit {code};; esac\n"
            )
            smi.chmod(0o700)
        for name in files:
            (tmp_path / "dev" / name).touch()

    return make


@pytest.mark.parametrize(
    ("wanted", "visible", "devices"),
    [
        ("cpu", None, (CPU,)),
        ("cuda", None, (A, B)),
        ("cuda:1 cuda:0 cuda:1", None, (A, B)),
        ("cuda", "1,0", (B, A)),
        ("cuda:1", "1,0", (A,)),
        ("cuda", "MIG-cccc", (MIG,)),
        ("cuda:0 cuda:2", None, "2 visible GPUs, and cuda:2 asks for number 2"),
        ("cuda:1", "1", "1 visible GPU,"),
        ("cuda", "", "0 visible GPUs"),
    ],
)
def test_devices_are_found(
    machine: Machine, wanted: str, visible: str | None, devices: tuple[Device, ...] | str
) -> None:
    """`cuda` is every visible GPU, `cuda:N` the N-th, each once; a GPU that is not there is never
    the CPU.
    """
    machine(LISTING)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    if not isinstance(devices, str):
        assert find_devices(wanted.split(), environment) == devices
        return
    with halts(69) as caught:
        find_devices(wanted.split(), environment)
    assert devices in caught.value.why


T4 = ProbedGpu("Tesla T4", (7, 5), 15 << 30)


def cuda_says(message: str) -> Fault:
    """Make the record of an error of torch before any batch."""
    cause = Cause("builtins.RuntimeError", ("builtins.Exception",), message)
    return Fault(Phase.CUDA_INIT, (cause,), "")


@pytest.fixture
def torch_reports(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what torch reports in its child; it is not asked at all if that is not called."""

    def unasked(_environment: Any) -> ProbeReading:
        raise AssertionError("torch was asked")

    def report(*found: ProbedGpu, fault: Fault | None = None) -> None:
        reading = ProbeReading(ProbeReport(Phase.DONE, gpus=found, fault=fault), 0)
        monkeypatch.setattr(gpu, "ask_torch", lambda _environment: reading)

    monkeypatch.setattr(gpu, "ask_torch", unasked)
    return report


@pytest.mark.parametrize(
    ("output", "code", "fault", "words"),
    [
        ("GPU is lost.", 15, None, "nvidia-smi says: GPU is lost.; torch finds none"),
        ("NVIDIA-SMI has failed", 9, "No CUDA GPUs are available", "torch says: RuntimeError: No"),
        (None, 0, None, "nvidia-smi is not there; torch finds none"),
    ],
)
def test_without_a_gpu(
    machine: Machine,
    torch_reports: Callable[..., None],
    output: str | None,
    code: int,
    fault: str | None,
    words: str,
) -> None:
    """If nvidia-smi lists none, there is no device file, and torch finds none, the run ends with 69."""
    machine(output, code)
    torch_reports(fault=cuda_says(fault) if fault else None)
    with halts(69) as caught:
        find_devices(["cuda"], {})
    assert words in caught.value.why
    assert "set device to cpu (`--device cpu` of the command)" in caught.value.remedy


@pytest.mark.parametrize(
    ("wanted", "found", "fault", "devices"),
    [
        ("cuda", (T4, T4), None, "0 1"),
        ("cuda:1", (T4, T4), None, "1"),
        ("cuda", (T4,), "CUDA error: an illegal memory access was encountered", "0"),
        ("cuda", (), "CUDA error: CUDA-capable device(s) is/are busy or unavailable", "0"),
        ("cuda", (), "CUDA out of memory. Tried to allocate 2.00 MiB", "0"),
    ],
)
def test_torch_is_asked_before_there_is_said_to_be_no_gpu(
    machine: Machine,
    torch_reports: Callable[..., None],
    wanted: str,
    found: tuple[ProbedGpu, ...],
    fault: str | None,
    devices: str,
) -> None:
    """Under WSL2 nvidia-smi may fail, and there are no device files: the GPUs on which torch
    computes are the devices, and so is one that others hold at the moment.
    """
    machine(None)
    torch_reports(*found, fault=cuda_says(fault) if fault else None)
    expected = [
        Device("cuda", number, T4.name, T4.total_bytes, T4.capability)
        if found
        else Device("cuda", number)
        for number in devices.split()
    ]
    assert find_devices([wanted], {}) == tuple(expected)
    for unasked in ({"environment": {"CUDA_VISIBLE_DEVICES": "-1"}}, {"may_ask_torch": False}):
        with pytest.raises(Halt, match="0 visible GPUs"):
            find_devices([wanted], **unasked)


@pytest.mark.usefixtures("torch_reports")
@pytest.mark.parametrize(
    ("files", "wanted", "visible", "names"),
    [
        (("nvidia0", "nvidia3", "nvidia10", "nvidiactl", "nvidia-uvm"), "cuda", None, "0 1 2"),
        (("nvidia0", "nvidia1"), "cuda:1", None, "1"),
        ((), "cuda", "GPU-x, GPU-y", "GPU-x GPU-y"),
        ((), "cuda:1", "3,5", "5"),
    ],
)
def test_without_nvidia_smi_a_device_file_leaves_the_judgment_to_the_worker(
    machine: Machine, files: tuple[str, ...], wanted: str, visible: str | None, names: str
) -> None:
    """CUDA may work where nvidia-smi fails: a GPU is taken by its number or by its name."""
    machine("Failed to initialize NVML: Unknown Error", 255, *files)
    found = find_devices([wanted], {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert found == tuple(Device("cuda", name) for name in names.split())


# --- health

BASE, TOTAL = 3 << 20, 80 * GIB
FULL = TOTAL - BASE
GOOD, BUSY, BROKEN, BLIND = Health.GOOD, Health.BUSY, Health.BROKEN, Health.BLIND
STRANGER = MemoryHolder(77, "/usr/bin/python3", FULL)


def seen(used_bytes: int | None = BASE, *holders: MemoryHolder, **more: Any) -> Reading:
    """Make a reading of an nvidia-smi that works."""
    return Reading(0, used_bytes, holders=holders, **more)


def ours(used_bytes: int | None, pid: int = 11) -> MemoryHolder:
    """Make one of our own workers."""
    return MemoryHolder(pid, "python", used_bytes)


TABLE: dict[str, tuple[Reading, Health, str]] = {
    "empty": (seen(), GOOD, ""),
    "held, with room": (seen(60 * GIB, MemoryHolder(77, "p", 60 * GIB)), GOOD, ""),
    "held, without": (
        seen(FULL, STRANGER),
        BUSY,
        "80.0 GiB of the GPU's memory are held by /usr/bin/python3 (pid 77); 0.0 GiB are free",
    ),
    "a container names no process": (seen(FULL), BUSY, "a process that cannot be named"),
    "off the bus": (Reading(15), BROKEN, "fallen off the bus"),
    "to be reset": (
        seen(recovery_action="GPU Reset Required"),
        BROKEN,
        "recovery action: GPU Reset Required",
    ),
    "peers to be drained": (seen(recovery_action="Drain P2P"), GOOD, ""),
    "an action of a later driver": (seen(recovery_action="a later word"), GOOD, ""),
    "no answer in time": (Reading(None), BLIND, "None"),
    "memory not known": (seen(None), BLIND, ""),
}


@pytest.mark.parametrize(("reading", "health", "words"), TABLE.values(), ids=TABLE)
def test_opinion(reading: Reading, health: Health, words: str) -> None:
    """Broken beats blind, blind beats busy; a GPU is busy if what others hold leaves hardly
    anything.
    """
    health_report = judge_gpu(reading, total_bytes=TOTAL)
    assert health_report.health is health, health_report
    assert words in health_report.why
    assert bool(health_report.why) == (health is not GOOD)
    assert judge_gpu(seen(FULL, STRANGER)).health is GOOD, "its size is not known"


@pytest.mark.parametrize(
    ("output", "code", "apps", "reading"),
    [
        (
            "3",
            0,
            "77, /opt/a, b/python, 79872",
            Reading(0, BASE, "", (MemoryHolder(77, "/opt/a,b/python", 78 * GIB),)),
        ),
        (
            "WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n17, GPU Reset",
            0,
            "[N/A], python, 5\n77, [Not Found], [N/A]",
            Reading(0, 17 << 20, "GPU Reset", (MemoryHolder(77, "[Not Found]", None),)),
        ),
        ("[N/A], Reboot", 0, "No running processes found", Reading(0, None, "Reboot")),
        ("Failed to initialize NVML", 255, "", Reading(255)),
    ],
)
def test_a_gpu_is_read(
    machine: Machine, output: str, code: int, apps: str, reading: Reading
) -> None:
    """Memory, action and processes are read among whatever else is printed; an older driver gives
    no action.
    """
    machine(output, code, apps=apps)
    assert read_gpu("GPU-a") == reading
    machine("5", 0, unknown="gpu_recovery_action")
    assert read_gpu("GPU-a").used_bytes == 5 << 20


# --- a station


def station_after(
    monkeypatch: pytest.MonkeyPatch, *readings: Reading, pids: frozenset[int] = frozenset()
) -> tuple[DeviceHandle, list[Health]]:
    """A GPU of which these readings were taken, and what was thought of it."""
    left = list(readings)

    monkeypatch.setattr(handles, "read_gpu", lambda _: left.pop(0))
    made = DeviceHandles(lambda _: None)
    made.add([B])
    for _ in readings[1:]:
        made[0].start_reading()
        assert made[0].pending is not None
        made[0].pending.result()
        made.poll(lambda: {0: pids})
    return made[0], [report.health for _, report, _ in made.changed if report]


@pytest.mark.parametrize(
    ("reading", "health", "alone"),
    [
        (seen(FULL, ours(4 * GIB)), BUSY, False),
        (seen(FULL, ours(FULL)), GOOD, True),
        (seen(FULL, ours(FULL, pid=40404)), GOOD, False),
        (seen(FULL, ours(None)), GOOD, False),
        (Reading(255), BLIND, False),
    ],
    ids=["holds little", "holds all", "the host's pids", "memory not known", "no answer"],
)
def test_our_own_worker(
    monkeypatch: pytest.MonkeyPatch, reading: Reading, health: Health, alone: bool
) -> None:
    """What our own worker holds is not held against it, and it is alone only if nothing else can be
    there.
    """
    handle, found = station_after(monkeypatch, seen(), reading, pids=frozenset({11}))
    assert (found, handle.only_ours) == ([GOOD, health], alone)


LARGER = oom("0.50 GiB", "8.00 GiB", "0.10 GiB", "7.90 GiB")
BY_A_NEIGHBOR = oom("0.50 GiB", "8.00 GiB", "0.10 GiB", "1.00 GiB", "6.90 GiB")
NO_FIGURES = "NVML_SUCCESS == INTERNAL ASSERT FAILED"
COMPANY: dict[str, tuple[str, list[Reading], set[int], OtherProcesses]] = {
    "a model larger than the GPU": (LARGER, [seen()], set(), OtherProcesses.UNKNOWN),
    "a neighbor came": (BY_A_NEIGHBOR, [seen()], set(), OtherProcesses.NEW),
    "a neighbor was there before": (BY_A_NEIGHBOR, [seen(7 * GIB)], set(), OtherProcesses.UNKNOWN),
    "a neighbor holds less than what is missing": (
        oom("4.00 GiB", "8.00 GiB", "1.00 GiB", "5.00 GiB", "2.00 GiB"),
        [seen()],
        set(),
        OtherProcesses.UNKNOWN,
    ),
    "another worker of ours": (BY_A_NEIGHBOR, [seen()], {77}, OtherProcesses.SIBLING),
    "no figures, and only ours on it": (NO_FIGURES, [seen(), seen()], set(), OtherProcesses.NONE),
    "no figures, and no look since the first": (
        NO_FIGURES,
        [seen()],
        set(),
        OtherProcesses.UNKNOWN,
    ),
}


@pytest.mark.parametrize(
    ("words", "readings", "siblings", "company"), COMPANY.values(), ids=COMPANY
)
def test_whose_memory_it_was(
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    readings: list[Reading],
    siblings: set[int],
    company: OtherProcesses,
) -> None:
    """Torch's figures show it, else the last look; who was there before the run is part of the GPU."""
    handle, _ = station_after(monkeypatch, *readings)
    assert handle.other_processes(read_oom(words), frozenset(siblings)) is company
    handle.accept_others(7 * GIB)
    assert handle.other_processes(read_oom(words), frozenset(siblings)) is not OtherProcesses.NEW


# --- dtypes

TURING, AMPERE, HOPPER = (
    Device("cuda", name=name, capability=capability)
    for name, capability in (("Quadro RTX 8000", (7, 5)), ("A100", (8, 0)), ("H100", (9, 0)))
)
QWEN = "in float16 its vectors may become NaN"
DTYPES: list[tuple[str | None, str | None, Device, str, list[str]]] = [
    # what a model computes in, its kind, the card -> the dtype to take, what is wrong with its own
    ("bfloat16", "qwen2", TURING, "float32", ["compute capability 7.5) does not have", QWEN]),
    (
        "float16",
        "qwen2",
        TURING,
        "float32",
        ["kind qwen2 overflow to NaN", "set model.dtype to float32"],
    ),
    ("float32", None, TURING, "float32", []),
    ("bfloat16", "bert", TURING, "float16", ["set model.dtype to float16"]),
    ("float32", "bert", TURING, "float16", []),
    ("bfloat16", "qwen2", AMPERE, "bfloat16", []),
    ("float32", "qwen2", AMPERE, "bfloat16", []),
    (
        "float16",
        "gemma2",
        HOPPER,
        "bfloat16",
        ["kind gemma2 overflow to NaN", "set model.dtype to bfloat16"],
    ),
    (None, "bert", HOPPER, "bfloat16", []),
]


@pytest.mark.parametrize(("dtype", "model_type", "card", "advised", "unfit"), DTYPES)
def test_the_dtype_to_take(
    dtype: str | None, model_type: str | None, card: Device, advised: str, unfit: list[str]
) -> None:
    """Before Ampere float32 for the families that overflow, and float16 for the others; no remedy
    names bfloat16.
    """
    assert advised_dtype(model_type, card) == advised
    found = unfit_dtype(dtype, model_type, card)
    assert (found is None) is (not unfit)
    assert all(each in "; ".join(found or ()) for each in unfit), found
    assert card is not TURING or not re.search(r"model\.dtype (to )?bfloat16", str(found))


def test_words_that_do_not_know_the_card_name_no_half_precision() -> None:
    """A rule, an entry of the handbook or a last remedy is read on any card."""
    words = [word for rule in RULES for word in (rule.remedy, rule.if_ended)]
    words += [entry.do for entry in words_of.ENTRIES.values()]
    assert not [word for word in words if re.search(r"b?float16", word)]


def test_the_weakest_gpu_decides() -> None:
    """One config has one dtype for all its GPUs."""
    older = replace(B, uuid="GPU-c", name="T4", capability=(7, 5))
    assert weakest([A, older, replace(B, capability=None)]) == older
    assert weakest([CPU, Device("cuda", name="the Ray cluster")]) is None
