"""How far a workdir is, read from its folder alone, without the lock: beside a live run or after any end."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from chunkvisor.events.progress import DeviceTimes
from chunkvisor.show.follow import Follower
from chunkvisor.show.outputstatus import OutputStatus, moved, read_output
from chunkvisor.store.mark import require_workdir

SCHEMA = 1
"""Of `status --json`. Keys may be added under the same number; one that goes, or gets another meaning, raises it."""


class State(StrEnum):
    """Of a whole workdir."""

    RUNNING = "running"
    STOPPED = "stopped"
    HALTED = "halted"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Of a worker under way."""

    output: str
    """Its name."""
    chunk: int
    """Which chunk of it, from 0 on."""
    attempt: int
    """Which try of that chunk, from 1 on."""
    pid: int
    """Of the worker's process."""
    computing: bool
    """false = it is prepared ahead, and waits for the device."""


@dataclass(slots=True)
class DeviceStatus(DeviceTimes):
    """Of one device: the sums over the workers of the run that have ended, and those that are under way."""

    workers: tuple[WorkerStatus, ...] = ()
    """Under way; none unless the run is live."""


@dataclass(frozen=True, slots=True)
class Status:
    """Of a workdir; the attribute names are the keys of `status --json`."""

    state: State
    """`running`, `stopped` (it can go on), `halted` (it ended with 69, 74, 75 or 78) or `complete`."""
    pid: int | None
    """Of the run that holds the workdir, or held it last."""
    outputs: dict[str, OutputStatus]
    """By name."""
    attempts: dict[str, int]
    """Ended attempts of all runs, by outcome."""
    rows_per_s: float | None
    """While a run is at work, of its last 48 chunks; after it, of the whole run. The first start of the workers is not
    counted. null = nothing was encoded yet."""
    eta_s: float | None
    """Seconds until all outputs are complete; null where that is not known, or no run is at work."""
    devices: dict[str, DeviceStatus] = field(default_factory=dict)
    """By number, as the run that is or was last at work used them."""
    device_names: dict[str, str] = field(default_factory=dict)
    """Such as CPU or GPU 0, by the same numbers."""
    message: list[str] = field(default_factory=list)
    """The last words of the run that ended last."""
    command: str = ""
    """That was typed last, and where, without secrets; empty for a call from Python."""
    host: str = ""
    """On which the run is or was at work that `pid` is of; empty where that is not known."""
    silent_s: float | None = None
    """Seconds since the last sign of life of a run on another host, of which no more is known; else null."""

    @property
    def anything_done(self) -> bool:
        """Whether there is work that the next run need not do."""
        return any(output.rows_done for output in self.outputs.values())

    def to_json(self) -> dict[str, Any]:
        """Plain values, and `schema`."""
        return {"schema": SCHEMA, **asdict(self)}


_DONE = (0, 3)
"""Codes of a run that has come to the end of its work. After a 3 all was complete; `retry` makes rows pending again."""
_STOPPED = (*_DONE, 130, 143)


def read_status(workdir: Path) -> Status:
    """The status. Raises Halt (78) where the folder is no workdir."""
    layout = require_workdir(workdir)
    run = Follower(layout)
    names = [path.name for path in sorted(layout.outputs.glob("*/"))]
    outputs = {name: read_output(layout.output(name)) for name in names}
    wanted = run.state.wanted or outputs
    if run.alive:
        state = State.RUNNING
    elif bool(outputs) and all(name in outputs and outputs[name].complete for name in wanted):
        state = State.COMPLETE
    else:
        state = State.HALTED if _halted(run) else State.STOPPED
    outputs |= {name: _as_found_so_far(each, name, run) for name, each in outputs.items() if not each.complete}
    live = run.look() if run.alive else None
    if live is not None:
        outputs |= {each.name: moved(outputs[each.name], each) for each in live.outputs if each.name in outputs}
    silent_s = run.silent_s if live is not None else None
    rows_per_s = live.rows_per_s if live is not None else _last_rate(run, outputs)
    attempts = Counter(run.state.attempts_before)
    attempts.update(run.state.attempts)
    return Status(
        state,
        run.holder.pid if run.holder else None,
        outputs,
        dict(attempts),
        round(rows_per_s, 3) if rows_per_s else None,
        round(live.eta_s, 1) if live is not None and live.eta_s is not None else None,
        _devices(run),
        dict(run.state.devices),
        run.state.ending.last_words if run.state.ending is not None and _says_why(run, state) else [],
        run.state.command,
        run.holder.host if run.holder else "",
        None if silent_s is None else round(silent_s, 1),
    )


def _as_found_so_far(output: OutputStatus, name: str, run: Follower) -> OutputStatus:
    """The output with the rows that its run has given up, which a manifest lists only once it is complete."""
    told = run.state.outputs.get(name)
    return replace(output, quarantined=told.without if told is not None and not told.complete else 0)


def _devices(run: Follower) -> dict[str, DeviceStatus]:
    """Those that the run has, and those that it has lost since, by number."""
    times, workers = run.state.device_times, run.state.workers.values() if run.alive else ()
    found = {}
    for number in dict.fromkeys((*run.state.devices, *times)):
        at_work = [each for each in workers if str(each.device) == number]
        under_way = tuple(WorkerStatus(*each.key, each.pid, each.computing) for each in at_work)
        found[number] = DeviceStatus(**asdict(times.get(number, DeviceTimes())), workers=under_way)
    return found


def _halted(run: Follower) -> bool:
    """Whether its last word was that it cannot go on."""
    return run.code is not None and run.code not in _STOPPED


def _says_why(run: Follower, state: State) -> bool:
    """Whether its last words are worth showing: those of a halt, and of a stop that was amid troubles."""
    if state is State.HALTED:
        return _halted(run)
    ending = run.state.ending
    return state is State.STOPPED and ending is not None and ending.code not in _DONE and bool(ending.why)


def _last_rate(run: Follower, outputs: Mapping[str, OutputStatus]) -> float | None:
    """Rows a second, as the run's last commit told."""
    distinct = sum(output.distinct_texts for output in outputs.values())
    rows = sum(output.rows for output in outputs.values())
    return run.state.texts_per_s * rows / distinct if run.state.texts_per_s and distinct else None
