"""Workers that really die, hang and lie, and what the run makes of it;
tests/encoders/misbehaving.py has them all.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import Ended, Workplace, finish, lives

ENCODER = "misbehaving:make"
TEXTS = [f"text {number}" for number in range(12)]
"""Three chunks of four."""


@dataclass(frozen=True)
class Lapse:
    """A misbehaviour of the first attempt at a chunk."""

    name: str
    """As in misbehaving.MISBEHAVIOURS, and when: NAME@MOMENT."""
    outcome: str | None
    """What the attempt counts as; None = the chunk is committed all the same."""
    words: str = ""
    """In the reason."""


def raises(name: str, on_texts: str, at_load: str, words: str = "") -> Iterator[Lapse]:
    """The same exception in four places."""
    for moment in ("encode", "second"):
        yield Lapse(f"{name}@{moment}", on_texts, words)
    for moment in ("import", "load"):
        yield Lapse(f"{name}@{moment}", at_load, words)


# What each of them comes to is in the table of tests/unit/test_outcome.py; here they happen, a few
# of every kind.
LAPSES = (
    # exceptions; once a chunk is done, a load that fails is no matter of the config any more, and
    # is tried again
    *raises("runtime_error", "crashed", "setup", "RuntimeError: something else broke"),
    Lapse("memory_error@second", "host_oom", "no memory left"),
    Lapse("system_exit_0@encode", "crashed", "SystemExit: 0"),
    Lapse("import_error@encode", "setup", "No module named 'flash_attn'"),
    Lapse("surrogate_message@encode", "crashed", "half an emoji"),
    # the GPU
    Lapse("cuda_oom@encode", "gpu_oom", "did not fit"),
    Lapse("cuda_700@second", "device_fault", "illegal memory access"),
    # the world
    Lapse("disk_full@encode", "disk_full", "No space left on device"),
    Lapse("hub_429@load", "hub", "429"),
    Lapse("no_file_may_grow@encode", "crashed", "exit code 26"),
    # death
    Lapse("segfault@import", "crashed", "Segmentation fault"),
    Lapse("abort@encode", "crashed", "Aborted"),
    Lapse("sigkill@encode", "crashed", "SIGKILL"),
    Lapse("exit_0@encode", "crashed", "exit code 0"),
    # relatives
    Lapse("child_then_die@encode", "crashed", "exit code 1"),
    Lapse("child_and_finish@encode", None),
    Lapse("leave_a_thread@encode", None),
    # a good result, then trouble: the result counts
    Lapse("exit_20_after@encode", None),
    Lapse("segfault_after@encode", None),
    # wrong vectors
    Lapse("row_missing@encode", "bad_output", "for 4 texts"),
    Lapse("float64@encode", None),
    Lapse("int8@encode", "setup", "an array of int8"),
    Lapse("nan@second", "bad_output", "NaN or infinity in 1 of 6 texts"),
    Lapse("other_dimension@second", "bad_output", "7 dimensions follow vectors of 8"),
    # lies and damage on the wire
    Lapse("half_a_file@encode", "crashed", "SIGKILL"),
    Lapse("lie_digest@encode", "bad_output", "another digest"),
    Lapse("lie_fingerprint@import", "bad_output", "left no result"),
    Lapse("lie_dimension@encode", "bad_output", "the result says 9"),
    Lapse("fault_garbage@encode", "crashed", "exit code 1"),
    Lapse("fault_huge@encode", "crashed", "exit code 1"),
    Lapse("beat_garbage@encode", None),
    # bad manners
    Lapse("endless_log_then_die@encode", "crashed", "exit code 1"),
    Lapse("close_streams@import", None),
    Lapse("close_descriptors@import", None),
    Lapse("close_descriptors@encode", None),
    Lapse("forget_the_texts@import", "crashed", "texts.jsonl"),
    Lapse("change_the_texts@import", "crashed", "not those that were written"),
    Lapse("remove_the_attempt@encode", "crashed", "exit code 26"),
)


@dataclass(frozen=True)
class Survived:
    """One run in which every lapse happens, each to a chunk of its own."""

    place: Workplace
    texts: list[str]
    ended: Ended


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Survived:
    """The run of all lapses; the first chunk has none, so that the setup is known to work."""
    place = Workplace(tmp_path_factory.mktemp("survived"))
    texts = [f"text {number}" for number in range(6 * (len(LAPSES) + 1))]
    place.write_source(texts)
    plan = {f"out/{number}": lapse.name for number, lapse in enumerate(LAPSES, start=1)}
    place.write_config(
        ENCODER,
        model__kwargs={"plan": plan},
        # One row a batch: a chunk of six takes two calls, and no out-of-memory fault can lower the
        # limits further.
        chunk__size=6,
        encode__batch_size=1,
        workers__standby=1,
        workers__per_device=2,
    )
    return Survived(place, texts, place.run())


@pytest.mark.soak
def test_lapse_costs_one_attempt_at_most(survived: Survived) -> None:
    """A chunk whose first worker misbehaves is done by the second, unless the first had a good
    result to show.
    """
    seen, wanted = {}, {}
    told = survived.place.events()
    for number, lapse in enumerate(LAPSES, start=1):
        events = [event for event in told if event.get("chunk") == number]
        failed = [event for event in events if event["event"] == "attempt_failed"]
        words = all(lapse.words in event["reason"] for event in failed) or failed
        commits = [event["event"] for event in events].count("chunk_committed")
        seen[number, lapse.name] = [event["outcome"] for event in failed], words, commits
        wanted[number, lapse.name] = [lapse.outcome] if lapse.outcome else [], True, 1
    assert seen == wanted


def test_run_with_every_lapse_is_complete(survived: Survived) -> None:
    """After all that the final file is right to the byte, the exit code is 0, and `status` has
    counted each attempt.
    """
    assert survived.ended.returncode == 0, survived.ended.stderr
    survived.place.has(survived.texts)
    wanted = Counter(lapse.outcome for lapse in LAPSES if lapse.outcome)
    status = survived.place.status()
    assert status["state"] == "complete"
    # An attempt that failed with all its batches written has done its chunk all the same.
    done = sum(event["texts"] == 6 for event in survived.place.named("batches_kept"))
    assert status["attempts"] == {**wanted, "committed": len(LAPSES) + 1 - done}
    assert "Traceback" not in survived.ended.stderr


def test_retry_after_a_device_fault_blocks_launches(survived: Survived) -> None:
    """The next worker after a broken CUDA context runs with CUDA_LAUNCH_BLOCKING=1, and no other
    does.
    """
    blocking = {
        int(path.name.rpartition("-")[2]) for path in survived.place.folder.glob("blocking-out-*")
    }
    assert blocking == {
        number for number, lapse in enumerate(LAPSES, 1) if lapse.outcome == "device_fault"
    }


def test_no_child_of_a_worker_survives_it(survived: Survived) -> None:
    """What a worker has started is gone once the worker is, whether it died or finished well."""
    pids = [int(path.read_text()) for path in survived.place.folder.glob("child-*")]
    assert len(pids) == 2
    assert not any(map(lives, pids))


@dataclass(frozen=True)
class Case:
    """A misbehaviour with which a run cannot, or not at once, be complete."""

    id: str
    plan: Mapping[str, str]
    code: int
    attempts: Mapping[str, int]
    """As `status --json` counts them."""
    words: tuple[str, ...]
    """On standard error."""
    done: tuple[int, ...] = (0, 2)
    """Chunks that are committed at the end, of three."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the config."""
    times: int | None = None
    bad_rows: tuple[int, ...] = ()
    """Rows in quarantine, where the run is finished."""


SET_ASIDE = (
    "out chunk 1",
    "everything else is done",
    "Then run the same command again",
    "worker.log",
)
QUARANTINED = ("finished, but", "no vector: ", "rows.jsonl:", "chunkvisor retry")
SETUP = ("halted at out chunk 0: setup", "do:", "worker.log")

CASES = (
    Case("cannot-load", {"out/0": "runtime_error@load"}, 78, {"setup": 1}, SETUP, done=()),
    # On one chunk after another.
    Case(
        "every-import-crashes",
        {f"out/{chunk}": "segfault@import" for chunk in range(3)},
        78,
        {"crashed": 2},
        ("before the first batch: no text",),
        done=(),
    ),
    # Two tries of the chunk; then each text twice: one by one with the others, and alone.
    Case(
        "nan-always",
        {"out/1": "nan@encode"},
        3,
        {"committed": 2, "bad_output": 2},
        (*QUARANTINED, "1 row", "out row 5", "bad_output"),
        done=(0, 1, 2),
        bad_rows=(5,),
    ),
    Case(
        "no-memory-for-the-smallest-batch",
        {"out/1": "cuda_oom@encode"},
        69,
        # Halved twice, and looked at once more; then three of its shortest texts do not fit, though
        # others do.
        {"committed": 2, "gpu_oom": 6},
        ("batches: from now on at most 1 row", "not complete: out chunk 1 failed in every try"),
        done=(0, 2),
    ),
    Case(
        "no-file-may-be-opened",
        {"out/1": "no_file_may_open@encode"},
        69,
        {"committed": 2, "host_oom": 2},
        ("halted at out chunk 1: host_oom", "ulimit -n"),
    ),
    Case(
        "every-chunk",
        {f"out/{chunk}": "change_the_texts@import" for chunk in range(3)},
        75,
        {"crashed": 6},
        ("halted at out chunk", "not those that were written"),
        done=(),
    ),
)


def prepare(place: Workplace, case: Case) -> None:
    """Three chunks of four, two tries of a chunk, no long waits."""
    place.write_source(TEXTS)
    changes = {
        "chunk__size": 4,
        "recovery__attempts": 2,
        "recovery__wait_timeout": 1,
        **case.changes,
    }
    place.write_config(
        ENCODER, model__kwargs={"plan": dict(case.plan), "times": case.times}, **changes
    )


def check_case(place: Workplace, case: Case, ended: Ended) -> None:
    """The exit code, the words, what is committed, and the count of attempts."""
    assert ended.returncode == case.code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert all(word in ended.stderr for word in case.words), ended.stderr
    status = place.status()
    committed = {event["chunk"] for event in place.named("chunk_committed")}
    # On a busy machine the last try of a chunk may come before the first try of those behind it,
    # and end the run.
    behind = set() if case.code in (0, 3) else {2} & set(case.done) - committed
    assert committed | behind == set(case.done)
    assert Counter(status["attempts"]) + Counter(committed=len(behind)) == Counter(case.attempts)
    if case.code in (0, 3):
        place.has(TEXTS, case.bad_rows)
        assert status["state"] == "complete"
        assert status["outputs"]["out"]["quarantined"] == len(case.bad_rows)
    else:
        assert status["state"] == "halted"
        assert status["outputs"]["out"]["chunks_done"] == len(committed)
        assert not place.final.exists()
        (log,) = [line for line in ended.stderr.splitlines() if line.startswith("  log: ")]
        assert Path(log.partition("log: ")[2].partition(" (")[0]).name == "worker.log", ended.stderr


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_run_that_cannot_be_completed(workplace: Workplace, case: Case) -> None:
    """A worker that fails every time ends the run with the code of its fault, and nothing that is
    done is lost.
    """
    prepare(workplace, case)
    check_case(workplace, case, workplace.run())


def test_chunk_given_up_is_done_by_the_next_run(workplace: Workplace) -> None:
    """Once the cause is mended, the same command computes what is missing, and only that."""
    case = Case(
        "", {"out/1": "change_the_texts@import"}, 75, {"committed": 2, "crashed": 2}, SET_ASIDE
    )
    prepare(workplace, case)
    check_case(workplace, case, workplace.run())
    workplace.gives(TEXTS, "--set", "env.BEHAVE=1")
    assert workplace.status()["attempts"] == {"committed": 3, "crashed": 2}


OUT_OF_MEMORY = (
    "cuda_oom",
    "cuda_oom_old_name",
    "cuda_oom_runtime_error",
    "nvml_assert",
    "cublas_alloc",
    "resource_exhausted",
)


def test_batches_halve_until_they_fit(workplace: Workplace) -> None:
    """Every spelling of GPU out-of-memory halves the batches of the output, and the vectors are
    right.
    """
    texts = [f"text {number}" for number in range(128 * len(OUT_OF_MEMORY))]
    workplace.write_source(texts)
    plan = {f"out/{chunk}": f"{name}@encode" for chunk, name in enumerate(OUT_OF_MEMORY)}
    # Each chunk needs batches half as large as the chunk before.
    fits = {f"out/{chunk}": 64 >> chunk for chunk in range(len(OUT_OF_MEMORY))}
    kwargs = {"plan": plan, "times": None, "fits": fits}
    workplace.write_config(ENCODER, model__kwargs=kwargs, encode__batch_size=128, chunk__size=128)
    workplace.ends(0)
    lowered = [event["rows"] for event in workplace.events() if event["event"] == "limits_lowered"]
    assert lowered == [64, 32, 16, 8, 4, 2]
    workplace.has(texts)
    assert workplace.status()["attempts"] == {"gpu_oom": 6, "committed": 6}


SLOW_CASES = (
    *(
        Case(
            name,
            {"out/1": f"{name}@{moment}"},
            0,
            {"committed": 3, "hung": 1},
            (words,),
            (0, 1, 2),
            changes,
            1,
        )
        for name, moment, words, changes in [
            ("deaf_sleep", "encode", "no progress", {"recovery__stall_timeout": 4}),
            ("sigstop", "encode", "no progress", {"recovery__stall_timeout": 4}),
            ("sleep", "load", "no batch begun", {"recovery__startup_timeout": 12}),
        ]
    ),
    Case(
        "sleep-after-the-result",
        {"out/1": "sleep_after@encode"},
        0,
        {"committed": 3},
        ("after it had saved its vectors",),
        done=(0, 1, 2),
        changes={"recovery__stall_timeout": 4},
        times=1,
    ),
    Case(
        "hub-always",
        {"out/0": "hub_429@load"},
        75,
        {"hub": 2},
        ("waiting, for up to", "429"),
        done=(),
    ),
    Case(
        "disk-always",
        {"out/1": "disk_full@encode"},
        74,
        {"committed": 1, "disk_full": 2},
        ("No space left on device", "Free some space"),
        done=(0,),
    ),
)


@pytest.mark.soak
def test_runs_that_have_to_wait(tmp_path: Path) -> None:
    """Workers that stand still are ended and replaced; a world that is not ready is waited for, up
    to the limit.
    """

    def run(numbered: tuple[int, Case]) -> tuple[Case, Workplace, Ended]:
        number, case = numbered
        folder = tmp_path / str(number)
        folder.mkdir()
        place = Workplace(folder)
        prepare(place, case)
        return case, place, finish(place.begin())

    # Most of the time they wait; but all of them at once are a load under which a good worker may
    # seem to stand still.
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(run, enumerate(SLOW_CASES)))
    # All of them have ended before the first is looked at: a test that fails leaves none behind.
    for case, place, end in ended:
        check_case(place, case, end)
