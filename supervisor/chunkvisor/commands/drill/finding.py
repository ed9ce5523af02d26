"""Tells from the events of a drill's runs what the fault was taken for, what was done about it, and whether it helped.

Pure; the table of all findings is made here, too.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.commands.drill.faults import FAULTS, DrillFault, Provoked
from chunkvisor.errors import ExitCode
from chunkvisor.events.attempt import (
    AttemptFailed,
    ChunkCommitted,
    ChunkSplit,
    Go,
    LateCrash,
    PartFailed,
    Quarantined,
)
from chunkvisor.events.event import Event
from chunkvisor.events.run import LimitsLowered, Waiting
from chunkvisor.units import counted, human_time

Vectors = npt.NDArray[np.float32]

_TOLERANCE = {"float16": 1e-2, "bfloat16": 8e-2}
"""Largest difference to the undisturbed vectors, as a share of their largest value, by the type of the weights: about
ten units in the last place, since another batch is rounded otherwise."""

_TOLERANCE_FLOAT32 = 1e-5

_NAME_WIDTH = max(len(fault.name) for fault in FAULTS)
_ROW = f"{{:<{_NAME_WIDTH}}}  {{:<9}}  {{:<14}}  {{:<34}}  {{:>7}}  {{}}"

_ENDED = (ExitCode.COMPLETE, ExitCode.QUARANTINED)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a run told, and when."""

    event: Event
    time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a drill."""

    code: int
    words: str
    """Why it ended so, where it did not end with 0."""
    heard: list[Heard] = field(default_factory=list)
    killed_s: float = 0.0
    """When it was killed; 0 = it was not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    fault: str
    provoked: Provoked
    seen_as: str = ""
    action: str = ""
    extra_s: float | None = None
    """What the struck chunk took longer than undisturbed, from the fault's beginning to its vectors."""
    difference: float | None = None
    """Largest difference to the undisturbed vectors; 0 = the same, byte for byte."""
    problem: str = ""
    """Why this was no recovery, or why the fault was skipped; empty = all is well."""

    @property
    def recovered(self) -> bool:
        """Whether the run recovered, or ended as it must."""
        return self.provoked is not Provoked.SKIPPED and not self.problem


def seen_as(run: Run) -> str:
    """What the first failed attempt was taken for; `committed` where its vectors counted all the same."""
    for heard in run.heard:
        if isinstance(heard.event, AttemptFailed | PartFailed):
            return str(heard.event.outcome)
        if isinstance(heard.event, LateCrash):
            return "committed"
    return ""


def took_s(runs: Sequence[Run], chunk: int) -> float | None:
    """Seconds from the moment a worker began to compute the chunk, failed to, or was killed, until it was done.

    The start of the first worker is not in it: it is as long with a fault as without, and varies more than the rest.
    """
    begin_s = done_s = 0.0
    for run in runs:
        begin_s = begin_s or run.killed_s
        for heard in run.heard:
            match heard.event:
                case ChunkCommitted() as event if event.chunk == chunk:
                    done_s = heard.time_s
                case Go() | AttemptFailed() as event if event.chunk == chunk:
                    begin_s = begin_s or heard.time_s
    return done_s - begin_s if begin_s and done_s else None


def action(runs: Sequence[Run], batch_rows: int) -> str:
    """What the runs did about the fault; `batch_rows` are those of the batch that failed, 0 = unknown."""
    told = {type(heard.event): heard.event for run in runs for heard in run.heard}
    failed = sum(isinstance(heard.event, AttemptFailed | PartFailed) for run in runs for heard in run.heard)
    waits = [heard.event.delay_s for run in runs for heard in run.heard if isinstance(heard.event, Waiting)]
    if Quarantined in told:
        return f"row quarantined, found in {failed} tries"
    if LateCrash in told:
        return "its vectors were kept"
    if runs[0].code not in _ENDED:
        return f"ended with {runs[0].code}; run again"
    if waits:
        return f"waited {sum(waits):.0f} s, retried"
    if isinstance(lowered := told.get(LimitsLowered), LimitsLowered):
        return f"batch {f'of {batch_rows} rows ' if batch_rows else ''}cut to {lowered.rows}"
    if isinstance(split := told.get(ChunkSplit), ChunkSplit):
        return "row retried alone" if split.parts == 1 else f"texts taken apart, {split.parts} tries"
    return "retried" if failed == 1 else f"retried {failed} times" if failed else "nothing"


def problem(
    fault: DrillFault,
    seen: str,
    runs: Sequence[Run],
    good: Vectors | None,
    found: Vectors | None,
    poisoned: Sequence[int],
    dtype: str,
) -> str:
    """What went otherwise than it must; empty where nothing did.

    `good` and `found` are the vectors of the undisturbed and of the struck run, (rows, dimension); `poisoned` the
    rows that can have none; `dtype` that of the weights.
    """
    first, last = runs[0], runs[-1]
    if seen != fault.seen_as:
        return f"seen as {seen or 'nothing at all'}, not as {fault.seen_as}: {first.words}".rstrip(": ")
    if first.code != fault.exit_code:
        return f"the run ended with {first.code}, not with {int(fault.exit_code)}: {first.words}".rstrip(": ")
    if last.code not in _ENDED:
        return f"the same run again ended with {last.code}: {last.words}"
    if good is None or found is None:
        return "there is no final file"
    if found.shape != good.shape:
        return f"the final file has shape {found.shape}, not {good.shape}"
    lost = np.flatnonzero(~np.isfinite(found).all(axis=1)).tolist()
    if lost != list(poisoned):
        return f"rows {lost[:10]} have no vectors" + (f", rows {list(poisoned)[:10]} should not" if poisoned else "")
    most = _TOLERANCE.get(dtype, _TOLERANCE_FLOAT32) * max(1.0, float(np.abs(good).max(initial=0.0)))
    if (off := difference(good, found)) > most:
        return f"vectors differ by up to {off:.1e}"
    return ""


def difference(good: Vectors, found: Vectors) -> float:
    """Largest difference in the rows that have vectors; 0 = the same bytes."""
    there = np.isfinite(found).all(axis=1)
    return float(np.abs(good[there] - found[there]).max(initial=0.0))


def header() -> str:
    """The first line of the table."""
    return _ROW.format("fault", "provoked", "seen as", "action", "extra", "vectors")


def row(finding: Finding) -> str:
    """One line of the table; a second one says what went wrong."""
    if finding.provoked is Provoked.SKIPPED:
        return _ROW.format(finding.fault, "skipped", "", finding.problem, "", "").rstrip()
    extra_s, off = finding.extra_s, finding.difference
    extra = "" if extra_s is None else f"+{extra_s:.1f} s" if extra_s < 90 else f"+{human_time(extra_s)}"
    vectors = "none" if off is None else "same bytes" if off == 0 else f"differ by {off:.0e}"
    line = _ROW.format(finding.fault, finding.provoked, finding.seen_as or "-", finding.action, extra, vectors)
    return line if finding.recovered else f"{line}\n  NOT RECOVERED: {finding.problem}"


def summary(findings: Sequence[Finding]) -> str:
    """The last line."""
    skipped = [each.fault for each in findings if each.provoked is Provoked.SKIPPED]
    recovered = sum(each.recovered for each in findings)
    rest = f"; skipped: {', '.join(skipped)}" if skipped else ""
    return f"the run recovered from {recovered} of {counted(len(findings) - len(skipped), 'fault')}{rest}"


def to_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Plain values: seconds, and the largest difference as a number."""
    return [{**asdict(each), "recovered": each.recovered} for each in findings]
