"""Judges an attempt whose worker has ended, by what it left."""

import os
from dataclasses import replace
from pathlib import Path

from chunkvisor.decide.outcome import STATUS_LOST, judge
from chunkvisor.decide.verdict import Verdict
from chunkvisor.events.attempt import LateCrash
from chunkvisor.events.event import Emit
from chunkvisor.store.attempt import gather
from chunkvisor.store.disk import with_room
from chunkvisor.store.salvage import Salvage, look
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.slot import Slot
from chunkvisor_worker.contract.exits import Outcome


def judged(slot: Slot, returncode: int, output: OutputRun, emit: Emit) -> tuple[Verdict, Salvage]:
    """What became of the attempt, and what it has left where it failed."""
    evidence = gather(
        slot.files,
        slot.spec,
        output.ledger.facts,
        output.blank_test(slot.spec),
        returncode=returncode,
        ended_by=slot.ended_by,
        ended_why=slot.ended_why,
        oom_kills=slot.worker.oom_kills(),
        limits=slot.limits,
    )
    verdict = judge(evidence)
    if returncode not in (0, STATUS_LOST) and verdict.outcome is Outcome.COMMITTED:
        emit(LateCrash(output.name, slot.task.chunk, returncode))
    # With a result, what is wrong is known; without one over its form, no batch of it can be believed.
    if verdict.outcome in (Outcome.COMMITTED, Outcome.BAD_OUTPUT) or slot.task.control:
        return verdict, Salvage()
    if verdict.outcome is Outcome.DISK_FULL and not slot.station.site.node:  # the disks of another machine are not ours
        temporary = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - what is there
        verdict = replace(verdict, reason=with_room(verdict.reason, output.ledger.layout.workdir, temporary))
    return verdict, look(slot.files, slot.spec, output.ledger.facts, output.blank_test(slot.spec))
