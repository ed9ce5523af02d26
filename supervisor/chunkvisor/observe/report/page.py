"""Gathers what a report shows from the folder, and makes the page of it; what is missing or damaged is left out."""

import contextlib
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from chunkvisor.assemble.badreasons import reasons_of
from chunkvisor.assemble.manifest import read_done_manifest
from chunkvisor.events.journal import Entry, read_events
from chunkvisor.ingest.peek import peek
from chunkvisor.observe.report.bars import cost_bars, lengths_of, outcome_bars, phase_bars
from chunkvisor.observe.report.chart import HEIGHT, WIDTH
from chunkvisor.observe.report.charts import Charts
from chunkvisor.observe.report.headline import headline
from chunkvisor.observe.report.history import History, read_history
from chunkvisor.observe.report.sensorcurves import read_sensors
from chunkvisor.observe.report.template import page_template
from chunkvisor.observe.report.trouble import clean, troubles
from chunkvisor.observe.status import State, Status, read_status
from chunkvisor.store.fixed import read_facts
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.store.runfolders import all_runs
from chunkvisor.store.seal import DamagedError
from chunkvisor.store.target import check_target
from chunkvisor.units import human_bytes
from chunkvisor.version import __version__
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import PRIVATE, read_bounded, write_atomic

_ROWS, _REASONS, _RUNS, _NOTES, _CONFIG_CHARS, _TEXT_BYTES = 100, 5, 25, 20, 20_000, 400


def history_bytes(workdir: Path) -> int:
    """Bytes that a report has to read, about."""
    layout = Layout(workdir)
    paths = [*(run.events for run in all_runs(layout)), *(files.sensors for files in _invocations(layout))]
    return sum(path.stat().st_size for path in paths if path.is_file())


def write_report(workdir: Path, path: Path, mode: int = PRIVATE) -> None:
    """Make the page and put it there by one rename.

    Raises Halt (78) where the folder is no workdir, or where anything but a page of ours is at that place; OSError.
    """
    check_target(path, "the report", lambda head: b'<meta name="generator" content="chunkvisor">' in head)
    write_atomic(path, render(workdir, time.time()).encode(errors="replace"), durable=False, mode=mode)


def render(workdir: Path, now_s: float) -> str:
    """The page as HTML; `now_s` is the time that it is written at. Raises Halt (78) where the folder is no workdir."""
    status = read_status(workdir)  # first: it refuses what is no workdir
    return str(page_template().render(_content(workdir.absolute(), status, now_s)))


def _content(workdir: Path, status: Status, now_s: float) -> dict[str, Any]:
    layout = Layout(workdir)
    history = read_history(_events(layout))
    invocations = _invocations(layout)
    charts = Charts(history, read_sensors(files.sensors for files in invocations))
    outputs = [layout.output(name) for name in status.outputs]
    live = _live_runs(status, history)
    lacking = [name for name, each in status.outputs.items() if each.quarantined]
    return {
        "name": workdir.name,
        "workdir": workdir,
        "now_s": now_s,
        "version": __version__,
        "head": headline(status, history, now_s),
        "live_runs": live,
        "killed": [run for run in history.runs if run.ending is None and run.run_id not in live],
        "status": status,
        "rows": sum(output.rows for output in status.outputs.values()),
        "estimated": any(output.estimated for output in status.outputs.values()),
        "rows_done": sum(output.rows_done for output in status.outputs.values()),
        "quarantined": sum(output.quarantined for output in status.outputs.values()),
        "committed": status.attempts.get(Outcome.COMMITTED, 0),
        "timeline": charts.timeline,
        "width": WIDTH,
        "height": HEIGHT,
        "charts": list(charts.all()),
        "outcomes": outcome_bars(status.attempts),
        "phases": list(phase_bars(history.phase_s)),
        "lengths": list(lengths_of(outputs)),
        "history": history,
        "costs": history.costs,
        "length_costs": list(cost_bars(history.costs.by_length)),
        "troubles": list(troubles(history, layout, status.outputs, ended=status.state is State.HALTED)),
        "reasons": reasons_of(row for _, row in _recorded(layout, history, lacking)),
        "bad_rows": list(islice(_bad_rows(layout, history, lacking), _ROWS + 1)),
        "bad_rows_shown": _ROWS,
        "bad_reasons_shown": _REASONS,
        "notes": history.notes[-_NOTES:],
        "runs": history.runs[-_RUNS:],
        "runs_left_out": history.runs_left_out + max(0, len(history.runs) - _RUNS),
        "versions": list(_versions(layout, list(status.outputs), invocations)),
        "config": _config(invocations),
    }


def _events(layout: Layout) -> Iterator[tuple[Entry, str]]:
    """Each with its slice; journal after journal, since there may be more slices than files one may open."""
    for run in all_runs(layout):
        for entry in read_events(run.events):
            yield entry, str(run.slice or "")


def _live_runs(status: Status, history: History) -> set[str]:
    """Ids of the runs that are at work: the last one, or that of each slice that is."""
    if not status.slices:
        return {run.run_id for run in history.runs[-1:] if status.state is State.RUNNING}
    live = {each.slice for each in status.slices if each.state is State.RUNNING}
    return set({run.slice: run.run_id for run in history.runs if run.slice in live}.values())


def _invocations(layout: Layout) -> list[InvocationFiles]:
    """Folders of the invocations, oldest first; those of slices behind the others."""
    found: list[Path] = []
    for run in all_runs(layout):
        with contextlib.suppress(OSError):
            found += sorted(path for path in run.invocations.iterdir() if path.is_dir() and not path.is_symlink())
    return [InvocationFiles(path) for path in found]


def _bad_rows(layout: Layout, history: History, outputs: list[str]) -> Iterator[dict[str, Any]]:
    """Rows in quarantine, each with its output and its text."""
    for name, row in _recorded(layout, history, outputs):
        yield {**row, "output": name, "text": _text_of(layout.output(name).table, row)}


def _recorded(layout: Layout, history: History, outputs: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows in quarantine by output: from the record of a finished output, else from the journal."""
    for name in outputs:
        try:
            manifest = read_done_manifest(layout.output(name))
        except (DamagedError, OSError):
            manifest = None
        if manifest is not None:
            found = manifest["quarantined"]
        else:
            found = [event.details() for event in history.quarantined.values() if event.output == name]
        yield from ((name, row) for row in found)


def _text_of(table: Path, row: dict[str, Any]) -> str | None:
    number = row.get("row")
    return peek(table, number, _TEXT_BYTES) if type(number) is int and number >= 0 else None


def _versions(layout: Layout, outputs: list[str], invocations: list[InvocationFiles]) -> Iterator[tuple[str, str]]:
    """(what, which), of the newest invocation and of the workers."""
    around = _json(invocations[-1].environment) if invocations else {}
    for key in ("chunkvisor", "python", "system", "host", "cores", "nvidia_driver"):
        if (value := around.get(key)) is not None:
            yield key.replace("_", " "), str(value)
    if type(memory := around.get("memory_bytes")) is int:
        yield "memory", human_bytes(memory)
    if isinstance(packages := around.get("packages"), dict):
        yield from packages.items()
    facts = (read_facts(layout.output(name)) for name in outputs)
    yield from dict.fromkeys(
        (f"worker: {name}", which) for each in facts if each for name, which in each.versions.items()
    )


def _config(invocations: list[InvocationFiles]) -> str:
    """The effective config of the newest invocation; secrets were left out when it was written."""
    found = (data for files in reversed(invocations) if (data := read_bounded(files.config)) is not None)
    lines = next(found, b"")[:_CONFIG_CHARS].decode(errors="replace").splitlines()
    return "\n".join(clean(line, 300) for line in lines)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_bounded(path) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
