"""Whether a GPU may be given to the next worker, as a table of what nvidia-smi and the kernel's log say."""

from typing import Any

import pytest

from chunkvisor.devices.health import Health, MemoryHolder, Reading, judge_gpu, parse_gpu, parse_holders, parse_xids

GIB = 1 << 30
BASE = 3 << 20
TOTAL = 80 * GIB
STRANGER = MemoryHolder(77, "/usr/bin/python3", 78 * GIB)
FULL = 78 * GIB
ROOMY: dict[str, Any] = {"total_bytes": TOTAL, "need_bytes": 3 * GIB}
UNKNOWN = {"total_bytes": TOTAL}
JUST_ENDED = {**ROOMY, "before_bytes": BASE}
GOOD, BUSY, BROKEN, BLIND = Health.GOOD, Health.BUSY, Health.BROKEN, Health.BLIND


def seen(used_bytes: int | None = BASE, *holders: MemoryHolder, **more: Any) -> Reading:
    """Make a reading of an nvidia-smi that works."""
    return Reading(0, used_bytes, holders=holders, **more)


def ours(used_bytes: int | None, pid: int = 11) -> MemoryHolder:
    """Make one of our own workers."""
    return MemoryHolder(pid, "python", used_bytes)


TABLE: dict[str, tuple[Reading, dict[str, Any], Health, str]] = {
    "empty": (seen(), ROOMY, GOOD, ""),
    "held, with room for a worker": (seen(60 * GIB, MemoryHolder(77, "p", 60 * GIB)), ROOMY, GOOD, ""),
    "held, without": (
        seen(FULL, STRANGER),
        ROOMY,
        BUSY,
        "78.0 GiB of the GPU's memory are held by /usr/bin/python3 (pid 77); 2.0 GiB are free, and a worker needs 3.0",
    ),
    "what a worker needs is not known": (seen(FULL, STRANGER), UNKNOWN, GOOD, ""),
    "not known, but that is too little": (seen(TOTAL - BASE, STRANGER), UNKNOWN, BUSY, "(pid 77); 0.0 GiB are free"),
    "the size of the GPU is not known": (seen(FULL, STRANGER), {}, GOOD, ""),
    "a container names no process": (seen(FULL), ROOMY, BUSY, "a process that cannot be named"),
    "a model larger than an empty GPU": (seen(), {"total_bytes": TOTAL, "need_bytes": 90 * GIB}, GOOD, ""),
    "a dead worker's memory": (seen(20 * GIB), JUST_ENDED, Health.SETTLING, "not given back yet"),
    "a stranger came meanwhile": (seen(20 * GIB, MemoryHolder(77, "p", 20 * GIB)), JUST_ENDED, GOOD, ""),
    "off the bus": (Reading(15), ROOMY, BROKEN, "fallen off the bus"),
    "several Xids": (seen(xids=(119, 13, 48)), ROOMY, BROKEN, "Xid 48, 119 of this GPU: have the GPU reset"),
    "Xid 79": (seen(xids=(79,)), ROOMY, BROKEN, "Xid 79 of this GPU: reboot"),
    "Xids of applications": (seen(xids=(13, 31, 43, 45, 63)), ROOMY, GOOD, ""),
    "blind, but the kernel has seen it": (Reading(255, xids=(79,)), ROOMY, BROKEN, "Xid 79"),
    "driver/library mismatch": (Reading(18), ROOMY, BLIND, "exit code 18"),
    "no answer in time": (Reading(None), ROOMY, BLIND, "None"),
    "memory not told": (seen(None), ROOMY, BLIND, ""),
}


@pytest.mark.parametrize(("reading", "known", "health", "words"), TABLE.values(), ids=TABLE)
def test_opinion(reading: Reading, known: dict[str, Any], health: Health, words: str) -> None:
    """Broken beats blind, blind beats busy; a GPU is busy if a worker does not fit next to what others hold."""
    opinion = judge_gpu(reading, **known)
    assert opinion.health is health, opinion
    assert words in opinion.why
    assert bool(opinion.why) == (health is not GOOD)


@pytest.mark.parametrize(
    ("reading", "health", "alone"),
    [
        (seen(FULL, ours(4 * GIB)), BUSY, False),
        (seen(FULL, ours(FULL)), GOOD, True),
        (seen(FULL), GOOD, False),
        (seen(FULL, ours(FULL, pid=40404)), GOOD, False),
        (seen(FULL, ours(None)), GOOD, False),
        (seen(), GOOD, True),
        (Reading(255), BLIND, False),
    ],
    ids=["holds little", "holds all", "not named", "the host's pids", "memory not told", "idle", "no answer"],
)
def test_our_own_worker(reading: Reading, health: Health, alone: bool) -> None:
    """What our own worker holds is not held against it, and it is alone only if nothing else can be there."""
    assert judge_gpu(reading, frozenset({11}), **ROOMY).health is health
    assert reading.is_alone(frozenset({11})) is alone


@pytest.mark.parametrize(
    ("action", "health"),
    [
        *(
            (action, BROKEN)
            for action in ("Reset", "GPU Reset Required", "GPU Reset", "Reboot", "Node Reboot Required")
        ),
        *((action, BROKEN) for action in ("Drain and Reset", "GPU Drain and Reset")),
        *((action, GOOD) for action in ("None", "[N/A]", "", None, "[Unknown Error]", "Drain P2P", "a later word")),
    ],
)
def test_recovery_action(action: str | None, health: Health) -> None:
    """A GPU that the driver wants reset is broken; words that say nothing of that do no harm."""
    assert judge_gpu(seen(recovery_action=action), **ROOMY).health is health


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3\n", (3 << 20, None)),
        (" 143771, None\n", (143771 << 20, "None")),
        ("WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n17, GPU Reset\n", (17 << 20, "GPU Reset")),
        ("[N/A], Reboot\n", (None, "Reboot")),
        ("No devices were found\n", (None, None)),
        ("\ufffd\ufffd", (None, None)),
    ],
)
def test_memory_and_recovery_action_are_parsed(text: str, found: tuple[int | None, str | None]) -> None:
    """Each is read from a line among whatever else is said; an older driver gives no action."""
    assert parse_gpu(text) == found


@pytest.mark.parametrize(
    ("text", "holders"),
    [
        ("77, /usr/bin/python3, 79872\n", (STRANGER,)),
        ("77, /opt/a, b/python, 79872\n", (MemoryHolder(77, "/opt/a,b/python", 78 * GIB),)),
        ("77, [Not Found], [N/A]\n", (MemoryHolder(77, "[Not Found]", None),)),
        ("[N/A], python, 5\n77, /usr/bin/python3, 79872\n", (STRANGER,)),
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
