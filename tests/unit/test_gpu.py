"""GPUs as nvidia-smi tells of them, and whether one may be given to the next worker."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.devices import gpu, stations
from chunkvisor.devices.gpu import CPU, Device, find_devices, parse_devices, select_visible
from chunkvisor.devices.stations import (
    Health,
    MemoryHolder,
    Reading,
    Site,
    Station,
    View,
    company_of,
    in_company,
    judge_gpu,
    parse_gpu,
    parse_holders,
    parse_xids,
)
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import Event, Warned
from chunkvisor.judge import Company, Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.taxonomy import read_oom

LISTING = (
    "0, GPU-aaaa1111-0000-0000-0000-000000000000, NVIDIA H200, 143771, 00000000:3B:00.0\n"
    "1, GPU-bbbb2222-0000-0000-0000-000000000000, NVIDIA A100-SXM4-80GB, 81920, 00000000:5E:00.0\n"
)
A, B = parse_devices(LISTING)
MIG = Device("cuda", "MIG-cccc", "MIG slice")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("No devices were found\n", 0),
        ("0, GPU-a, NVIDIA GB10, [N/A], 0000000F:01:00.0\n", 1),
        ("0, [N/A], NVIDIA X, 1, 00000000:01:00.0\n" + LISTING, 2),
        ("WARNING: infoROM is corrupted at gpu 0000:01:00.0\n" + LISTING, 2),
        ("\ufffd,,,,\n", 0),
    ],
    ids=["none", "no memory", "no UUID", "warning", "nonsense"],
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


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a machine: what its nvidia-smi says, if it has one, and its device files."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "_DEV", tmp_path / "dev")
    (tmp_path / "dev").mkdir()
    smi = tmp_path / "nvidia-smi"

    def make(output: str | None, code: int = 0, *files: str) -> None:
        if output is not None:
            lines = "".join(f'echo "{line}"\n' for line in output.splitlines())
            smi.write_text(f"#!/bin/sh\n{lines}exit {code}\n")
            smi.chmod(0o700)
        for name in files:
            (tmp_path / "dev" / name).touch()

    return make


def environment(visible: str | None) -> dict[str, str]:
    """One with or without CUDA_VISIBLE_DEVICES."""
    return {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}


@pytest.mark.parametrize(
    ("wanted", "visible", "devices"),
    [
        (["cpu"], None, (CPU,)),
        (["cuda"], None, (A, B)),
        (["cuda:1", "cuda:0", "cuda:1"], None, (A, B)),
        (["cuda"], "1,0", (B, A)),
        (["cuda:1"], "1,0", (A,)),
        (["cuda"], "MIG-cccc", (MIG,)),
        (["cuda:0", "cuda:2"], None, "2 visible GPUs, and cuda:2 asks for number 2"),
        (["cuda:1"], "1", "1 visible GPU,"),
        (["cuda"], "", "0 visible GPUs"),
    ],
)
def test_devices_are_found(
    machine: Callable[..., None], wanted: list[str], visible: str | None, devices: tuple[Device, ...] | str
) -> None:
    """`cuda` is every visible GPU, `cuda:N` the N-th, each once; what is not there is refused, and never the CPU."""
    machine(LISTING)
    if not isinstance(devices, str):
        assert find_devices(wanted, environment(visible)) == devices
        return
    with pytest.raises(Halt) as caught:
        find_devices(wanted, environment(visible))
    assert caught.value.code is ExitCode.MACHINE
    assert devices in caught.value.why


@pytest.mark.parametrize(
    ("output", "code", "wanted", "words"),
    [
        ("GPU is lost.", 15, "cuda", "fallen off the bus"),
        (LISTING, 15, "cuda:0", "fallen off the bus"),
        ("NVIDIA-SMI has failed because", 9, "cuda", "nvidia-smi says: NVIDIA-SMI has failed because"),
        (None, 0, "cuda", "nvidia-smi is not there"),
    ],
)
def test_no_gpu_at_all(machine: Callable[..., None], output: str | None, code: int, wanted: str, words: str) -> None:
    """Without a GPU in nvidia-smi's list and without a device file the run ends with 69, and says what to do."""
    machine(output, code)
    with pytest.raises(Halt) as caught:
        find_devices([wanted], {})
    assert caught.value.code is ExitCode.MACHINE
    assert words in caught.value.why
    assert caught.value.remedy


def test_the_others_go_on_without_a_gpu_that_is_lost(machine: Callable[..., None]) -> None:
    """`device: cuda` takes those that nvidia-smi still lists, and the loss is told."""
    told: list[str] = []
    machine(f"GPU is lost\n{LISTING}", 15)
    assert find_devices(["cuda"], {}, told.append) == (A, B)
    assert told == ["GPU is lost"]


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
    machine: Callable[..., None], files: tuple[str, ...], wanted: str, visible: str | None, names: str
) -> None:
    """CUDA may work where nvidia-smi fails: a GPU is taken by its number or by its name."""
    machine("Failed to initialize NVML: Unknown Error", 255, *files)
    found = find_devices([wanted], environment(visible))
    assert found == tuple(Device("cuda", name) for name in names.split())
    assert [device.guessed for device in found] == [name.isdecimal() for name in names.split()]


def test_the_compute_capability_is_that_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for; a driver that does not know the field is asked without it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    smi = tmp_path / "nvidia-smi"
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


# --- health

GIB = 1 << 30
BASE = 3 << 20
TOTAL = 80 * GIB
GOOD, BUSY, BROKEN, BLIND = Health.GOOD, Health.BUSY, Health.BROKEN, Health.BLIND


def seen(used_bytes: int | None = BASE, *holders: MemoryHolder, **more: Any) -> Reading:
    """Make a reading of an nvidia-smi that works."""
    return Reading(0, used_bytes, holders=holders, **more)


def ours(used_bytes: int | None, pid: int = 11) -> MemoryHolder:
    """Make one of our own workers."""
    return MemoryHolder(pid, "python", used_bytes)


FULL = TOTAL - BASE
STRANGER = MemoryHolder(77, "/usr/bin/python3", FULL)
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
    "several Xids": (seen(xids=(119, 13, 48)), BROKEN, "Xid 48, 119 of this GPU: have the GPU reset"),
    "Xid 79": (seen(xids=(79,)), BROKEN, "Xid 79 of this GPU: reboot"),
    "Xids of applications": (seen(xids=(13, 43, 45)), GOOD, ""),
    "blind, but the kernel has seen it": (Reading(255, xids=(79,)), BROKEN, "Xid 79"),
    "driver/library mismatch": (Reading(18), BLIND, "exit code 18"),
    "no answer in time": (Reading(None), BLIND, "None"),
    "memory not told": (seen(None), BLIND, ""),
}


@pytest.mark.parametrize(("reading", "health", "words"), TABLE.values(), ids=TABLE)
def test_opinion(reading: Reading, health: Health, words: str) -> None:
    """Broken beats blind, blind beats busy; a GPU is busy if what others hold leaves hardly anything."""
    opinion = judge_gpu(reading, total_bytes=TOTAL)
    assert opinion.health is health, opinion
    assert words in opinion.why
    assert bool(opinion.why) == (health is not GOOD)
    assert judge_gpu(seen(FULL, STRANGER)).health is GOOD, "its size is not known"


@pytest.mark.parametrize(
    ("reading", "health", "alone"),
    [
        (seen(FULL, ours(4 * GIB)), BUSY, False),
        (seen(FULL, ours(FULL)), GOOD, True),
        (seen(FULL, ours(FULL, pid=40404)), GOOD, False),
        (seen(FULL, ours(None)), GOOD, False),
        (seen(), GOOD, True),
        (Reading(255), BLIND, False),
    ],
    ids=["holds little", "holds all", "the host's pids", "memory not told", "idle", "no answer"],
)
def test_our_own_worker(reading: Reading, health: Health, alone: bool) -> None:
    """What our own worker holds is not held against it, and it is alone only if nothing else can be there."""
    assert judge_gpu(reading, frozenset({11}), TOTAL).health is health
    assert reading.is_alone(frozenset({11})) is alone


@pytest.mark.parametrize(
    ("action", "health"),
    [
        *((action, BROKEN) for action in ("Reset", "GPU Reset Required", "Node Reboot Required", "Drain and Reset")),
        *((action, GOOD) for action in ("None", "[N/A]", "", None, "Drain P2P", "a later word")),
    ],
)
def test_recovery_action(action: str | None, health: Health) -> None:
    """A GPU that the driver wants reset is broken; words that say nothing of that do no harm."""
    assert judge_gpu(seen(recovery_action=action)).health is health


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3\n", (3 << 20, None)),
        ("WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n17, GPU Reset\n", (17 << 20, "GPU Reset")),
        ("[N/A], Reboot\n", (None, "Reboot")),
        ("No devices were found\n", (None, None)),
    ],
)
def test_memory_and_recovery_action_are_parsed(text: str, found: tuple[int | None, str | None]) -> None:
    """Each is read from a line among whatever else is said; an older driver gives no action."""
    assert parse_gpu(text) == found


@pytest.mark.parametrize(
    ("text", "holders"),
    [
        ("77, /opt/a, b/python, 79872\n", (MemoryHolder(77, "/opt/a,b/python", 78 * GIB),)),
        ("77, [Not Found], [N/A]\n", (MemoryHolder(77, "[Not Found]", None),)),
        ("[N/A], python, 5\n77, p, 79872\n", (MemoryHolder(77, "p", 78 * GIB),)),
        ("No running processes found\n", ()),
    ],
)
def test_holders_are_parsed(text: str, holders: tuple[MemoryHolder, ...]) -> None:
    """A line is a process; other lines are skipped, names that cannot be told do no harm."""
    assert parse_holders(text) == holders


LOG = [
    "4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "4,1235,5678902,-;NVRM: Xid (PCI:0000:5e:00): 48, pid=77, name=python, DBE (double bit error) has occurred",
    "4,1237,5678904,-;NVRM: Xid (PCI:0000:3B:00.0): 13, pid=79, Graphics Exception",
    "6,1238,5678905,-;usb 1-1: new device, no Xid (PCI:0000:3b:00): 79 of ours",
    "4,1239,5678906,-;NVRM: Xid (PCI:0001:3b:00): 94, another domain",
]


@pytest.mark.parametrize(
    ("bus_id", "xids"),
    [("00000000:3B:00.0", (79, 13)), ("00000000:5E:00.0", (48,)), ("00000001:3B:00.0", (94,)), ("[N/A]", ())],
)
def test_xids_are_those_of_the_gpu(bus_id: str, xids: tuple[int, ...]) -> None:
    """The log and nvidia-smi write the address differently."""
    assert parse_xids(LOG, bus_id) == xids


# --- a station


@pytest.mark.parametrize(
    ("device", "node"), [(CPU, ""), (Device("cuda", "0"), ""), (MIG, ""), (A, "a node of a cluster")], ids=str
)
def test_what_nvidia_smi_does_not_know_is_always_fit(device: Device, node: str) -> None:
    """The CPU, a GPU known by its index alone, a MIG slice and another machine's GPU are not asked for."""
    station = Station(0, device, Site(node))
    station.ask()
    assert station.answer(frozenset(), print, first=True) is None
    assert station.view == (View() if device.kind == "cuda" else None)


def test_a_gpu_that_others_fill_is_busy_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is looked at while that lasts; those who stay count as there from the start."""
    readings = [seen(), *[seen(FULL, STRANGER)] * 2]

    def look() -> Future[Reading]:
        done: Future[Reading] = Future()
        done.set_result(readings.pop(0))
        return done

    monkeypatch.setattr(stations, "looks_at", lambda _device: look)
    told: list[Event] = []
    station = Station(0, B)
    assert station.answer(frozenset(), told.append) is None  # no look is under way
    for number in range(3):
        station.ask()
        opinion = station.answer(frozenset(), told.append, first=not number)
        assert opinion is not None
        assert opinion.health is (BUSY if number else GOOD)
    assert [type(event) for event in told] == [Warned]
    for held_bytes in (5 * GIB, 1 * GIB):
        station.get_used_to(held_bytes)
        assert station.view == View(alone=False, before_bytes=5 * GIB)


# --- whose memory it was


def figures(ours_gib: float, others_gib: float = 0.0, free_gib: float = 0.1, wanted_gib: float = 0.5) -> str:
    """What torch says on a GPU of 8 GiB."""
    others = f"Process 77 has {others_gib:.2f} GiB memory in use. " if others_gib else ""
    return (
        f"CUDA out of memory. Tried to allocate {wanted_gib:.2f} GiB. GPU 0 has a total capacity of 8.00 GiB of which "
        f"{free_gib:.2f} GiB is free. {others}Including non-PyTorch memory, this process has {ours_gib:.2f} GiB memory "
        f"in use. Of the allocated memory {ours_gib / 2:.2f} GiB is allocated by PyTorch, and 0.01 GiB is reserved by "
        "PyTorch but unallocated."
    )


LARGER, BY_A_NEIGHBOR, NO_FIGURES = figures(7.9), figures(1.0, 6.9), "NVML_SUCCESS == INTERNAL ASSERT FAILED"
COMPANY = {
    "no GPU": (LARGER, None, set(), Company.UNTOLD),
    "a model larger than the GPU": (LARGER, View(), set(), Company.UNTOLD),
    "a neighbor came": (BY_A_NEIGHBOR, View(), set(), Company.CAME),
    "a neighbor was there before": (BY_A_NEIGHBOR, View(before_bytes=7 * GIB), set(), Company.UNTOLD),
    "a neighbor holds less than what is missing": (figures(5.0, 2.0, 1.0, 4.0), View(), set(), Company.UNTOLD),
    "another worker of ours": (BY_A_NEIGHBOR, View(), {77}, Company.OURS),
    "no figures, and nobody else on it": (NO_FIGURES, View(alone=True), set(), Company.ALONE),
    "no figures, and nobody has looked": (NO_FIGURES, View(), set(), Company.UNTOLD),
}


@pytest.mark.parametrize(("words", "view", "siblings", "company"), COMPANY.values(), ids=COMPANY)
def test_whose_memory_it_was(words: str, view: View | None, siblings: set[int], company: Company) -> None:
    """Torch's figures say it, else what nvidia-smi showed last; who was there before the run is part of the GPU."""
    assert company_of(read_oom(words), view, frozenset(siblings)) is company


def test_another_worker_of_ours_is_named() -> None:
    """Where the memory was held by a worker of the same run, the words do not send a person after other processes."""
    verdict = Verdict(Outcome.GPU_BUSY, "other processes hold its memory", rule="gpu-full-before-work")
    assert "another worker of this run (pid 5, 7)" in in_company(verdict, Company.OURS, frozenset({7, 5})).reason
    assert in_company(verdict, Company.CAME, frozenset()) == verdict
