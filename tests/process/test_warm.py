"""Workers forked from a template: the same vectors, the same evidence, and a run that does without
when it must.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.engine import local
from chunkvisor.engine.process import thread_count
from chunkvisor_worker.contract.exits import WorkerExit
from harness import MARK, Workplace, bearing, kill, lives, local_engine_only, wait_for

PLAIN = [f"text {number}" for number in range(12)]


def prepare(place: Workplace, texts: list[str], start: Any = "warm", **changes: Any) -> None:
    """A run of tests/encoders/told.py, two texts a chunk."""
    place.write_source(texts)
    changes = {
        "chunk.size": 2,
        "workers.start": start,
        "model.kwargs": {"notes": str(place.folder)},
        **changes,
    }
    place.write_config("told:make", **changes)


def starts(place: Workplace) -> list[tuple[int, int, str]]:
    """(chunk, attempt, how it started) of every attempt, in order."""
    return [
        (event["chunk"], event["attempt"], event["start"])
        for event in place.named("attempt_started")
    ]


@pytest.mark.parametrize(("start", "standby"), [("warm", 3), ("auto", 1)])
def test_warm_workers_make_the_same_vectors(workplace: Workplace, start: str, standby: int) -> None:
    """Every chunk comes from a worker forked from one template, none begins before that is ready,
    all are right.
    """
    prepare(workplace, PLAIN, start, **{"workers.standby": standby})

    workplace.gives(PLAIN)
    assert starts(workplace) == [(chunk, 1, "warm") for chunk in range(6)]
    assert len(workplace.named("template_started")) == 1
    order = [event["event"] for event in workplace.events()]
    assert order.index("template_ready") < order.index("attempt_started")


@pytest.mark.parametrize(
    ("start", "deed", "reason"),
    [("warm", "segfault", "Segmentation fault"), ("auto", "leave", "exit code 44")],
)
def test_a_dead_warm_worker_is_reported_right_and_its_retry_is_fresh(
    workplace: Workplace, start: str, deed: str, reason: str
) -> None:
    """Exit codes and signals come through the template; what follows a failure is a new
    interpreter.
    """
    prepare(workplace, [*PLAIN[:5], deed, *PLAIN[5:]], start=start)

    workplace.ends(0)
    (failed,) = workplace.named("attempt_failed")
    assert reason in failed["reason"]
    assert (2, 2, "fresh") in starts(workplace)
    assert [how for _, attempt, how in starts(workplace) if attempt == 1] == ["warm"] * 7


@local_engine_only
@pytest.mark.parametrize("deed", ["kill_template", "stop_template"])
def test_auto_goes_on_without_a_template_that_dies_or_stops(
    workplace: Workplace, deed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker under way keeps its vectors, the others are fresh, and it is said once."""
    texts = [*PLAIN[:4], deed, *PLAIN]
    prepare(workplace, texts, start="auto", **{"workers.standby": 1})
    monkeypatch.setattr(local, "ANSWER_S", 0.5)
    ended = workplace.gives(texts)
    seen = workplace.named("template_started", "warm_given_up", "attempt_failed")
    assert [each["event"] for each in seen] == ["template_started", "warm_given_up"]
    assert ended.stderr.count("from now on each worker is a new interpreter") == 1
    assert starts(workplace)[-1][2] == "fresh"


def test_a_template_that_is_killed_ends_a_run_that_insists_on_it(workplace: Workplace) -> None:
    """It ends with 75, since nothing is wrong with the config; the same command continues."""
    texts = [*PLAIN[:4], "kill_template", *PLAIN]
    prepare(workplace, texts, **{"workers.standby": 1})
    assert "ended with signal 9 (SIGKILL)" in workplace.ends(75).stderr
    # of the worker that was ended with the run
    (workplace.folder / "device").unlink(missing_ok=True)
    workplace.gives(texts)


WITHOUT_A_TEMPLATE = {
    "open_gpu": "/dev/nvidiactl open",
    "start_thread": "has started threads",
    "fail": "ImportError: no such library",
    "hang": "has not loaded within 1 s",
}
"""What a template does -> a part of what is said of it."""


def unforkable(place: Workplace, why: str, start: str) -> None:
    """A run of tests/encoders/unforkable.py."""
    place.write_source(PLAIN)
    patience_s = 1 if why == "hang" else 600
    changes = {"workers.start": start, "chunk.size": 2, "recovery.startup_timeout": patience_s}
    place.write_config("unforkable:make", **changes)


@local_engine_only
@pytest.mark.parametrize("why", WITHOUT_A_TEMPLATE)
def test_a_run_without_a_template(workplace: Workplace, why: str) -> None:
    """With `warm` nothing is started, and the last lines say what to do; with `auto` all workers
    are fresh.
    """
    words = WITHOUT_A_TEMPLATE[why]
    unforkable(workplace, why, "warm")

    ended = workplace.ends(78, env={"UNFORKABLE": why})
    assert words in ended.stderr
    assert re.search(r"do: +(Write|.*\. Or write) `workers.start: auto`", ended.stderr), (
        ended.stderr
    )
    assert str(workplace.hidden / "template" / "worker.log") in ended.stderr
    assert starts(workplace) == []

    if why != "fail":
        unforkable(workplace, why, "auto")
        ended = workplace.gives(PLAIN, env={"UNFORKABLE": why})
        assert {how for _, _, how in starts(workplace)} == {"fresh"}
        assert ended.stderr.count(words) == 1


@pytest.mark.parametrize("harmless", ["start_jemalloc", "map_driver"])
def test_what_survives_a_fork_is_no_taint(workplace: Workplace, harmless: str) -> None:
    """Workers are forked next to jemalloc's thread, which jemalloc mends itself, and to a driver
    that is asleep.
    """
    unforkable(workplace, harmless, "warm")

    workplace.gives(PLAIN, env={"UNFORKABLE": harmless})
    assert {how for _, _, how in starts(workplace)} == {"warm"}


@local_engine_only
def test_a_worker_refuses_a_template_that_was_tainted_late(workplace: Workplace) -> None:
    """Exit code 29 is not a failure of the chunk: without a template that can be trusted, fresh
    workers do all.
    """
    prepare(workplace, PLAIN, "auto", **{"workers.standby": 1})
    (workplace.folder / "sitecustomize.py").write_text(
        "import os, sys\ndef taint():\n    if 'chunkvisor_worker.job' in sys.modules:\n        "
        "sys.fake = open(os.environ['FAKE'], 'rb')\nos.register_at_fork(after_in_child=taint)\n"
    )
    fake = workplace.folder / "dev" / "nvidia0"
    fake.parent.mkdir()
    fake.touch()
    text = workplace.config_path.read_text().replace(
        "PYTHONPATH: ", f"FAKE: {fake}\n  PYTHONPATH: {workplace.folder}:"
    )
    workplace.config_path.write_text(text)

    assert "begun to use the GPU" in workplace.gives(PLAIN).stderr
    assert not workplace.named("attempt_failed")


@pytest.mark.parametrize("deed", ["sleep", "hold_the_gil"])
def test_nothing_outlives_a_killed_parent(workplace: Workplace, deed: str) -> None:
    """Template and workers end, a worker that cannot listen to its lifeline as well."""
    prepare(workplace, [deed, *PLAIN], **{"workers.standby": 1})
    run = workplace.begin()
    wait_for((workplace.folder / f"done-{deed}").exists)
    assert len(bearing(os.environ[MARK])) >= 3  # the run, its template, a worker

    kill(run)

    wait_for(lambda: not bearing(os.environ[MARK]))


@pytest.mark.parametrize("start", ["fresh", "warm"])
@pytest.mark.parametrize("deed", ["start_silent_child", "start_daemon"])
def test_no_child_of_a_worker_outlives_a_killed_parent(
    workplace: Workplace, deed: str, start: str
) -> None:
    """What an encoder has started ends at once; if it has left the worker's group, the next run
    ends it. An environment that was emptied hides neither.
    """
    prepare(workplace, [deed, *PLAIN], start)
    run = workplace.begin()
    wait_for(lambda: any(workplace.hidden.glob("outputs/*/*/attempts/*/*/child")))
    (path,) = workplace.hidden.glob("outputs/*/*/attempts/*/*/child")
    wait_for(path.read_text)
    child = int(path.read_text())

    kill(run)

    if deed == "start_daemon":
        assert lives(child)
        assert "left behind by an earlier run" in workplace.ends(0).stderr
        assert not lives(child)
    wait_for(lambda: not lives(child))


def test_a_hung_warm_worker_leaves_its_stack(workplace: Workplace) -> None:
    """The log of the attempt says where it hung, and the chunk is done by the next."""
    prepare(workplace, ["sleep", *PLAIN], **{"recovery.stall_timeout": 1})

    workplace.ends(0)
    (failed,) = workplace.named("attempt_failed")
    assert failed["outcome"] == "hung"
    told, _, stack = Path(failed["log"]).read_text().partition("Fatal Python error: Aborted")
    assert "chunkvisor ends this worker: no progress" in told
    assert "in sleep" in stack
    assert "told.py" in failed["reason"]


@local_engine_only
def test_a_template_loads_while_the_source_is_read(workplace: Workplace) -> None:
    """It has begun before, serves a single chunk as well, and ends with a run whose source is
    refused.
    """
    prepare(workplace, PLAIN[:2])
    read = workplace.source.read_text()
    workplace.source.write_text(read + "{\n")

    workplace.ends(78)
    assert not bearing(os.environ[MARK])

    workplace.source.write_text(read)
    workplace.ends(0)
    order = [event["event"] for event in workplace.events()]
    assert order.count("template_started") == 2
    assert order.index("template_started") < order.index("staging") < order.index("output_opened")
    assert starts(workplace) == [(0, 1, "warm")]


@pytest.mark.parametrize(
    ("wanted", "kind", "cores", "threads"),
    [(None, "cpu", 6, 6), (None, "cuda", 64, 8), ("4,2", "cuda", 64, 4)],
)
def test_thread_count(wanted: str | None, kind: str, cores: int, threads: int) -> None:
    """The user's OMP_NUM_THREADS counts, else the cores, few of them next to a GPU."""
    assert thread_count(wanted, kind, cores) == threads


@pytest.mark.parametrize("start", ["fresh", "warm"])
def test_a_fault_keeps_its_exit_code(workplace: Workplace, start: str) -> None:
    """What would abort when the failed frames are freed does not get to it: the worker leaves with
    its own code.
    """
    workplace.write_source(PLAIN)
    notes = {"notes": str(workplace.folder)}
    workplace.write_config(
        "clinging:make", **{"workers.start": start, "chunk.size": 6, "model.kwargs": notes}
    )

    workplace.ends(0)
    (failed,) = workplace.named("attempt_failed")
    assert failed["outcome"] == "device_fault", "its class is torch's, which never quotes a text"
    (worker,) = [event for event in workplace.named("worker_ended") if event["returncode"]]
    assert worker["returncode"] == WorkerExit.FAULT


@pytest.mark.model
def test_torch_has_all_its_threads(workplace: Workplace) -> None:
    """Torch and its MKL have the threads of the config, in a forked worker too."""
    workplace.prepare(
        ["a", "b"], "torch_threads:make", workers__start="warm", env__OMP_NUM_THREADS="2"
    )

    workplace.ends(0)
    assert workplace.vectors().tolist() == [[2, 2], [2, 2]]
