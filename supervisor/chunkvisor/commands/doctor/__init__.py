"""The doctor: `readings` reads the machine and the job, `checks` judges what was read; here is what they find."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from chunkvisor.errors import ExitCode
from chunkvisor.units import counted


class Severity(StrEnum):
    """How much a finding matters; only a fault makes the command fail."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    state: Severity
    meaning: str
    mend: str = ""
    """What to do; never empty for a warning or a fault."""
    blame: str = "machine"
    """Or "config": who has to repair a fault; it decides the exit code."""
    check: str = ""
    """Its name, which docs/reference/doctor.md explains."""


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """Return 0 without a fault; 69 if one of the faults is the machine's, else 78."""
    blamed = {finding.blame for finding in findings if finding.state is Severity.FAULT}
    if "machine" in blamed:
        return ExitCode.MACHINE
    return ExitCode.CONFIG if blamed else ExitCode.COMPLETE


def render(findings: Sequence[Finding]) -> list[str]:
    """Write a line for each finding, what to do below it, and a last line that sums up."""
    indent = " " * 9
    lines = []
    for finding in findings:
        first, *others = finding.meaning.splitlines()
        lines.append(f"{finding.state:<7}  {finding.check}: {first}")
        lines += [indent + other for other in others]
        if finding.mend:
            lines.append(f"{indent}do: {finding.mend}")
    states = [finding.state for finding in findings]
    faults, warnings = states.count(Severity.FAULT), states.count(Severity.WARNING)
    end = "a run can do its job; read the warnings" if warnings else "nothing stands in the way"
    end = "correct the faults before a run" if faults else end
    return [*lines, "", f"{counted(faults, 'fault')}, {counted(warnings, 'warning')}; {end}"]


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what `--json` prints: `ok`, and an object for each finding."""
    rows = [
        {
            "check": each.check,
            "state": str(each.state),
            "meaning": each.meaning,
            "mend": each.mend,
            "blame": each.blame if each.state is Severity.FAULT else None,
        }
        for each in findings
    ]
    return {"ok": all(each.state is not Severity.FAULT for each in findings), "findings": rows}
