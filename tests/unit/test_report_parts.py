"""The pure parts of the report: bins, spans, the time axis, charts, the history, the headline."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from chunkvisor.events.attempt import AttemptFailed, ChunkCommitted, WorkerEnded
from chunkvisor.events.journal import Decoder, Entry
from chunkvisor.events.output import GenerationBegun, TextsReused
from chunkvisor.events.run import Halted
from chunkvisor.observe.outputstatus import OutputStatus
from chunkvisor.observe.readings import GpuReading, HostReading, ProcessReading, SensorLine
from chunkvisor.observe.report.attempts import AttemptSpan, Kind, kind_of, thinned
from chunkvisor.observe.report.bars import cost_bars
from chunkvisor.observe.report.bins import Bins
from chunkvisor.observe.report.ceiling import Ceiling
from chunkvisor.observe.report.chart import HEIGHT, WIDTH, Chart, in_bytes, linear, powers_of_two
from chunkvisor.observe.report.charts import Charts
from chunkvisor.observe.report.costs import Costs
from chunkvisor.observe.report.headline import Mood, headline
from chunkvisor.observe.report.history import Failure, History, Run, read_history
from chunkvisor.observe.report.sensorcurves import SensorCurves
from chunkvisor.observe.report.timeline import Span, Timeline
from chunkvisor.observe.report.trouble import clean
from chunkvisor.observe.status import State, Status
from chunkvisor_worker.contract.exits import Outcome

T0 = 1_700_000_000.0


@pytest.mark.parametrize("length_s", [0.0, 0.5, 100.0, 1e6, 1e9])
def test_bins_keep_the_sum_in_bounded_space(length_s: float) -> None:
    """However long the time, there are at most `limit` bins, and nothing that was added is lost."""
    bins = Bins(limit=50)

    bins.add(T0, 1.0)
    bins.spread(T0, T0 + length_s, 99.0)

    found = bins.items()
    assert len(found) <= 50
    assert sum(each.total for _, each in found) == pytest.approx(100.0)
    assert found[0][0] <= T0
    assert found[-1][0] <= T0 + length_s


def test_bins_know_mean_and_most() -> None:
    """Widening keeps count and maximum."""
    bins = Bins(limit=2)
    for second in range(64):
        bins.add(second, float(second))

    (first, *_) = found = [each for _, each in bins.items()]
    assert sum(each.count for each in found) == 64
    assert max(each.most for each in found) == 63
    assert first.total / first.count < found[-1].total / found[-1].count


@pytest.mark.parametrize(
    ("count", "every", "failures"), [(10, 8, 1), (5000, 2500, 2), (5000, 50, 100), (5000, 2, 157), (5000, 1, 157)]
)
def test_spans_are_bounded_and_failures_stay_as_they_are(count: int, every: int, failures: int) -> None:
    """Of many attempts successes are merged and failures are sampled; none is lost, and no failure becomes longer."""
    failed = [number % every == every - 1 for number in range(count)]
    spans = [AttemptSpan(str(n % 3), float(n), n + 1.0, Kind.FAULT if failed[n] else Kind.DONE) for n in range(count)]

    found = thinned(spans, 600)

    assert len(found) <= 600
    assert sum(band.attempts for band in found) == count
    faults = [band for band in found if band.kind is Kind.FAULT]
    assert len(faults) == failures
    assert all(band.stop_s - band.start_s == 1 for band in faults)


def test_every_outcome_has_a_kind() -> None:
    """Every outcome has a colour of its own kind; a name that nobody knows is a fault."""
    assert {kind_of(outcome) for outcome in Outcome} == set(Kind)
    assert kind_of("unheard of") is Kind.FAULT


@pytest.mark.parametrize(
    ("spans", "pauses", "running_s"),
    [
        pytest.param([], 0, 0, id="nothing"),
        pytest.param([(0, 10)], 0, 10, id="one"),
        pytest.param([(0, 10), (1000, 1010)], 1, 20, id="two"),
        pytest.param([(0, 10), (5, 15)], 1, 15, id="clock set back"),
        pytest.param([(0, 0)] * 3, 2, 0, id="no time at all"),
        pytest.param([(n * 100, n * 100 + 1) for n in range(500)], 499, 500, id="many"),
    ],
)
def test_time_axis(spans: list[tuple[float, float]], pauses: int, running_s: float) -> None:
    """Running time fills the axis from 0 to 1, in order, and every pause takes a little of it."""
    axis = Timeline(Span(*span) for span in spans)

    assert axis.running_s == running_s
    assert len(axis.pauses()) == pauses
    places = [axis.at(time_s) for span in axis.spans for time_s in (span.start_s, span.stop_s)]
    assert places == sorted(places)
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in places)
    if running_s:
        assert places[-1] == pytest.approx(1.0)
    assert len(list(axis.ticks(10))) <= 11 + len(spans)


@pytest.mark.parametrize(
    ("length_s", "labels", "unit"),
    [
        (10, ["0", "1", "2"], "seconds"),
        (600, ["0", "1", "2"], "minutes"),
        (6 * 3600, ["0", "1", "2"], "hours"),
        (8 * 86400, ["0", "1", "2"], "days"),
        (90 * 86400, ["0", "9", "18"], "days"),
    ],
)
def test_ticks_are_round(length_s: float, labels: list[str], unit: str) -> None:
    """Marks stand at round times in a unit that fits the length."""
    axis = Timeline([Span(T0, T0 + length_s)])

    assert [tick.words for tick in axis.ticks(10)][:3] == labels
    assert axis.unit == unit


def test_the_starts_of_runs_have_room() -> None:
    """The time of day stands where runs began, but for those whose words would run into others or out of the chart."""
    axis = Timeline(Span(T0 + start, T0 + stop) for start, stop in ((0, 50), (51, 52), (60, 990), (1000, 1001)))

    assert [mark.at for mark in axis.starts(0.1)] == [0.0]
    assert len(list(axis.starts(0.05))) == 2


def test_the_starts_of_short_runs_are_told_apart() -> None:
    """Two runs within a minute do not have the same words."""
    axis = Timeline(Span(T0 + start, T0 + stop) for start, stop in ((0, 20), (35, 60)))

    first, second = (mark.words for mark in axis.starts(0.1))

    assert first != second


@pytest.mark.parametrize("highest", [0.0, 1e-3, 0.7, 1.0, 9.99, 10.0, 12345.0, 7e9])
def test_axes_hold_their_values(highest: float) -> None:
    """The axis ends at or above the highest value, not far above, with a handful of ticks."""
    scale = linear(highest, "x")

    assert 2 <= len(scale.ticks) <= 6
    assert scale.ticks[-1] >= highest * 0.999
    assert not highest or scale.ticks[-1] <= 2.5 * highest


@pytest.mark.parametrize(
    ("highest", "unit", "last"),
    [(0, "KiB", "1"), (3 << 20, "MiB", "3"), (70 << 30, "GiB", "80"), (1 << 51, "TiB", "3,000")],
)
def test_byte_axes(highest: float, unit: str, last: str) -> None:
    """Bytes are shown in the unit that gives readable numbers."""
    scale = in_bytes(highest)

    assert scale.unit == unit
    assert scale.label(scale.ticks[-1]) == last


@pytest.mark.parametrize(("low", "high"), [(1, 1), (8, 32), (1, 16384), (4096, 4096)])
def test_logarithmic_axes(low: float, high: float) -> None:
    """Powers of two, with both values within."""
    scale = powers_of_two(low, high, "texts")

    assert scale.ticks[0] <= low
    assert scale.ticks[-1] >= high
    assert 2 <= len(scale.ticks) <= 8


def check(chart: Chart) -> None:
    """Its numbers are finite, and within the canvas."""
    for _, path in chart.paths:
        points = [tuple(map(float, point.split())) for point in re.split("[ML]", path) if point]
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert all(0 <= shade.left <= shade.right <= 1 for shade in chart.shades)
    assert all(0 <= at <= 1 for at, _ in chart.marks)


def read(*lines: dict[str, Any]) -> list[tuple[Entry, str]]:
    """The events of a journal with these lines."""
    decoder = Decoder()
    entries = (decoder.entry(json.dumps(line).encode()) for line in lines)
    return [(entry, "") for entry in entries if entry is not None]


def journal(*events: tuple[str, float, dict[str, Any]], run: str = "r1") -> list[tuple[Entry, str]]:
    """Events of one run at seconds after T0."""
    return read(*({"event": name, "t": T0 + at_s, "run": run, **details} for name, at_s, details in events))


STARTED = {"workdir": "w", "device": "cpu", "outputs": ["out"]}
ATTEMPT = {"output": "out", "chunk": 0, "attempt": 1}
ENDED = {"device": 0, "startup_s": 5.0, "idle_s": 2.0, "busy_s": 10.0, "texts": 100, "tokens": 900}
COMMITTED = {
    "output": "out",
    "chunk": 0,
    "texts": 100,
    "texts_done": 100,
    "chunks_done": 1,
    "chunks": 1,
    "attempt_ok": True,
    "tokens": 900,
    "padded_tokens": 1200,
}
GO = {"rows": 32, "tokens": 4096, "tiers": [{"min_length": 64, "rows": 8, "tokens": 1024}]}


def test_history_of_a_success() -> None:
    """Texts count while their attempt had the device, and what start-up cost is added up."""
    history = read_history(
        journal(
            ("run_started", 0, STARTED),
            ("attempt_started", 5, {**ATTEMPT, "device": 3}),
            ("go", 10, {**ATTEMPT, **GO}),
            ("worker_ended", 20.5, {**ATTEMPT, **ENDED, "returncode": 0}),
            ("chunk_committed", 21, {**COMMITTED, "phase_s": {"forward": 9.0}}),
            ("run_ended", 22, {"code": 0}),
        )
    )

    (run,) = history.runs
    assert (run.start_s, run.stop_s, run.ending) == (T0, T0 + 22, Halted(0))
    (span,) = history.attempts.spans()
    assert (span.device, span.start_s, span.stop_s, span.kind) == ("3", T0 + 10, T0 + 20, Kind.DONE)
    assert [each.total for _, each in history.texts.items()] == pytest.approx([10.0] * 10)
    assert (history.times.startup_s, history.times.idle_s, history.times.busy_s) == (5.0, 2.0, 10.0)
    assert history.phase_s["forward"] == 9.0
    assert history.ceilings == [(T0 + 10, Ceiling(32, 4096, 8, 1024))]


def test_history_of_a_failure_and_a_kill() -> None:
    """A failure has its last reason; an attempt that was cut off with its run was interrupted when that ended."""
    failed = {**ATTEMPT, "outcome": "gpu_oom", "rule": "gpu-out-of-memory", "reason": "too much", "phase": "forward"}
    history = read_history(
        [
            *journal(
                ("go", 1, {**ATTEMPT, **GO}),
                ("worker_ended", 2, {**ATTEMPT, **ENDED, "returncode": 20}),
                ("attempt_failed", 2, failed),
                ("go", 3, {**ATTEMPT, **GO, "attempt": 2}),
                ("note", 9, {"text": "x"}),
            ),
            *journal(("invoked", 1000, {"workdir": "w"}), ("go", 1001, {**ATTEMPT, **GO}), run="r2"),
        ]
    )

    assert [span.kind for span in history.attempts.spans()] == [Kind.MEMORY, Kind.STOPPED, Kind.STOPPED]
    tried = [span.words for span in history.attempts.spans()]
    assert tried == ["out chunk 0, attempt 1: gpu_oom", "out chunk 0, attempt 2", "out chunk 0, attempt 1 in run 2"]
    assert history.attempts.spans()[1].stop_s == T0 + 9
    (failure,) = history.failures.values()
    assert (failure.count, failure.last.reason, failure.last.chunk, failure.last.attempt) == (1, "too much", 0, 1)
    assert [(run.run_id, run.number) for run in history.runs] == [("r1", 1), ("r2", 2)]


def test_chunks_in_parts_are_counted_once() -> None:
    """A chunk that was taken apart counts its parts when they were computed, and the rest when it is committed."""
    history = read_history(
        journal(
            ("go", 1, {**ATTEMPT, **GO}),
            ("worker_ended", 2, {**ATTEMPT, **ENDED, "returncode": 0}),
            ("part_committed", 3, {**ATTEMPT, "start": 0, "stop": 60}),
            ("chunk_committed", 9, {**COMMITTED, "attempt_ok": False}),
        )
    )

    totals = {start_s: each.total for start_s, each in history.texts.items()}
    assert sum(totals.values()) == 100
    assert totals[T0 + 9] == 40


def test_parts_tell_what_they_took() -> None:
    """Texts, tokens and phases of a chunk of which a killed run had encoded some are those of both runs."""
    part = {"start": 0, "stop": 100, "texts": 60, "tokens": 540, "padded_tokens": 600, "phase_s": {"forward": 9.0}}
    history = read_history(
        [
            *journal(("go", 1, {**ATTEMPT, **GO})),
            *journal(
                ("batches_kept", 3, {**ATTEMPT, "texts": 40, "tokens": 360, "padded_tokens": 400}),
                ("go", 4, {**ATTEMPT, **GO, "attempt": 2}),
                ("worker_ended", 8, {**ATTEMPT, **ENDED, "attempt": 2, "returncode": 0}),
                ("part_committed", 9, {**ATTEMPT, **part}),
                (
                    "chunk_committed",
                    9,
                    {**COMMITTED, "attempt_ok": False, "tokens": 0, "padded_tokens": 0, "texts_before": 40},
                ),
                run="r2",
            ),
        ]
    )

    assert (history.texts_done, history.tokens, history.padded_tokens) == (100, 900, 1000)
    assert history.phase_s == {"forward": 9.0}


GOOD = {**STARTED, **ENDED, "code": 1, "outcome": "crashed", "row": 1}
NONSENSE: list[Any] = [None, -1, 1e400, float("nan"), "x" * 100_000, [], {}, [[1]], {"a": {}}, True, 1 << 80]


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize(
    "name",
    [
        "run_started",
        "go",
        "worker_ended",
        "chunk_committed",
        "part_committed",
        "attempt_failed",
        "quarantined",
        "halted",
    ],
)
def test_no_nonsense_in_a_journal_hurts(name: str, value: Any) -> None:
    """Whatever stands under the keys of an event, the history can be told and drawn."""
    keys = {*ATTEMPT, *ENDED, *COMMITTED, *GO, "phase_s", "code", "what", "outcome", "rule", "reason", "row", "start"}
    sound = journal(
        ("run_started", 0, STARTED), ("go", 1, {**ATTEMPT, **GO}), ("worker_ended", 2, {**ATTEMPT, **ENDED})
    )
    odd = [{"event": name, "t": T0 + 3, "run": value, **dict.fromkeys(keys, value)}]
    odd += [
        {"event": name, "t": T0 + 3, "run": value, **ATTEMPT, **COMMITTED, **GO, **GOOD, key: value} for key in keys
    ]
    odd_times = [{"event": name, "t": value, "run": "r1", **ATTEMPT, **COMMITTED, **GO, **GOOD}]

    history = read_history([*sound, *read(*odd, *odd_times), *sound])

    for chart in Charts(history, SensorCurves()).all():
        check(chart)


def test_history_is_bounded() -> None:
    """A million different failures, runs and notes would take no more room than some hundred."""
    events = []
    for number in range(3000):
        attempt = {**ATTEMPT, "chunk": number}
        events += journal(
            ("go", number, {**attempt, **GO, "rows": number + 1}),
            ("worker_ended", number + 0.5, {**attempt, **ENDED, "returncode": 1}),
            ("attempt_failed", number + 0.6, {**attempt, "outcome": f"o{number}", "rule": "r", "reason": "x" * 9000}),
            ("quarantined", number + 0.7, {"output": "out", "row": number}),
            ("waiting", number + 0.8, {"delay_s": 1, "reason": "y" * 9000}),
            run=f"r{number}",
        )

    history = read_history(events)

    assert len(history.runs) <= 200
    assert history.runs_left_out == 2800
    assert len(history.failures) <= 41
    assert history.failed == 3000
    assert len(history.attempts.spans()) <= 2000
    assert len(history.quarantined) <= 200
    assert len(history.notes) <= 201
    assert len(history.ceilings) <= 400


DONE = OutputStatus(rows=10, rows_done=10, chunks=1, chunks_done=1, complete=True)
STATUS = Status(State.COMPLETE, 1, {"out": DONE}, {}, None, None)
HALT = Halted(78, what="no such column", why="typed wrongly", remedy="mend it", log="/x/worker.log")


def ended(ending: Halted, **values: Any) -> Run:
    """A run that ended so."""
    return Run("r", T0, T0 + 1, ending=replace(ending, **values))


@pytest.mark.parametrize(
    ("status", "runs", "failed", "mood", "title", "worry", "todo"),
    [
        pytest.param(STATUS, [], 0, Mood.GOOD, "Complete", "every row has its vector", "", id="complete"),
        pytest.param(
            STATUS, [], 2, Mood.GOOD, "Complete", "2 attempts failed on the way", "", id="complete-with-failures"
        ),
        pytest.param(
            replace(STATUS, outputs={"out": replace(DONE, quarantined=1)}),
            [],
            3,
            Mood.CARE,
            "Complete, but 1 row has no vector",
            "see Rows without a vector",
            "chunkvisor retry",
            id="quarantine",
        ),
        pytest.param(
            replace(STATUS, state=State.RUNNING, eta_s=7200.0),
            [],
            0,
            Mood.GOOD,
            "2.0 h left",
            "Nothing",
            "",
            id="running",
        ),
        pytest.param(
            replace(STATUS, state=State.RUNNING), [], 9, Mood.CARE, "Running", "9 of 9 attempts", "below", id="failing"
        ),
        pytest.param(
            replace(STATUS, state=State.HALTED),
            [ended(HALT)],
            0,
            Mood.BAD,
            "exit code 78",
            "No such column.",
            "Mend it.",
            id="halted",
        ),
        pytest.param(
            replace(STATUS, state=State.HALTED),
            [ended(HALT, code=75)],
            0,
            Mood.CARE,
            "exit code 75",
            "Typed wrongly.",
            "Mend it.",
            id="passing",
        ),
        pytest.param(
            replace(STATUS, state=State.STOPPED),
            [Run("r", T0, T0)],
            0,
            Mood.CARE,
            "Stopped",
            "killed",
            "same command",
            id="killed",
        ),
        pytest.param(
            replace(STATUS, state=State.STOPPED),
            [ended(HALT, code=3)],
            0,
            Mood.CARE,
            "Stopped",
            "without a vector again",
            "same command",
            id="retried",
        ),
        pytest.param(
            replace(STATUS, state=State.STOPPED), [], 0, Mood.CARE, "Stopped", "killed", "again", id="no-journal"
        ),
        pytest.param(
            replace(STATUS, state=State.STOPPED),
            [ended(HALT, code=143, what="stopped by SIGTERM")],
            0,
            Mood.CARE,
            "Stopped",
            "SIGTERM",
            "again",
            id="terminated",
        ),
    ],
)
def test_headline(status: Status, runs: list[Run], failed: int, mood: Mood, title: str, worry: str, todo: str) -> None:
    """The first lines say how it stands, whether to worry, and what to do where there is something."""
    history = History(runs=runs)
    if failed:
        history.failures["crashed", ""] = Failure(AttemptFailed("out", 0, 1, "crashed"), T0, failed)
        status = replace(status, attempts={"crashed": failed})

    found = headline(status, history, T0)

    assert found.mood is mood
    assert title in found.title
    assert worry in found.worry
    assert todo in found.todo
    assert bool(todo) == bool(found.todo)


def test_a_stall_is_a_reason_to_worry() -> None:
    """A run without a chunk for very long says so, and what is usual."""
    history = read_history(journal(*(("chunk_committed", at_s, COMMITTED) for at_s in (0, 60, 120))))

    found = headline(replace(STATUS, state=State.RUNNING), history, T0 + 7200)

    assert found.mood is Mood.CARE
    assert "No chunk was committed for" in found.worry
    assert "60 s" in found.worry


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m\x07", "red"),
        ("a\x00b\x9fc\u202ed", "abcd"),
        ("HF_TOKEN=hf_abcdefghij", "HF_TOKEN=***"),
        ("lone \udcff surrogate", "lone ? surrogate"),
        ("x" * 5000, "x" * 1000 + " …"),
    ],
)
def test_texts_are_cleaned(text: str, expected: str) -> None:
    """Control characters, tokens and endless lines do not get into a page."""
    assert clean(text) == expected


def test_a_long_wait_takes_no_room() -> None:
    """A run that has committed one chunk in a month has a chart as small as that of any other."""
    history = read_history(
        journal(("chunk_committed", 1, COMMITTED), ("note", 30 * 86400, {"text": "x"}), ("run_ended", 31 * 86400, {}))
    )

    (throughput,) = Charts(history, SensorCurves()).all()

    assert sum(len(path) for _, path in throughput.paths) < 20_000
    assert history.texts.width_s > 3600


def reading(at_s: float, used_bytes: int) -> SensorLine:
    """A line of the sensors."""
    gpu = GpuReading(0, used_bytes, 80 << 30, 90.0, temperature_c=61.0)
    worker = ProcessReading(7, 1 << 30, 3 << 30)
    return SensorLine(T0 + at_s, (gpu,), (worker, worker), ProcessReading(1, 50 << 20), HostReading(5 << 30))


def test_charts_of_a_run_with_a_gpu() -> None:
    """A run with sensors has charts of GPUs and memory as well, and a kill shows as a pause."""
    first = journal(
        ("run_started", 0, STARTED),
        ("attempt_started", 0, {**ATTEMPT, "device": 0}),
        ("go", 1, {**ATTEMPT, **GO}),
        ("worker_ended", 1, {**ATTEMPT, **ENDED, "returncode": 1}),
        ("attempt_started", 1, {**ATTEMPT, "attempt": 2, "device": 0}),
        ("go", 1, {**ATTEMPT, "attempt": 2, **GO}),
        ("worker_ended", 9, {**ATTEMPT, **ENDED, "attempt": 2, "returncode": 0}),
        ("chunk_committed", 9, {**COMMITTED, "attempt": 2}),
    )
    second = journal(("go", 5000, {**ATTEMPT, **GO, "rows": 4}), ("run_ended", 5010, {"code": 0}), run="r2")
    sensors = SensorCurves()
    for second_s in range(0, 30, 5):
        sensors.take(reading(second_s, 20 << 30))

    charts = Charts(read_history([*first, *second]), sensors)
    made = {chart.title: chart for chart in charts.all()}

    assert list(made) == [
        "Throughput",
        "Attempts",
        "GPU memory",
        "GPU utilisation",
        "Host memory",
        "Batch ceiling",
    ]
    assert len(made["Attempts"].shades) >= 2
    assert all(shade.width * WIDTH >= 4 for shade in made["Attempts"].shades), "however short, it is seen"
    assert [pause.words for pause in charts.timeline.pauses()] == ["not running for 83 min"]
    assert charts.timeline.running_s == pytest.approx(25 + 10)  # the sensors know that the first run lived for 25 s
    few = SensorCurves()
    for second_s in range(0, 10, 5):
        few.take(reading(second_s, 20 << 30))
    assert "Host memory" not in {chart.title for chart in Charts(read_history([*first, *second]), few).all()}
    assert "3.0 GiB" in made["Host memory"].note
    assert "5.0 GiB stayed available" in made["Host memory"].note
    assert any("61 °C" in words for _, words in made["GPU memory"].legend)
    assert [words for _, words in made["Batch ceiling"].legend] == [
        "short texts",
        "the longest texts, after an out-of-memory fault",
    ]


def test_the_slowest_chunks_and_time_by_length() -> None:
    """The ten slowest chunks are kept, all attempts at each added up; time is counted by the tokens of a text."""
    costs = Costs()
    for chunk in range(1000):
        for attempt in range(1, 3 if chunk == 7 else 2):
            seconds = 500.0 if chunk == 7 else float(chunk % 100)
            costs.ended(WorkerEnded("out", chunk, attempt, busy_s=seconds, texts=10, tokens=200))
        costs.committed(ChunkCommitted("out", chunk, 10, 0, 0, 0), float(chunk))
    slowest = costs.slowest()
    assert [(cost.chunk, cost.seconds, cost.attempts) for cost in slowest[:2]] == [(7, 1000.0, 2), (999, 99.0, 1)]
    assert len(slowest) == 10
    assert costs.chunks == 1000
    assert [(bar.label, bar.amount) for bar in cost_bars(costs.by_length)] == [("16 to 31", 50_493.0)]


def test_chunks_of_the_same_number_are_told_apart() -> None:
    """After an update another chunk has number 0: both are told with the time of their end, and share no attempt."""
    costs = Costs()
    costs.ended(WorkerEnded("out", 0, 1, busy_s=5.0))
    costs.committed(ChunkCommitted("out", 0, 10, 0, 0, 0), 10.0)
    costs.ended(WorkerEnded("out", 1, 1, busy_s=100.0))  # given up with its generation
    costs.took(GenerationBegun("out", 2, 10, 12), 20.0)
    for chunk in (0, 1):
        costs.ended(WorkerEnded("out", chunk, 1, busy_s=4.0 - chunk))
        costs.committed(ChunkCommitted("out", chunk, 10, 0, 0, 0), 30.0 + chunk)
    assert [(cost.chunk, cost.seconds, cost.done_s) for cost in costs.slowest()] == [
        (0, 5.0, 10.0),
        (0, 4.0, 30.0),
        (1, 3.0, 31.0),
    ]


def test_generations_and_reuse_stand_together() -> None:
    """What an output reuses after its source has changed is told with that generation; of another one, by itself."""
    costs = Costs()
    costs.took(GenerationBegun("a", 2, 10, 12), 1.0)
    costs.took(GenerationBegun("c", 3, 7, 8), 1.0)
    costs.took(TextsReused("a", 12, 10, 2), 2.0)
    costs.took(TextsReused("c", 8, 7, 1), 2.0)
    costs.took(TextsReused("b", 5, 5, 0), 3.0)
    found = [(each.output, each.generation, each.reuse.taken if each.reuse else None) for each in costs.taken]
    assert found == [("a", 2, 10), ("c", 3, 7), ("b", 0, 5)]
