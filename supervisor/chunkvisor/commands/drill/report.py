"""The table of a drill, for people and for programs.

Pure: it never prints.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from chunkvisor.commands.drill.faults import FAULTS, Provoked
from chunkvisor.commands.drill.finding import Finding
from chunkvisor.units import human_time

_NAME_WIDTH = max(len(fault.name) for fault in FAULTS)
_ROW = f"{{:<{_NAME_WIDTH}}}  {{:<9}}  {{:<14}}  {{:<34}}  {{:>7}}  {{}}"


def header() -> str:
    """The first line of the table."""
    return _ROW.format("fault", "provoked", "seen as", "action", "extra", "vectors")


def row(finding: Finding) -> str:
    """One line of the table; a second one says what went wrong."""
    if finding.provoked is Provoked.SKIPPED:
        return _ROW.format(finding.fault, "skipped", "", finding.problem, "", "").rstrip()
    extra = f"+{finding.extra_s:.1f} s" if finding.extra_s is not None and finding.extra_s < 90 else ""
    if finding.extra_s is not None and not extra:
        extra = f"+{human_time(finding.extra_s)}"
    cells = (finding.provoked, finding.seen_as or "-", finding.action, extra, _vectors(finding.difference))
    line = _ROW.format(finding.fault, *cells)
    return line if finding.recovered else f"{line}\n  NOT RECOVERED: {finding.problem}"


def summary(findings: Sequence[Finding]) -> str:
    """The last line."""
    skipped = [each.fault for each in findings if each.provoked is Provoked.SKIPPED]
    recovered = sum(each.recovered for each in findings)
    rest = f"; skipped: {', '.join(skipped)}" if skipped else ""
    return f"{recovered} of {len(findings) - len(skipped)} faults ended as they must{rest}"


def to_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Plain values: seconds, and the largest difference as a number."""
    return [{**asdict(each), "recovered": each.recovered} for each in findings]


def _vectors(difference: float | None) -> str:
    if difference is None:
        return "none"
    return "same bytes" if difference == 0 else f"differ by {difference:.0e}"
