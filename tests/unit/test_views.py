"""What every view makes of journals: of those of the version before typed events, and of one with every event.

`journals/*.jsonl` were written by that version (`rare.jsonl` by hand, line for line as it wrote them); beside each lies
what its views made of it.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.events.journal import Entry, read_events, read_state
from chunkvisor.events.state import RunState
from chunkvisor.observe.metrics import Metrics
from chunkvisor.observe.notices import Notices
from chunkvisor.observe.observer import Observer
from chunkvisor.observe.progress import closing_line, progress_line
from chunkvisor.observe.readings import Readings
from chunkvisor.observe.record import ending_of, figures_of
from chunkvisor.observe.runview import snapshot_of
from chunkvisor.observe.systemd import Systemd
from chunkvisor.store.layout import Layout
from harness import ROOT

JOURNALS = sorted((ROOT / "tests" / "journals").glob("*.jsonl"))
each_journal = pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)


def views_of(path: Path) -> dict[str, Any]:
    """What the version before made of the journal."""
    found: dict[str, Any] = json.loads(path.with_suffix(".views.json").read_text())
    return found


def plain(value: object) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(value))


def states(path: Path) -> Iterator[tuple[Entry, RunState]]:
    """Each event, with the state after it."""
    state = RunState()
    for entry in read_events(path):
        state.apply(entry.event, entry.t)
        yield entry, state


def runs(path: Path) -> list[list[Entry]]:
    """The events of each run."""
    found: dict[str, list[Entry]] = {}
    for entry in read_events(path):
        found.setdefault(entry.run, []).append(entry)
    return list(found.values())


def hear(observer: Observer, run: list[Entry]) -> RunState:
    """Let the observer hear of a run, as one that does it would."""
    state = RunState()
    for entry in run:
        state.apply(entry.event, entry.t)
        observer.event(entry.event, state)
    return state


def figures(lines: Iterable[str]) -> dict[str, float]:
    """By name and labels."""
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@each_journal
def test_status(path: Path) -> None:
    """Attempts of all runs, devices, rates, wanted outputs and the last words."""
    state, before = read_state(path)[0], views_of(path)["status"]
    attempts = dict(state.attempts_before)
    for outcome, count in state.attempts.items():
        attempts[outcome] = attempts.get(outcome, 0) + count
    assert attempts == before["attempts"]
    # Of which these journals do not tell.
    later = {"padded_tokens": 0, "padding_share": None}
    devices = {number: each | later for number, each in before["devices"].items()}
    assert plain({number: asdict(times) for number, times in state.device_times.items()}) == devices
    assert (state.texts_per_s, state.told_s) == (before["texts_per_s"], before["told_s"])
    assert list(state.wanted) == before["wanted"]
    assert {name: asdict(share) for name, share in state.shares.items()} == before["shares"]
    assert (state.ending and state.ending.code) == (before["ending"] and before["ending"]["code"])
    said = {name: words for name, words in (before["ending"] or {}).items() if words}
    assert not state.ending or {key: value for key, value in state.ending.details().items() if value} == said


@each_journal
def test_live_view(path: Path) -> None:
    """Stage, progress, rates, time left, worries, and who works on which device, after every event."""
    seen = []
    for entry, state in states(path):
        now = snapshot_of(state, entry.t, Readings())
        devices = [
            f"{device.label}: "
            + ", ".join(f"{each.output} {each.chunk} {each.phase} {each.batch_rows}" for each in device.workers)
            for device in now.devices
        ]
        seen.append([entry.event.name, progress_line(now), now.health.marked, devices])
    known = [view for view in views_of(path)["progress"] if view[0] != "what_is_this"]
    assert seen == known
    assert closing_line(now) == views_of(path)["closing"]


@each_journal
def test_lines(path: Path) -> None:
    """The words and the severity of every event, and the last of them."""
    lines = [[entry.event.severity.name, entry.event.line] for entry in read_events(path) if entry.event.line]
    assert lines == views_of(path)["lines"]
    assert [line.words for line in read_state(path)[0].last_lines] == views_of(path)["last_news"]


@each_journal
def test_summary(path: Path) -> None:
    """What `summary.json` says of each run."""
    for run, before in zip(runs(path), views_of(path)["runs"], strict=True):
        state = hear(Observer(), run)
        assert plain({**ending_of(state), **figures_of(state)}) == before["summary"]


@each_journal
def test_metrics(path: Path) -> None:
    """Every figure, by name and labels."""
    client = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed (extra: metrics)")
    for run, before in zip(runs(path), views_of(path)["runs"], strict=True):
        metrics = Metrics(path.parent / "nowhere" / "file.prom")
        hear(metrics, run)
        lines = client.generate_latest(metrics.registry).decode().splitlines()
        known = [line for line in before["metrics"] if "build_info" not in line]
        passed_over = ("#", "chunkvisor_build_info")
        found = [line for line in lines if not line.startswith(passed_over) and "_created" not in line]
        # Sums are rounded at every step now, which they were not.
        assert figures(line for line in found if "timestamp" not in line) == pytest.approx(figures(known))


@each_journal
def test_systemd(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a service manager is told."""
    monkeypatch.setattr("chunkvisor.observe.systemd._STATUS_S", -1)
    for run, before in zip(runs(path), views_of(path)["runs"], strict=True):
        manager, sent = Systemd("@nobody", None), list[str]()
        monkeypatch.setattr(manager, "_send", lambda message, sent=sent: sent.append(message) or True)
        hear(manager, run)
        assert sent == before["systemd"]


@each_journal
def test_notices(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What people elsewhere are told."""
    for run, before in zip(runs(path), views_of(path)["runs"], strict=True):
        notices, sent = Notices(["json://localhost"], Layout(Path("/place/work")), None), list[list[str]]()
        monkeypatch.setattr(
            notices, "_send", lambda what, body, sent=sent: sent.append([what, body.partition("after ")[0].strip()])
        )
        hear(notices, run)
        # How long it took is that of the journal now; before, that of this test.
        assert sent == [[what, body.partition("after ")[0].strip()] for what, body in before["notices"]]
