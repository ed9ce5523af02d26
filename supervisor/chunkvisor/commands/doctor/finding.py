"""One result of the doctor, and the exit code of them all.

It never looks at the machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from chunkvisor.errors import ExitCode


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
    """Which: a stable name, explained in docs/doctor.md."""
    state: State
    meaning: str
    """What was found, and what it means for a run."""
    mend: str = ""
    """What to do; never empty for a warning or a fault."""
    blame: Blame = Blame.MACHINE


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """COMPLETE without a fault; MACHINE where one of the faults is the machine's, else CONFIG."""
    blamed = {finding.blame for finding in findings if finding.state is State.FAULT}
    if Blame.MACHINE in blamed:
        return ExitCode.MACHINE
    return ExitCode.CONFIG if blamed else ExitCode.COMPLETE
