"""The state that events come to, the snapshot of it, the words for it, and whether to worry: as
tables.
"""

import json
from dataclasses import fields
from typing import Any

import pytest

from chunkvisor.events.event import KINDS, Weight, event_of
from chunkvisor.events.state import RunState
from chunkvisor.show.lines import heartbeat_s
from chunkvisor.show.snapshot import Beats, Snapshot, figure, percent, snapshot_of
from chunkvisor_worker.contract.messages import Beat, Phase

Event = tuple[float, str, dict[str, Any]]

INVOKED: Event = (100, "invoked", {"workdir": "w"})
STARTED: Event = (
    100,
    "run_started",
    {"workdir": "w", "device": "NVIDIA X (GPU-1), cpu", "outputs": ["a"]},
)
OPENED: Event = (
    101,
    "output_opened",
    {
        "output": "a",
        "rows": 200,
        "distinct": 100,
        "chunks": 4,
        "chunk_size": 25,
        "chunks_done": 1,
        "texts_done": 25,
    },
)
FIRST, SECOND = {"output": "a", "chunk": 1, "attempt": 1}, {"output": "a", "chunk": 2, "attempt": 3}
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
    {
        "output": "a",
        "chunk": 1,
        "texts": 25,
        "texts_done": 50,
        "chunks_done": 2,
        "chunks": 4,
        "tokens": 500,
    },
)
PLANNED: Event = (
    102,
    "work_planned",
    {"rows": 200, "texts": 100, "texts_left": 75, "chunks": 4, "chunks_left": 3},
)
ON_RAY: Event = (100, "run_started", STARTED[2] | {"engine": "ray", "device": "cpu"})
JOINED: Event = (103, "node_joined", {"node": "n1", "device": "cpu", "first": 0})
LOST: Event = (111, "node_lost", {"node": "n1", "why": "it is gone", "left": 0})
DRAINING: Event = (120, "draining", {"signal": "SIGINT"})
STOPPING = "stopping: the chunks in progress are finished or saved first"


def state_of(*events: Event) -> RunState:
    """What the events come to; those that make none are passed over, as in a journal."""
    state = RunState()
    for t, name, details in events:
        if (event := event_of(name, details)) is not None:
            state.apply(event, t)
    return state


def seen(now_s: float, *events: Event, beats: Beats | None = None) -> Snapshot:
    """What there is to see after the events."""
    return snapshot_of(state_of(*events), now_s, beats)


@pytest.mark.parametrize(
    ("events", "doing"),
    [
        ([], "starting"),
        ([INVOKED, (100, "resolving", {"model": "m/m"})], "asking the model hub for m/m"),
        ([INVOKED, (100, "staging", {"output": "a"})], "reading the source of a"),
        (
            [*BEGUN[:2], (100, "staging", {"output": "a"}), OPENED, PLANNED],
            "starting the first workers",
        ),
        ([INVOKED, ON_RAY, OPENED, PLANNED], "waiting for a node of the Ray cluster"),
        ([INVOKED, ON_RAY, OPENED, PLANNED, JOINED], "starting the first workers"),
        ([INVOKED, ON_RAY, *BEGUN[2:], JOINED, LOST], "waiting for a node of the Ray cluster"),
        (
            [*BEGUN[:3], (102, "template_started", {"pid": 3})],
            "loading the model, once for all workers",
        ),
        (BEGUN, "computing"),
        ([*BEGUN, (120, "assembling", {"output": "a", "chunks": 4})], "joining the chunks of a"),
        ([*BEGUN, DRAINING, (121, "go", {**SECOND, "rows": 1})], STOPPING),
        ([*BEGUN, (120, "run_ended", {"code": 0})], "finished"),
        ([*BEGUN, (120, "halted", {"code": 75}), (200, "invoked", {"workdir": "w"})], "starting"),
    ],
)
def test_what_it_is_doing(events: list[Event], doing: str) -> None:
    """Each stage of a run has its words, and a new run in the same journal begins from the start."""
    assert seen(130, *events).doing == doing


def test_progress_counts_what_workers_have_done() -> None:
    """Rows, rates and the time left come from commits and beats together; a text stands for its
    share of the rows.
    """
    beat = Beat(9, 8, Phase.FORWARD, rows_done=10, rows_total=25, tokens_done=200)
    ended: Event = (119, "worker_ended", {**FIRST, "device": 0})
    events = [*BEGUN, ended, COMMITTED, (121, "go", {**SECOND, "rows": 32})]
    now = seen(130, *events, beats={"a chunk 2 attempt 3": (beat, 0.5)})
    assert [now.total(name) for name in ("rows", "rows_done", "chunks_done")] == [
        200,
        120,
        2,
    ]  # 60 of 100 texts
    assert now.rows_per_s == pytest.approx(2 * 35 / 20)
    assert now.tokens_per_s == pytest.approx(700 / 20)
    assert now.eta_s == pytest.approx(40 / (35 / 20))
    assert now.elapsed_s == 30
    assert now.workers == ("GPU 0: a chunk 2, computing, 10 of 25 texts",)


FAILED: Event = (120, "attempt_failed", {**FIRST, "outcome": "crashed", "reason": "no"})
BAD: Event = (
    120,
    "quarantined",
    {"output": "a", "row": 1, "place": "f:1", "outcome": "crashed", "reason": "no"},
)
SPLIT: Event = (120, "chunk_split", {"output": "a", "chunk": 1, "texts": 12, "rows": "row 7"})
WAITING: Event = (125, "waiting", {"delay_s": 30, "reason": "GPU\nbusy"})


@pytest.mark.parametrize(
    ("events", "silent_s", "weight", "words"),
    [
        ([], 0, Weight.NEWS, "all is well"),
        ([FAILED], 0, Weight.CARE, "1 attempt failed and is tried again; nothing is lost"),
        (
            [(120, "attempt_failed", {**FAILED[2], "attempt": 0})],
            0,
            Weight.NEWS,
            "all is well",
        ),  # no worker started
        ([FAILED, BAD], 0, Weight.LOSS, "1 row without a vector"),
        ([BAD, (130, "halted", {"code": 3})], 0, Weight.LOSS, "1 row without a vector"),
        (
            [(120, "chunk_set_aside", {"output": "a", "chunk": 1})],
            0,
            Weight.LOSS,
            "1 chunk set aside",
        ),
        ([(120, "device_dropped", {"device": "X"})], 0, Weight.LOSS, "1 device left out"),
        ([SPLIT], 0, Weight.CARE, "looking for the text that fails in a chunk 1: 12 texts left"),
        ([SPLIT, BAD, COMMITTED], 0, Weight.LOSS, "1 row without a vector"),
        ([WAITING], 0, Weight.CARE, "waiting, next try in 25 s: GPU busy"),
        ([(90, *WAITING[1:])], 0, Weight.CARE, "trying again: GPU busy"),
        ([(90, *WAITING[1:]), (121, "go", {**SECOND, "rows": 1})], 0, Weight.NEWS, "all is well"),
        ([BAD], 200, Weight.CARE, "no progress in a chunk 1 for 3 min"),
    ],
)
def test_whether_to_worry(events: list[Event], silent_s: float, weight: Weight, words: str) -> None:
    """The gravest matter is named, with what comes of it by itself."""
    now = seen(
        130,
        *BEGUN,
        *events,
        beats={"a chunk 1 attempt 1": (Beat(1, 7, Phase.FORWARD, 1, 25), silent_s)},
    )
    assert now.weight is weight
    assert now.health.startswith(words)


def test_figures_in_words() -> None:
    """100 % is said only when all is done, a slow rate is not 0, and heartbeats become rarer."""
    assert [percent(share) for share in (0, 0.999, 1.0)] == ["0 %", "99 %", "100 %"]
    assert [figure(value) for value in (0.01234, 1.26, 12345.6)] == ["0.012", "1.3", "12,346"]
    assert [heartbeat_s(elapsed_s) for elapsed_s in (0, 600, 1e6)] == [20, 60, 600]


def test_a_text_that_is_given_up_counts_as_done() -> None:
    """At once, as in `status`, and not a second time when its chunk is committed."""
    earlier: Event = (101, "output_opened", {**OPENED[2], "quarantined": 3})
    given_up: Event = (119, "quarantined", {"output": "a", "row": 30, "chunk": 1, "rows": 2})
    begun = [*BEGUN[:2], earlier, *BEGUN[3:], given_up]
    assert [seen(121, *begun, *more).outputs["a"].share for more in ([], [COMMITTED])] == [
        0.26,
        0.5,
    ]
    assert state_of(*begun, COMMITTED).total("texts_here") == 24
    assert seen(119, *begun).health == "5 rows without a vector"


def test_the_heartbeat_and_the_end() -> None:
    """A line has all figures that are known; after the end nothing moves any more, whatever the
    clock says.
    """
    assert seen(110, INVOKED).line == "starting, 10 s so far"
    assert seen(120, *BEGUN, COMMITTED).line == (
        "computing, 20 s so far, 50 %, about 100 of 200 rows, 2 of 4 chunks, 5.0 rows/s, 50 "
        "tokens/s, about 20 s left"
    )
    assert seen(110, INVOKED).closing_line == ""
    now = seen(9999, *BEGUN, COMMITTED, (130, "run_ended", {"code": 0}))
    assert (now.elapsed_s, now.eta_s, now.workers) == (30, None, ())
    assert now.closing_line == (
        "1 chunk encoded in 30 s, start-up included; 5.0 rows/s, 50 tokens/s (start-up not "
        "counted); done and kept: 50 %, about 100 of 200 rows, 2 of 4 chunks; without a fault"
    )


KEPT: Event = (102, "batches_kept", {"output": "a", "chunk": 1, "texts": 10, "tokens": 200})
PART: Event = (120, "part_committed", {"output": "a", "chunk": 1, "texts": 15, "tokens": 500})
COMPOSED: Event = (120, "chunk_committed", {**COMMITTED[2], "tokens": 0})
RESUMED: Event = (120, "chunk_committed", {**COMMITTED[2], "tokens": 0, "texts_before": 10})


@pytest.mark.parametrize(
    ("events", "far", "texts", "tokens"),
    [
        pytest.param(
            [*BEGUN[:3], KEPT, *BEGUN[3:]],
            "35 %, about 70 of 200",
            0,
            0,
            id="taken over from a killed run",
        ),
        pytest.param(
            [*BEGUN[:3], KEPT, *BEGUN[3:], PART, RESUMED],
            "50 %, about 100 of",
            15,
            500,
            id="and finished",
        ),
        pytest.param(
            [*BEGUN, (119, *KEPT[1:])], "35 %, about 70 of 200 rows", 10, 200, id="kept by this run"
        ),
        pytest.param(
            [*BEGUN, (119, *KEPT[1:]), PART, COMPOSED],
            "50 %, about 100",
            25,
            700,
            id="and finished here",
        ),
        pytest.param([*BEGUN, COMMITTED], "50 %, about 100 of 200", 25, 500, id="at once"),
    ],
)
def test_what_was_kept_counts_once(events: list[Event], far: str, texts: int, tokens: int) -> None:
    """Kept batches count for how far it is at once; texts and tokens of a chunk in parts for the
    run that did them.
    """
    state = state_of(*events)
    assert far in snapshot_of(state, 120).line
    assert (state.total("texts_here"), state.total("tokens_here")) == (texts, tokens)
    assert not state.outputs["a"].texts_saved or not state.chunks_here


GO = {**FIRST, "rows": 2}


@pytest.mark.parametrize(
    ("name", "details", "made"),
    [
        ("go", GO, {"rows": 2, "tokens": None}),
        ("go", GO | {"tokens": "many"}, None),
        ("go", GO | {"color": "red"}, {"rows": 2}),
        ("go", FIRST, None),
        ("attempt_event", FIRST, None),
    ],
)
def test_events_of_other_versions(
    name: str, details: dict[str, Any], made: dict[str, Any] | None
) -> None:
    """An event with a wrong or missing field is passed over; fields that are not known are ignored."""
    event = event_of(name, details)
    assert made == (event and {key: getattr(event, key) for key in made or {}})


SAMPLES: dict[Any, Any] = {
    int: 3,
    int | None: 4,
    float: 1.5,
    float | None: 2.5,
    bool: True,
    str: "x",
}
SAMPLES |= {
    tuple[str, ...]: ("x", "y"),
    dict[str, float]: {"forward": 0.5},
    dict[str, int]: {"8": 1},
}


def test_no_event_is_lost_in_its_line() -> None:
    """Each event, with every field set, is the same after its way through the journal."""
    for name, kind in KINDS.items():
        event = kind(**{field.name: SAMPLES[field.type] for field in fields(kind)})
        assert event_of(name, json.loads(json.dumps(event.details()))) == event
