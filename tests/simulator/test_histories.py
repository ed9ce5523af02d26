"""The scheduler's rules, one history each; and the audit's findings about whole runs, each in its
own world.
"""

from typing import Any

import pytest

from chunkvisor.errors import ExitCode
from chunkvisor_worker.contract.messages import Limits

from .histories import HISTORIES
from .life import Life, simulate
from .planted import BUGS_FOR_HISTORIES
from .play import Play
from .verdicts import Failure, asked
from .world import Gpu, World


@pytest.mark.parametrize(
    ("given", "history"), [each[1:] for each in HISTORIES], ids=[each[0] for each in HISTORIES]
)
def test_history(given: dict[str, Any], history: str) -> None:
    """What happens is answered as the table says."""
    play = Play(**given)
    for happens, said in lines_of(history):
        assert ", ".join(play.line(happens)) == said, f"at: {happens}"


@pytest.mark.parametrize("bug", BUGS_FOR_HISTORIES)
def test_a_bug_put_back_fails_a_history(bug: str) -> None:
    """What was mended once is held by a history, however seldom the lives of the simulator meet it."""
    with BUGS_FOR_HISTORIES[bug].planted():
        assert not all(goes_as_told(given, history) for _, given, history in HISTORIES)


def lines_of(history: str) -> list[tuple[str, str]]:
    """(what happens, what is to be said) of each line."""
    parts = [line.partition("|") for line in history.strip().splitlines()]
    return [(happens.strip(), said.strip()) for happens, _, said in parts]


def goes_as_told(given: dict[str, Any], history: str) -> bool:
    """Whether all is answered as the table says; a bug may also make the scheduler or the player
    stumble.
    """
    try:
        play = Play(**given)
        return all(", ".join(play.line(happens)) == said for happens, said in lines_of(history))
    except Exception:  # any: with a bug in it, code may fail in any way
        return False


def world(
    *,
    bad: dict[int, Failure] | None = None,
    bad_tokens: int = 10,
    texts: int = 64,
    gpus: int = 1,
    **changes: Any,
) -> World:
    """One chunk of 64 texts per device, on sound devices; bad texts may be longer than others."""
    bad = bad or {}
    lengths = [[bad_tokens if text in bad else 10 for text in range(texts)]]
    return World(
        asked(standby=1, max_bad_rows=changes.pop("max_bad_rows", 100)),
        Limits(changes.pop("rows", 8)),
        changes.pop("chunk_size", 64),
        lengths,
        [bad],
        [
            Gpu("", "a", 10**9, **changes) if number == 0 else Gpu("", "a", 10**9)
            for number in range(gpus)
        ],
    )


def ends(world: World, *codes: ExitCode, attempts: int) -> Life:
    """Play it, without mishaps: it ends with these codes and within so many attempts."""
    life = simulate(1, world=world)
    assert tuple(life.codes) == codes
    assert life.attempts <= attempts, life.attempts
    return life


def _poisoned(count: int, failure: Failure, step: int = 1) -> dict[int, Failure]:
    return dict.fromkeys(range(0, count * step, step), failure)


@pytest.mark.parametrize(
    ("bad", "attempts"),
    [
        pytest.param(_poisoned(16, Failure.RAISES, 4), 200, id="B1 16 bad texts of 64"),
        pytest.param(_poisoned(30, Failure.SEGFAULT, 2), 300, id="B1 30 that crash"),
        pytest.param(_poisoned(30, Failure.RAISES), 200, id="B1 30 side by side"),
        pytest.param(_poisoned(40, Failure.NAN), 45, id="B4 more bad vectors than good ones"),
        pytest.param({7: Failure.DIMENSION}, 30, id="B5 a wrong dimension"),
        pytest.param({7: Failure.HANG}, 30, id="B5 a text that hangs the encoder"),
        pytest.param(_poisoned(3, Failure.NAN), 6, id="few NaN rows"),
        pytest.param({7: Failure.SEGFAULT}, 30, id="one text that crashes"),
    ],
)
def test_bad_texts_are_found_in_one_run(bad: dict[int, Failure], attempts: int) -> None:
    """However many texts of a chunk are bad, one run finds them all, and keeps the others."""
    ends(world(bad=bad, texts=128), ExitCode.QUARANTINED, attempts=attempts)


@pytest.mark.parametrize("failure", [Failure.HANG, Failure.RAISES, Failure.SEGFAULT, Failure.OOM])
@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("bad", [1, 8])
@pytest.mark.parametrize("rows", [8, 64])
def test_long_texts_that_fail_in_every_chunk_end_no_run(
    failure: Failure, gpus: int, bad: int, rows: int
) -> None:
    """The longest come first: though not one text is encoded before many have failed alone, the
    others are.
    """
    poison = {chunk * 64 + text: failure for chunk in range(16) for text in range(bad)}
    changes = {"bad_tokens": 100, "gpus": gpus, "rows": rows, "max_bad_rows": 1000}
    long = world(bad=poison, texts=16 * 64, **changes)
    ends(long, ExitCode.QUARANTINED, attempts=600)


@pytest.mark.parametrize("failure", [Failure.HANG, Failure.RAISES, Failure.SEGFAULT])
def test_long_texts_that_fail_beside_a_broken_gpu_end_no_run(failure: Failure) -> None:
    """What is broken from the beginning is left out, whatever is tried on it; the sound one does
    the rest.
    """
    poison = {chunk * 64 + text: failure for chunk in range(16) for text in range(2)}
    sick = world(
        bad=poison,
        bad_tokens=100,
        texts=1024,
        gpus=2,
        rows=64,
        fails_from_s=0.0,
        fails_as=Failure.HANG,
        max_bad_rows=1000,
    )
    ends(sick, ExitCode.QUARANTINED, attempts=300)


@pytest.mark.parametrize("failure", [Failure.HANG, Failure.SEGFAULT])
def test_a_first_chunk_that_is_all_bad_ends_no_run(failure: Failure) -> None:
    """Short texts are tried in other chunks as well."""
    poison = dict.fromkeys(
        [*range(64), *(chunk * 64 + text for chunk in range(1, 5) for text in range(8))], failure
    )
    first = world(bad=poison, bad_tokens=100, texts=16 * 64, max_bad_rows=1000)
    ends(first, ExitCode.QUARANTINED, attempts=600)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"fails_as": Failure.SEGFAULT}, id="in the first batch"),
        pytest.param({"fails_as": Failure.ILLEGAL, "watched": False}, id="unseen by NVML"),
        pytest.param(
            {"fails_as": Failure.DOES_NOT_START, "fails_at_start": True},
            id="E1 E2 before the first batch",
        ),
        pytest.param({"fails_as": Failure.GPU_LOST}, id="lost"),
    ],
)
@pytest.mark.parametrize("from_s", [0.0, 12.0])
def test_a_broken_gpu_is_left_out(broken: dict[str, Any], from_s: float) -> None:
    """E2: beside a sound one it costs a few attempts, no text and no run."""
    ends(
        world(texts=240, gpus=2, chunk_size=8, fails_from_s=from_s, **broken),
        ExitCode.COMPLETE,
        attempts=40,
    )


@pytest.mark.parametrize("texts", [1, 2, 60])
def test_a_gpu_that_never_starts_ends_the_run(texts: int) -> None:
    """E1: before the first batch no text is the cause, nothing is taken apart, and the end is 69."""
    sick = world(
        texts=texts, fails_from_s=0.0, fails_as=Failure.DOES_NOT_START, fails_at_start=True
    )
    life = ends(sick, ExitCode.MACHINE, attempts=8)
    assert not any(files.indexes for files in life.disk.files)


@pytest.mark.parametrize("devices", [1, 8, 20])
def test_out_of_memory_on_many_devices_ends_no_run(devices: int) -> None:
    """B2: each of them pays at most once for each halving of that moment."""
    sick = world(texts=4 * devices, gpus=devices, chunk_size=4, rows=32)
    for gpu in sick.gpus:
        gpu.tokens = 20
    ends(sick, ExitCode.COMPLETE, attempts=4 * devices)


def test_the_lessons_of_one_device_are_paid_for_once() -> None:
    """B3: with a prepared worker at the gate, three halvings cost three attempts."""
    sick = world(texts=400, chunk_size=50, rows=32)
    sick.gpus[0].tokens = 60
    ends(sick, ExitCode.COMPLETE, attempts=8 + 3)


@pytest.mark.parametrize(("chunks", "gpus"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_a_chunk_without_memory_is_set_aside(chunks: int, gpus: int) -> None:
    """X5: where every batch of one chunk of 1,000 lacks memory, the others are done, and few texts
    are lost.
    """
    for at in range(chunks):
        sick = world(bad=dict.fromkeys(range(at * 1000, (at + 1) * 1000), Failure.OOM), texts=chunks * 1000, gpus=gpus,
                     chunk_size=1000, rows=32)  # fmt: skip
        sick.lengths[0][:] = [10 + 7 * text % 97 for text in range(chunks * 1000)]
        life = ends(sick, ExitCode.MACHINE, attempts=40)
        (output,) = life.disk.outputs
        assert [output.ledger.committed(chunk) for chunk in range(chunks)] == [
            chunk != at for chunk in range(chunks)
        ]
        assert output.bad_count <= 5


def test_a_dozen_long_texts_are_all_that_a_chunk_loses() -> None:
    """Though eight of them fail before anything of the chunk is encoded."""
    poison = _poisoned(12, Failure.OOM, 50)
    long = world(bad=poison, bad_tokens=100, texts=2000, chunk_size=1000, rows=32)
    ends(long, ExitCode.QUARANTINED, attempts=40)


@pytest.mark.parametrize(("trouble", "from_s"), [("disk_full", 5.0), ("hub_down", 0.0)])
@pytest.mark.parametrize("devices", [1, 8])
def test_a_spell_within_wait_timeout_ends_no_run(trouble: str, from_s: float, devices: int) -> None:
    """B10: it is the wall time of the spell that counts, not the sum over workers and devices."""
    sick = world(texts=64, gpus=devices, chunk_size=4)
    setattr(sick, trouble, [(from_s, 45.0)])
    ends(sick, ExitCode.COMPLETE, attempts=300)
