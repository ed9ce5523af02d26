"""One result of the doctor; all of them as lines, as plain values, and as an exit code."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from chunkvisor.errors import ExitCode
from chunkvisor.units import counted


class State(StrEnum):
    """How much a finding matters; only a fault makes the command fail."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing to mend."""
    WARNING = "warning"
    """A run can do its job, but slower, or with a risk."""
    FAULT = "fault"
    """A run will not do its job."""


class Blame(StrEnum):
    """Who is to mend a fault; decides the exit code."""

    MACHINE = "machine"
    CONFIG = "config"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    """Which: a stable name, explained in docs/reference/doctor.md."""
    state: State
    meaning: str
    """What was found, and what it means for a run."""
    mend: str = ""
    """What to do; never empty for a warning or a fault."""
    blame: Blame = Blame.MACHINE


_WIDTH = max(len(state) for state in State)


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """COMPLETE without a fault; MACHINE where one of the faults is the machine's, else CONFIG."""
    blamed = {finding.blame for finding in findings if finding.state is State.FAULT}
    if Blame.MACHINE in blamed:
        return ExitCode.MACHINE
    return ExitCode.CONFIG if blamed else ExitCode.COMPLETE


def render(findings: Sequence[Finding]) -> list[str]:
    """Lines: one a finding, what to do below it, and a last one that sums up."""
    indent = " " * (_WIDTH + 2)
    lines = []
    for finding in findings:
        first, *others = finding.meaning.splitlines() or [""]
        lines.append(f"{finding.state:<{_WIDTH}}  {finding.check}: {first}")
        lines += [indent + other for other in others]
        if finding.mend:
            lines.append(f"{indent}do: {finding.mend}")
    faults, warnings = (sum(each.state is state for each in findings) for state in (State.FAULT, State.WARNING))
    end = "a run can do its job; read the warnings" if warnings else "nothing stands in the way"
    end = "correct the faults before a run" if faults else end
    return [*lines, "", f"{counted(faults, 'fault')}, {counted(warnings, 'warning')}; {end}"]


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Key `ok`: no fault was found; key `findings`: an object each."""
    rows = [
        {
            "check": each.check,
            "state": str(each.state),
            "meaning": each.meaning,
            "mend": each.mend,
            "blame": str(each.blame) if each.state is State.FAULT else None,
        }
        for each in findings
    ]
    return {"ok": all(each.state is not State.FAULT for each in findings), "findings": rows}
