"""Whether a GPU may be given to the next worker, as a table of what nvidia-smi and the kernel's log say."""

import pytest

from chunkvisor.devices.health import (
    Demand,
    Health,
    Holder,
    Reading,
    is_alone,
    judge_gpu,
    parse_holders,
    parse_memory,
    parse_recovery_action,
    parse_xids,
)

GIB = 1 << 30
BASE = 3 << 20
STRANGER = Holder(77, "/usr/bin/python3", 20 * GIB)
OURS = Holder(11, "python", 4 * GIB)


def good(used_bytes: int | None = BASE, **more: object) -> Reading:
    """A reading of an nvidia-smi that works."""
    return Reading(0, used_bytes, **more)  # type: ignore[arg-type]  # keywords of every type


TOTAL = 80 * GIB
ROOMY = Demand(need_bytes=3 * GIB, total_bytes=TOTAL, unnamed_bytes=BASE)
UNKNOWN = Demand(total_bytes=TOTAL, unnamed_bytes=BASE)
JUST_ENDED = Demand(need_bytes=3 * GIB, total_bytes=TOTAL, unnamed_bytes=BASE, settling=True)


def stranger(gib: int) -> Holder:
    """A process that is none of ours."""
    return Holder(77, "/usr/bin/python3", gib * GIB)


TABLE: dict[str, tuple[Reading, Demand, set[int], Health, str]] = {
    "empty": (good(), ROOMY, set(), Health.GOOD, ""),
    "held by a stranger, with room for a worker": (
        good(60 * GIB, holders=(stranger(60),)),
        ROOMY,
        set(),
        Health.GOOD,
        "",
    ),
    "held by a stranger, without": (
        good(78 * GIB, holders=(stranger(78),)),
        ROOMY,
        set(),
        Health.BUSY,
        "78.0 GiB of the GPU's memory are held by /usr/bin/python3 (pid 77); 2.0 GiB are free, and a worker needs 3.0",
    ),
    "what a worker needs is not known": (good(78 * GIB, holders=(stranger(78),)), UNKNOWN, set(), Health.GOOD, ""),
    "it is not known, but that is too little": (
        good(TOTAL - BASE, holders=(stranger(79),)),
        UNKNOWN,
        set(),
        Health.BUSY,
        "held by /usr/bin/python3 (pid 77); 0.0 GiB are free",
    ),
    "the size of the GPU is not known": (good(78 * GIB, holders=(stranger(78),)), Demand(), set(), Health.GOOD, ""),
    "held by many": (
        good(79 * GIB, holders=tuple(Holder(pid, "p", None) for pid in range(100, 120))),
        ROOMY,
        set(),
        Health.BUSY,
        "held by p (pid 100), p (pid 101), p (pid 102)",
    ),
    "held, in a container that names nobody": (
        good(78 * GIB),
        ROOMY,
        set(),
        Health.BUSY,
        "a process that cannot be named",
    ),
    "a model larger than an empty GPU": (
        good(),
        Demand(need_bytes=90 * GIB, total_bytes=TOTAL),
        set(),
        Health.GOOD,
        "",
    ),
    "a dead worker's memory": (good(20 * GIB), JUST_ENDED, set(), Health.SETTLING, "not given back yet"),
    "a dead worker's memory, long after": (good(20 * GIB), ROOMY, set(), Health.GOOD, ""),
    "a stranger came while a worker ended": (
        good(20 * GIB, holders=(stranger(20),)),
        JUST_ENDED,
        set(),
        Health.GOOD,
        "",
    ),
    "our own worker computes": (good(78 * GIB, holders=(OURS,)), ROOMY, {11}, Health.BUSY, "cannot be named"),
    "our own worker has it all": (
        good(78 * GIB, holders=(Holder(11, "python", 78 * GIB),)),
        ROOMY,
        {11},
        Health.GOOD,
        "",
    ),
    "our own worker, in a container that names nobody": (good(78 * GIB), ROOMY, {11}, Health.GOOD, ""),
    "our own worker, in a container that names the host's pids": (
        good(78 * GIB, holders=(Holder(40404, "python", 78 * GIB),)),
        ROOMY,
        {11},
        Health.GOOD,
        "",
    ),
    "our own worker, whose memory is not told": (
        good(78 * GIB, holders=(Holder(11, "python", None),)),
        ROOMY,
        {11},
        Health.GOOD,
        "",
    ),
    "off the bus": (Reading(15), ROOMY, set(), Health.BROKEN, "fallen off the bus"),
    **{
        f"Xid {xid}": (good(xids=(13, xid, xid)), ROOMY, set(), Health.BROKEN, f"Xid {xid} of this GPU: {mend}")
        for xid, mend in ((48, "have the GPU reset"), (95, "have the GPU reset"), (79, "reboot"), (151, "reboot"))
    },
    "several Xids": (good(xids=(119, 48)), ROOMY, set(), Health.BROKEN, "Xid 48, 119 of"),
    **{
        f"Xid {xid}, an application's": (good(xids=(xid,)), ROOMY, set(), Health.GOOD, "")
        for xid in (13, 31, 43, 45, 63)
    },
    **{
        f"recovery action {action}": (good(recovery_action=action), ROOMY, set(), Health.BROKEN, action.strip())
        for action in (
            *("Reset", "GPU Reset Required", " GPU Reset "),
            *("Reboot", "Node Reboot Required", "Drain and Reset"),
        )
    },
    **{
        f"recovery action {action}": (good(recovery_action=action), ROOMY, set(), Health.GOOD, "")
        for action in (
            *("None", "none", "N/A", "[N/A]", "", None, "Unknown Error", "[Unknown Error]", "[Not Supported]"),
            *("[Insufficient Permissions]", "Drain P2P", "something that a later driver says"),
        )
    },
    "driver/library mismatch": (Reading(18), ROOMY, set(), Health.BLIND, "exit code 18"),
    "unknown NVML error": (Reading(255), ROOMY, set(), Health.BLIND, "exit code 255"),
    "no answer in time": (Reading(None), ROOMY, set(), Health.BLIND, "None"),
    "memory not told": (good(None), ROOMY, set(), Health.BLIND, ""),
    "blind, but the kernel has seen it": (Reading(255, xids=(79,)), ROOMY, set(), Health.BROKEN, "Xid 79"),
}


@pytest.mark.parametrize(("reading", "demand", "ours", "health", "words"), TABLE.values(), ids=list(TABLE))
def test_opinion(reading: Reading, demand: Demand, ours: set[int], health: Health, words: str) -> None:
    """Broken beats blind, blind beats busy; a GPU is busy where a worker does not fit beside what others hold."""
    opinion = judge_gpu(reading, demand, frozenset(ours))
    assert opinion.health is health, opinion
    assert words in opinion.why
    assert bool(opinion.why) == (health is not Health.GOOD)


ALONE = {
    "empty": (good(), set(), True),
    "a stranger": (good(2 * GIB, holders=(stranger(2),)), set(), False),
    "our own worker": (good(4 * GIB, holders=(OURS,)), {11}, True),
    "nobody is named, but it is in use": (good(2 * GIB), set(), False),
    "no answer": (Reading(255), set(), False),
}


@pytest.mark.parametrize(("reading", "ours", "alone"), ALONE.values(), ids=ALONE)
def test_who_is_alone(reading: Reading, ours: set[int], alone: bool) -> None:
    """Only where nvidia-smi tells of nobody else, and of no memory that it cannot account for."""
    assert is_alone(reading, frozenset(ours)) is alone


@pytest.mark.parametrize(
    ("text", "used_bytes"),
    [
        ("3\n", 3 << 20),
        (" 143771 \n", 143771 << 20),
        ("WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n17\n", 17 << 20),
        ("[N/A]\n", None),
        ("No devices were found\n", None),
        ("", None),
        ("\ufffd\ufffd", None),
    ],
)
def test_memory(text: str, used_bytes: int | None) -> None:
    """MiB, on a line of its own among whatever else is said."""
    assert parse_memory(text) == used_bytes


@pytest.mark.parametrize(
    ("text", "holders"),
    [
        ("", ()),
        ("77, /usr/bin/python3, 20480\n", (STRANGER,)),
        ("77, /opt/a, b/python, 20480\n", (Holder(77, "/opt/a,b/python", 20 * GIB),)),
        ("77, [Not Found], [N/A]\n", (Holder(77, "[Not Found]", None),)),
        ("[N/A], python, 5\n77, /usr/bin/python3, 20480\n", (STRANGER,)),
        ("No running processes found\n", ()),
        ("\u00b2, x, 5\n", ()),
    ],
    ids=["nobody", "one", "comma", "container", "no pid", "words", "no digit"],
)
def test_holders(text: str, holders: tuple[Holder, ...]) -> None:
    """One line a process; lines that are none are skipped, names that cannot be told do no harm."""
    assert parse_holders(text) == holders


@pytest.mark.parametrize(
    ("xml", "action"),
    [
        ("<gpu><gpu_recovery_action>None</gpu_recovery_action></gpu>", "None"),
        ("<gpu_recovery_action> Drain and Reset </gpu_recovery_action>", "Drain and Reset"),
        ("<gpu_recovery_action></gpu_recovery_action>", ""),
        ("<nvidia_smi_log></nvidia_smi_log>", None),
        ("", None),
        ("<gpu_recovery_action>" + "x" * 1000 + "</gpu_recovery_action>", None),
    ],
)
def test_recovery_action(xml: str, action: str | None) -> None:
    """The driver's own advice, where it gives one."""
    assert parse_recovery_action(xml) == action


LOG = [
    "4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "4,1235,5678902,-;NVRM: Xid (PCI:0000:5e:00): 48, pid=77, name=python, DBE (double bit error) has occurred",
    "4,1236,5678903,-;NVRM: Xid (PCI:0000:3B:00): 45, pid=78, name=python, Ch 00000008",
    "4,1237,5678904,-;NVRM: Xid (PCI:0000:3b:00.0): 13, pid=79, Graphics Exception",
    "6,1238,5678905,-;usb 1-1: new device, no Xid (PCI:0000:3b:00): 79 of ours",
    "4,1239,5678906,-;NVRM: Xid (PCI:0001:3b:00): 94, another domain",
]


@pytest.mark.parametrize(
    ("bus_id", "xids"),
    [
        ("00000000:3B:00.0", (79, 45, 13)),
        ("00000000:5E:00.0", (48,)),
        ("00000000:AF:00.0", ()),
        ("00000001:3B:00.0", (94,)),
        ("", ()),
        ("[N/A]", ()),
    ],
)
def test_xids(bus_id: str, xids: tuple[int, ...]) -> None:
    """Only those of the GPU at that address; the log and nvidia-smi write it differently."""
    assert parse_xids(LOG, bus_id) == xids
