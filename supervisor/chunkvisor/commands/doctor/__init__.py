"""The doctor: says whether this machine can do the job, check by check, with the mend for each fault.

`gather` reads the machine; `examine` judges what was read, and is pure.
"""

from chunkvisor.commands.doctor.finding import Blame, Finding, State, exit_code, render, to_json
from chunkvisor.commands.doctor.gpus import check_gpus, check_torch
from chunkvisor.commands.doctor.machine import check_cluster, check_machine, check_sources, check_variables
from chunkvisor.commands.doctor.modelcheck import check_model
from chunkvisor.commands.doctor.readings import Readings, gather

__all__ = ["Finding", "State", "examine", "exit_code", "gather", "render", "to_json"]


def examine(readings: Readings) -> list[Finding]:
    """What the readings mean, in the order in which it is shown; at least one finding a check that could be made."""
    findings = []
    if readings.config_problem is not None:
        findings.append(Finding("config", State.FAULT, *readings.config_problem, Blame.CONFIG))
    for check in (check_cluster, check_gpus, check_torch, check_variables, check_machine, check_sources, check_model):
        findings.extend(check(readings))
    return findings
