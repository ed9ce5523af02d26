"""The doctor: says whether this machine can do the job, check by check, with the mend for each fault.

It never mends anything itself, and never imports torch: what needs it is done in child processes with time limits.
"""

from chunkvisor.commands.doctor.facts import gather
from chunkvisor.commands.doctor.finding import Finding, State, exit_code
from chunkvisor.commands.doctor.findings import examine
from chunkvisor.commands.doctor.report import render, to_json

__all__ = ["Finding", "State", "examine", "exit_code", "gather", "render", "to_json"]
