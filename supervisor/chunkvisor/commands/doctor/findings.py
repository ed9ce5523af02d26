"""All findings, from all readings, in the order in which they are shown.

Pure: tests hand in readings and look at what comes out.
"""

from chunkvisor.commands.doctor.cluster import check_cluster
from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.gpus import check_gpus
from chunkvisor.commands.doctor.machine import check_machine
from chunkvisor.commands.doctor.modelcheck import check_model
from chunkvisor.commands.doctor.readings import Readings
from chunkvisor.commands.doctor.torchbuild import check_torch
from chunkvisor.commands.doctor.variables import check_variables


def examine(readings: Readings) -> list[Finding]:
    """What the readings mean; at least one finding a check that could be made."""
    findings = []
    if readings.config_problem is not None:
        findings.append(Finding("config", State.FAULT, *readings.config_problem, Blame.CONFIG))
    for check in (check_cluster, check_gpus, check_torch, check_variables, check_machine, check_model):
        findings.extend(check(readings))
    return findings
