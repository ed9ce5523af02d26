"""Gathers what a report shows from the folder, and makes the page of it.

It never fails for what is missing or damaged: that part is left out, or says so.
"""

import contextlib
import functools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

from chunkvisor.assemble.manifest import read_quarantined
from chunkvisor.events.journal import Entry, read_events
from chunkvisor.observe.report.attemptspans import kind_of
from chunkvisor.observe.report.figures import Figures
from chunkvisor.observe.report.headline import headline
from chunkvisor.observe.report.history import History, read_history
from chunkvisor.observe.report.lengths import Lengths, lengths_of
from chunkvisor.observe.report.readings import read_readings
from chunkvisor.observe.report.trouble import clean, troubles
from chunkvisor.observe.status import State, Status, read_status
from chunkvisor.store.fixed import read_facts
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.store.runfolders import all_runs
from chunkvisor.store.seal import DamagedError
from chunkvisor.units import human_bytes, human_moment, human_time
from chunkvisor.version import __version__
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import read_bounded, write_atomic

_ROWS, _RUNS, _CONFIG_CHARS = 100, 25, 20_000
_PHASES = {
    "start": "start of the interpreter",
    "import": "imports",
    "model_load": "loading the model",
    "tokenize": "tokenising",
    "ready": "ready, waiting for the device",
    "cuda_init": "starting CUDA",
    "weights_copy": "copying the weights to the device",
    "forward": "encoding",
    "write": "writing vectors",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar chart."""

    label: str
    share: float
    """Of the longest, from 0 to 1."""
    value: str
    css: str = "s1"


def history_bytes(workdir: Path) -> int:
    """Bytes that a report has to read, about."""
    layout = Layout(workdir)
    paths = [*(run.events for run in all_runs(layout)), *(files.sensors for files in _invocations(layout))]
    return sum(path.stat().st_size for path in paths if path.is_file())


def write_report(workdir: Path, path: Path) -> None:
    """Make the page and put it there by one rename. Raises Halt (78) where the folder is no workdir, OSError."""
    write_atomic(path, render(workdir, time.time()).encode(errors="replace"), durable=False)


def render(workdir: Path, now_s: float) -> str:
    """The page as HTML; `now_s` is the time that it is written at. Raises Halt (78) where the folder is no workdir."""
    return str(_template().render(_content(workdir, now_s)))


@functools.cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("chunkvisor.observe.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(human_time=_duration, human_bytes=human_bytes, when=human_moment)
    return environment.get_template("page.html.j2")


def _content(workdir: Path, now_s: float) -> dict[str, Any]:
    status = read_status(workdir)  # first: it refuses what is no workdir
    layout = Layout(workdir)
    history = read_history(_events(layout))
    invocations = _invocations(layout)
    readings = read_readings(files.sensors for files in invocations)
    figures = Figures(history, readings)
    rows = sum(output.rows for output in status.outputs.values())
    rows_done = sum(output.rows_done for output in status.outputs.values())
    return {
        "name": clean(workdir.absolute().name, 100),
        "workdir": clean(str(workdir.absolute())),
        "now_s": now_s,
        "version": __version__,
        "head": headline(status, history, now_s),
        "live_runs": _live_runs(status, history),
        "status": status,
        "rows": rows,
        "rows_done": rows_done,
        "rate": history.texts_done / figures.running_s if figures.running_s else None,
        "rows_per_s": status.rows_per_s,
        "running_s": figures.running_s,
        "failed": sum(failure.count for failure in history.failures.values()),
        "committed": history.outcomes[Outcome.COMMITTED],
        "quarantined": sum(output.quarantined for output in status.outputs.values()),
        "figures": list(figures.all()),
        "paused": figures.paused,
        "outcomes": list(_outcome_bars(history)),
        "phases": list(_phase_bars(history)),
        "history": history,
        "hidden_s": max(0.0, history.startup_s - history.idle_s),
        "padding": 1 - history.tokens / history.padded_tokens if history.padded_tokens else None,
        "lengths": [
            (each, _length_bars(each))
            for name in status.outputs
            if (each := lengths_of(layout.output(name))) is not None
        ],
        "troubles": list(troubles(history, layout, status.outputs)),
        "bad_rows": list(islice(_bad_rows(layout, history, list(status.outputs)), _ROWS + 1)),
        "bad_rows_shown": _ROWS,
        "notes": [(at_s, clean(words)) for at_s, words in history.notes[-20:]],
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


def _outcome_bars(history: History) -> Iterator[Bar]:
    most, total = max(history.outcomes.values(), default=0), sum(history.outcomes.values())
    for outcome, count in history.outcomes.most_common(20):
        if count:
            words = f"{count:,} ({_percent(count / total)})"
            yield Bar(clean(outcome, 40), count / most, words, f"k-{kind_of(outcome)}")


def _phase_bars(history: History) -> Iterator[Bar]:
    most = max(history.phase_s.values(), default=0.0)
    order = {name: place for place, name in enumerate(_PHASES)}
    for name, seconds in sorted(history.phase_s.items(), key=lambda item: order.get(item[0], 99)):
        if seconds > 0 and name != "done":
            css = "s2" if name == "ready" else "s1"
            yield Bar(_PHASES.get(name, clean(name, 40)), seconds / most, _duration(seconds), css)


def _length_bars(lengths: Lengths) -> list[Bar]:
    bins = list(dropwhile(lambda each: not each.count, lengths.distribution.bins))
    most = max((each.count for each in bins), default=0)
    return [
        Bar(
            f"{each.low:,} to {each.high:,}",
            each.count / most if most else 0.0,
            _percent(each.count / lengths.distribution.count),
        )
        for each in bins
    ]


def _bad_rows(layout: Layout, history: History, outputs: list[str]) -> Iterator[dict[str, Any]]:
    """Rows in quarantine: from the record of a finished output, else from the journal."""
    for name in outputs:
        try:
            found = read_quarantined(layout.output(name))
        except (DamagedError, OSError):
            found = None
        if found is None:
            found = [event.details() for (output, _), event in history.quarantined.items() if output == name]
        for row in found:
            cleaned = {key: clean(str(row.get(key, ""))) for key in ("row", "place", "outcome", "reason")}
            yield {"output": name, **cleaned}


def _versions(layout: Layout, outputs: list[str], invocations: list[InvocationFiles]) -> Iterator[tuple[str, str]]:
    """(what, which), of the newest invocation and of the workers."""
    around = _json(invocations[-1].environment) if invocations else {}
    for key in ("chunkvisor", "python", "system", "host", "cores", "nvidia_driver"):
        if (value := around.get(key)) is not None:
            yield key.replace("_", " "), clean(str(value), 200)
    if type(memory := around.get("memory_bytes")) is int:
        yield "memory", human_bytes(memory)
    packages = around.get("packages")
    for name, version in packages.items() if isinstance(packages, dict) else ():
        yield clean(str(name), 60), clean(str(version), 60)
    seen: set[tuple[str, str]] = set()
    for output in outputs:
        facts = read_facts(layout.output(output))
        for name, version in facts.versions.items() if facts is not None else ():
            if (name, version) not in seen:
                seen.add((name, version))
                yield f"worker: {clean(name, 60)}", clean(version, 60)


def _config(invocations: list[InvocationFiles]) -> str:
    """The effective config of the newest invocation; secrets were left out when it was written."""
    for files in reversed(invocations):
        if (data := read_bounded(files.config)) is not None:
            return "\n".join(clean(line, 300) for line in data[:_CONFIG_CHARS].decode(errors="replace").splitlines())
    return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_bounded(path) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _percent(share: float) -> str:
    return "< 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def _duration(seconds: float) -> str:
    return human_time(seconds) if seconds >= 10 or not seconds else f"{seconds:.2g} s"
