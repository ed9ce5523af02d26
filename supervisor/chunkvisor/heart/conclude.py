"""Judges an attempt whose worker has ended, by what it left."""

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from chunkvisor.devices.health import company_of, in_company
from chunkvisor.events.attempt import LateCrash
from chunkvisor.events.event import Emit
from chunkvisor.heart.messages import Ended
from chunkvisor.heart.output import OutputRun
from chunkvisor.heart.slot import Slot
from chunkvisor.judge import STATUS_LOST, judge
from chunkvisor.store.attempt import Salvage, gather, look
from chunkvisor.store.disk import with_room
from chunkvisor_worker.contract.batchlog import read_batch_log
from chunkvisor_worker.contract.exits import Outcome


def conclude(slot: Slot, returncode: int, output: OutputRun, siblings: Collection[int], emit: Emit) -> Ended:
    """Say what became of the attempt, and what it has left; `siblings` are our other workers on its device, by pid."""
    facts, is_blank = output.ledger.facts, output.blank_test(slot.spec)
    evidence = gather(
        slot.files,
        slot.spec,
        facts,
        is_blank,
        returncode=returncode,
        ended_by=slot.ended_by,
        ended_why=slot.ended_why,
        oom_kills=slot.worker.oom_kills(),
        limits=slot.limits,
    )
    verdict = judge(evidence)
    if returncode not in (0, STATUS_LOST) and verdict.outcome is Outcome.COMMITTED:
        emit(LateCrash(output.name, slot.work.chunk, returncode))
    left = Salvage()
    # With a result, what is wrong is known; without one over its form, no batch of it can be believed.
    if verdict.outcome not in (Outcome.COMMITTED, Outcome.BAD_OUTPUT):
        left = look(slot.files, slot.spec, facts, is_blank)
    if verdict.outcome is Outcome.DISK_FULL and not slot.station.site.node:  # the disks of another machine are not ours
        temporary = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - what is there
        verdict = replace(verdict, reason=with_room(verdict.reason, output.ledger.layout.workdir, temporary))
    company = company_of(verdict.figures, slot.station.gate.view, frozenset(siblings))
    record = read_batch_log(slot.files.batches)
    # A canary of another dimension than the vectors before shows a model that is not the one that made them.
    passed = record.canary is not None and (facts is None or facts.dimension == record.canary.dimension)
    some_good = 0 < len(verdict.bad_rows) < len(slot.work.texts)
    return Ended(
        slot.number,
        in_company(verdict, company, frozenset(siblings)),
        company,
        # A first try from a template proves little: the next one, in a new interpreter, tells more.
        began_s=slot.started_s if slot.work.fresh or not slot.worker.warm else None,
        done=frozenset(slot.spec.start + row for row in left.done),
        under_way=frozenset(slot.spec.start + row for row in left.under_way),
        proven=bool(left.done) or some_good or passed,
    )
