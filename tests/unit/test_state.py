"""The state that events come to, the snapshot of it, the words for it, and whether to worry: as tables."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.events.event import KINDS, Severity, event_of
from chunkvisor.events.state import AttemptKey, RunState
from chunkvisor.show.lines import closing_line, figure, heartbeat_s, percent, progress_line, stage
from chunkvisor.show.snapshot import Readings, SensorLine, Snapshot, last_line, snapshot_of
from chunkvisor_worker.contract.messages import Beat, Phase

Event = tuple[float, str, dict[str, Any]]

INVOKED: Event = (100, "invoked", {"invocation": "001_x", "workdir": "w", "pid": 1})
STARTED: Event = (100, "run_started", {"run": "r", "workdir": "w", "device": "NVIDIA X (GPU-1), cpu", "outputs": ["a"]})
OPENED: Event = (
    101,
    "output_opened",
    {"output": "a", "rows": 200, "distinct": 100, "chunks": 4, "chunk_size": 25, "chunks_done": 1, "texts_done": 25},
)
FIRST, SECOND = (
    {"output": "a", "chunk": 1, "attempt": 1},
    {"output": "a", "chunk": 2, "attempt": 3},
)
BEGUN: list[Event] = [
    INVOKED,
    STARTED,
    OPENED,
    (102, "attempt_started", {**FIRST, "pid": 7, "device": 0, "start": "fresh"}),
    (103, "attempt_started", {**SECOND, "pid": 8, "device": 0, "start": "fresh"}),
    (110, "go", {**FIRST, "rows": 32, "tokens": None}),
]
COMMITTED: Event = (
    120,
    "chunk_committed",
    {"output": "a", "chunk": 1, "texts": 25, "texts_done": 50, "chunks_done": 2, "chunks": 4, "tokens": 500},
)

PLANNED: Event = (
    102,
    "work_planned",
    {"rows": 200, "texts": 100, "texts_left": 75, "chunks": 4, "chunks_left": 3, "texts_per_s": None},
)
ON_RAY: Event = (100, "run_started", STARTED[2] | {"engine": "ray", "device": "cpu"})
JOINED: Event = (103, "node_joined", {"node": "n1", "device": "cpu", "first": 0})
LOST: Event = (111, "node_lost", {"node": "n1", "why": "it is gone", "left": 0})


def state_of(*events: Event) -> RunState:
    """What the events come to; those that make none are passed over, as in a journal."""
    state = RunState()
    for t, name, details in events:
        if (event := event_of(name, details)) is not None:
            state.apply(event, t)
    return state


def seen(now_s: float, *events: Event, readings: Readings | None = None) -> Snapshot:
    """What there is to see after the events."""
    return snapshot_of(state_of(*events), now_s, readings or Readings())


@pytest.mark.parametrize(
    ("events", "doing"),
    [
        ([], "starting"),
        ([INVOKED, (100, "resolving", {"model": "m/m"})], "asking the model hub for m/m"),
        ([INVOKED, (100, "staging", {"output": "a"})], "reading the source of a"),
        ([*BEGUN[:2], (100, "staging", {"output": "a"}), OPENED, PLANNED], "starting the first workers"),
        (
            [INVOKED, ON_RAY, (100, "staging", {"output": "a"}), OPENED, PLANNED],
            "waiting for a node of the Ray cluster",
        ),
        ([INVOKED, ON_RAY, OPENED, PLANNED, JOINED], "starting the first workers"),
        ([INVOKED, ON_RAY, *BEGUN[2:], JOINED, LOST], "waiting for a node of the Ray cluster"),
        ([*BEGUN[:3], (102, "template_started", {"pid": 3})], "loading the model, once for all workers"),
        (BEGUN, "computing"),
        ([*BEGUN, (120, "assembling", {"output": "a", "chunks": 4})], "joining the chunks of a"),
        (
            [*BEGUN, (120, "draining", {"signal": "SIGINT"})],
            "stopping: the chunks under way are finished or saved first",
        ),
        (
            [*BEGUN, (120, "draining", {"signal": "SIGINT"}), (121, "go", {**SECOND, "rows": 1})],
            "stopping: the chunks under way are finished or saved first",
        ),
        ([*BEGUN, (120, "run_ended", {"code": 0})], "finished"),
        ([*BEGUN, (120, "halted", {"code": 75, "what": "no"})], "ended"),
        ([*BEGUN, (120, "halted", {"code": 75}), (200, "invoked", {"workdir": "w", "invocation": ""})], "starting"),
    ],
)
def test_what_it_is_doing(events: list[Event], doing: str) -> None:
    """Each stage of a run has its words, and a new run in the same journal begins from the start."""
    assert seen(130, *events).doing == doing


def test_progress_counts_what_workers_have_done() -> None:
    """Rows, rates and the time left come from commits and beats together; a text stands for its share of the rows."""
    beat = Beat(9, 8, Phase.FORWARD, rows_done=10, rows_total=25, tokens_done=200, batch_rows=16)
    readings = Readings({AttemptKey("a", 2, 3): (beat, 0.5)})
    ended: Event = (119, "worker_ended", {**FIRST, "device": 0})
    now = seen(130, *BEGUN, ended, COMMITTED, (121, "go", {**SECOND, "rows": 32}), readings=readings)
    assert [now.total(name) for name in ("rows", "rows_done", "chunks_done")] == [200, 120, 2]  # 60 of 100 texts
    assert now.rows_per_s == pytest.approx(2 * 35 / 20)
    assert now.tokens_per_s == pytest.approx(700 / 20)
    assert now.eta_s == pytest.approx(40 / (35 / 20))
    assert now.elapsed_s == 30
    (worker,) = now.devices[0].workers
    assert (worker.phase, worker.computing, worker.texts_done, worker.batch_rows) == ("computing", True, 10, 16)


@pytest.mark.parametrize(
    ("beats", "doing"),
    [
        ([Beat(1, 7, Phase.IMPORT)], "importing the encoder's packages (4 s)"),
        ([Beat(1, 7, Phase.IMPORT), Beat(1, 8, Phase.MODEL_LOAD)], "loading the model (4 s)"),
        ([Beat(1, 7, Phase.FORWARD)], "starting the first workers (6 s)"),
        ([], "starting the first workers (6 s)"),
    ],
)
def test_what_is_waited_for_before_the_first_batch(beats: list[Beat], doing: str) -> None:
    """The worker that is nearest to its first batch tells the step that it is at, and for how long."""
    checked: Event = (102, "doing", {"doing": "starting the first workers"})
    keys = (AttemptKey("a", 1, 1), AttemptKey("a", 2, 3))
    readings = Readings({key: (beat, 4.0) for key, beat in zip(keys, beats, strict=False)})
    assert stage(seen(108, *BEGUN[:3], checked, *BEGUN[3:5], readings=readings)) == doing


FAILED: Event = (120, "attempt_failed", {**FIRST, "outcome": "crashed", "reason": "no"})
BAD: Event = (120, "quarantined", {"output": "a", "row": 1, "place": "f:1", "outcome": "crashed", "reason": "no"})


@pytest.mark.parametrize(
    ("events", "silent_s", "severity", "words"),
    [
        ([], 0, Severity.NEWS, "all is well"),
        ([FAILED], 0, Severity.CARE, "1 attempt failed and is tried again; nothing is lost"),
        ([FAILED, BAD], 0, Severity.LOSS, "1 row without a vector"),
        ([BAD, (130, "halted", {"code": 3})], 0, Severity.LOSS, "1 row without a vector"),
        ([(120, "chunk_set_aside", {"output": "a", "chunk": 1})], 0, Severity.LOSS, "1 chunk set aside"),
        ([(120, "device_dropped", {"device": "X"})], 0, Severity.LOSS, "1 device left out"),
        (
            [(125, "waiting", {"delay_s": 30, "reason": "GPU\nbusy"})],
            0,
            Severity.CARE,
            "waiting, next try in 25 s: GPU",
        ),
        ([(90, "waiting", {"delay_s": 30, "reason": "busy"})], 0, Severity.CARE, "trying again: busy"),
        (
            [(90, "waiting", {"delay_s": 30, "reason": "busy"}), (121, "go", {**SECOND, "rows": 1})],
            0,
            Severity.NEWS,
            "all is well",
        ),
        ([BAD], 200, Severity.CARE, "no progress in chunk 1 for 3 min"),
    ],
)
def test_whether_to_worry(events: list[Event], silent_s: float, severity: Severity, words: str) -> None:
    """The gravest matter is named, with what comes of it by itself."""
    readings = Readings({AttemptKey("a", 1, 1): (Beat(1, 7, Phase.FORWARD, 1, 25), silent_s)})
    now = seen(130, *BEGUN, *events, readings=readings)
    assert now.severity is severity
    assert now.health.startswith(words)


def test_figures_in_words() -> None:
    """100 % is said only when all is done, a slow rate is not 0, and heartbeats become rarer."""
    assert [percent(share) for share in (0, 0.999, 1.0)] == ["0 %", "99 %", "100 %"]
    assert [figure(value) for value in (0.01234, 1.26, 12345.6)] == ["0.012", "1.3", "12,346"]
    assert [heartbeat_s(elapsed_s) for elapsed_s in (0, 600, 1e6)] == [20, 60, 600]


def test_the_search_for_bad_texts_has_no_known_end() -> None:
    """When only chunks that are taken apart are left, it says so and tells no time that would be wrong."""
    split: Event = (121, "chunk_split", {"output": "a", "chunk": 2, "texts": 25, "parts": 2})
    now = seen(130, *BEGUN, COMMITTED, split)
    assert (now.doing, now.eta_s is None) == ("computing", False)
    done: Event = (122, "chunk_committed", {**COMMITTED[2], "chunk": 3, "chunks_done": 3, "texts_done": 75})
    now = seen(130, *BEGUN, COMMITTED, split, done)
    assert (now.doing, now.eta_s) == ("looking for the texts that fail", None)
    found: Event = (125, "chunk_committed", {**COMMITTED[2], "chunk": 2, "chunks_done": 4, "texts_done": 100})
    assert seen(130, *BEGUN, COMMITTED, split, done, found).doing == "computing"


def test_a_text_that_is_given_up_counts_as_done() -> None:
    """At once, as in `status`, and not a second time when its chunk is committed."""
    earlier: Event = (101, "output_opened", {**OPENED[2], "quarantined": 3})
    given_up: Event = (119, "quarantined", {"output": "a", "row": 30, "chunk": 1, "rows": 2})
    before = seen(119, *BEGUN[:2], earlier, *BEGUN[3:], given_up)
    after = seen(121, *BEGUN[:2], earlier, *BEGUN[3:], given_up, COMMITTED)
    assert [each.outputs["a"].share for each in (before, after)] == [0.26, 0.5]
    assert state_of(*BEGUN, given_up, COMMITTED).total("texts_here") == 24
    assert seen(119, *BEGUN[:2], earlier, *BEGUN[3:], given_up).health == "5 rows without a vector"


def test_an_ended_run_stands_still() -> None:
    """After its end nothing moves any more, whatever the clock says."""
    now = seen(9999, *BEGUN, COMMITTED, (130, "run_ended", {"code": 0}))
    assert now.elapsed_s == 30
    assert (now.eta_s, now.devices) == (None, ())
    assert closing_line(now) == (
        "1 chunk encoded in 30 s, start-up included; 5.0 rows/s, 50 tokens/s without it; "
        "done and kept: about 100 of 200 rows (50 %), 2 of 4 chunks; without a fault"
    )


KEPT: Event = (102, "batches_kept", {"output": "a", "chunk": 1, "texts": 10, "tokens": 200, "interrupted": True})


PART: Event = (120, "part_committed", {"output": "a", "chunk": 1, "texts": 15, "tokens": 500})
COMPOSED: Event = (120, "chunk_committed", {**COMMITTED[2], "tokens": 0, "texts_before": 10})


@pytest.mark.parametrize(
    ("events", "far", "texts", "tokens"),
    [
        pytest.param([*BEGUN[:3], KEPT, *BEGUN[3:]], "35 %, about 70 of 200", 0, 0, id="taken over from a killed run"),
        pytest.param([*BEGUN[:3], KEPT, *BEGUN[3:], PART, COMPOSED], "50 %, about 100 of", 15, 500, id="and finished"),
        pytest.param([*BEGUN, (119, *KEPT[1:])], "35 %, about 70 of 200 rows", 10, 200, id="kept by this run"),
        pytest.param(
            [*BEGUN, (119, *KEPT[1:]), PART, (*COMPOSED[:2], {**COMPOSED[2], "texts_before": 0})],
            "50 %, about 100 of 200",
            25,
            700,
            id="of an attempt of this run that failed, and finished",
        ),
        pytest.param([*BEGUN, COMMITTED], "50 %, about 100 of 200", 25, 500, id="at once"),
    ],
)
def test_what_was_kept_counts_once(events: list[Event], far: str, texts: int, tokens: int) -> None:
    """Kept batches count for how far it is at once; texts and tokens of a chunk in parts for the run that did them."""
    state = state_of(*events)
    assert far in progress_line(snapshot_of(state, 120, Readings()))
    assert (state.total("texts_here"), state.total("tokens_here")) == (texts, tokens)
    assert not state.outputs["a"].texts_saved or not state.chunks_here


def test_progress_line() -> None:
    """The heartbeat has all figures that are known."""
    assert progress_line(seen(110, INVOKED)) == "starting, 10 s so far"
    assert progress_line(seen(120, *BEGUN, COMMITTED)) == (
        "computing, 20 s so far, 50 %, about 100 of 200 rows, 2 of 4 chunks, 5.0 rows/s, 50 tokens/s, about 20 s left"
    )
    assert closing_line(seen(110, INVOKED)) is None


GO = {**FIRST, "rows": 2}


@pytest.mark.parametrize(
    ("name", "details", "made"),
    [
        ("go", GO, {"rows": 2, "tokens": None}),
        ("go", GO | {"tokens": "many"}, None),
        ("go", GO | {"colour": "red"}, {"rows": 2}),
        ("go", GO | {"rows": True}, None),
        ("go", FIRST, None),
        ("waiting", {"delay_s": 3, "reason": ["r"]}, None),
        ("run_started", {"workdir": "w", "device": "d", "outputs": ["a", 5]}, None),
        ("attempt", FIRST, None),
        ("attempt_event", FIRST, None),
    ],
)
def test_events_of_other_versions(name: str, details: dict[str, Any], made: dict[str, Any] | None) -> None:
    """An event with a wrong or missing field is passed over; fields that are not known are ignored."""
    event = event_of(name, details)
    assert made == (event and {key: getattr(event, key) for key in made or {}})


def test_no_event_is_lost_in_its_line() -> None:
    """Each event, with every field set, is the same after its way through the journal."""
    for name, kind in KINDS.items():
        event = kind(**{field.name: SAMPLES[field.type] for field in fields(kind)})
        assert event_of(name, json.loads(json.dumps(event.details()))) == event


SAMPLES: dict[Any, Any] = {
    int: 3,
    int | None: 4,
    float: 1.5,
    float | None: 2.5,
    bool: True,
    str: "x",
    tuple[str, ...]: ("x", "y"),
    tuple[int, ...]: (1, 2),
    dict[str, float]: {"forward": 0.5},
}
"""A value for each type of field."""


def test_last_line_of_the_sensors(tmp_path: Path) -> None:
    """The last whole line counts; what cannot be read is not there."""
    path = tmp_path / "sensors.jsonl"
    assert last_line(path) == SensorLine()
    for content, found in (
        (b'{"t":1}\n{"t":2}\n{"t":', SensorLine(2)),
        (b'{"t":1}\nnonsense\n', SensorLine()),
        (b"x" * 40_000 + b'\n{"t":3}\n', SensorLine(3)),
    ):
        path.write_bytes(content)
        assert last_line(path) == found
