"""The findings as text for a person and as plain values for a program.

It never decides anything.
"""

from collections.abc import Sequence
from typing import Any

from chunkvisor.commands.doctor.finding import Finding, State

_WIDTH = max(len(state) for state in State)


def render(findings: Sequence[Finding]) -> list[str]:
    """Lines: one a finding, the mend below it, and a last one that sums up."""
    indent = " " * (_WIDTH + 2)
    lines = []
    for finding in findings:
        first, *others = finding.meaning.splitlines() or [""]
        lines.append(f"{finding.state:<{_WIDTH}}  {finding.check}: {first}")
        lines += [indent + other for other in others]
        if finding.mend:
            lines.append(f"{indent}do: {finding.mend}")
    return [*lines, "", _summary(findings)]


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


def _summary(findings: Sequence[Finding]) -> str:
    faults, warnings = (sum(each.state is state for each in findings) for state in (State.FAULT, State.WARNING))
    words = [f"{number} {name}{'s' * (number != 1)}" for number, name in ((faults, "fault"), (warnings, "warning"))]
    return f"{words[0]}, {words[1]}; " + ("mend the faults before a run" if faults else "nothing stands in the way")
