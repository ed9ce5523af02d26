"""Judges attempts that have ended: those of this run, and those that an earlier run left unjudged."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from chunkvisor.devices.health import company_of, in_company
from chunkvisor.errors import Halt
from chunkvisor.events.event import Emit, LateCrash
from chunkvisor.heart.output import OutputRun
from chunkvisor.heart.scheduler import AttemptEnded
from chunkvisor.heart.slot import Slot
from chunkvisor.heart.store import Keeper, check_space
from chunkvisor.heart.work import Work
from chunkvisor.judge import STATUS_LOST, judge
from chunkvisor.store.attempt import Salvage, gather, look
from chunkvisor.store.disk import with_room
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.messages import Spec
from chunkvisor_worker.contract.wire import read_batch_log, read_message


def conclude(slot: Slot, returncode: int, output: OutputRun, siblings: Collection[int], emit: Emit) -> AttemptEnded:
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
    # With a result, what is wrong is known; if its form is wrong, no batch of it can be believed.
    if verdict.outcome not in (Outcome.COMMITTED, Outcome.BAD_OUTPUT):
        left = look(slot.files, slot.spec, facts, is_blank)
    if verdict.outcome is Outcome.DISK_FULL and not slot.station.site.node:  # the disks of another machine are not ours
        temporary = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - what is there
        verdict = replace(verdict, reason=with_room(verdict.reason, output.ledger.layout.workdir, temporary))
    company = company_of(verdict.figures, slot.station.view, frozenset(siblings))
    canary = read_batch_log(slot.files.batches).canary
    # A canary of another dimension than the vectors before shows a model that is not the one that made them.
    passed = canary is not None and (facts is None or facts.dimension == canary.dimension)
    some_good = 0 < len(verdict.bad_rows) < len(slot.work.texts)
    return AttemptEnded(
        slot.number,
        in_company(verdict, company, frozenset(siblings)),
        company,
        # A first try from a template proves little: the next one, in a new interpreter, tells more.
        began_s=slot.started_s if slot.work.fresh or not slot.worker.warm else None,
        done=frozenset(slot.spec.start + row for row in left.done),
        under_way=frozenset(slot.spec.start + row for row in left.under_way),
        proven=bool(left.done) or some_good or passed,
    )


def adopt_all(outputs: Sequence[OutputRun], store: Keeper) -> None:
    """Keep what is good of what an earlier run left unjudged, and remove the rest. Raises Halt, OSError."""
    for number, output in enumerate(outputs):
        check_space(output)
        for chunk, files in list(output.ledger.attempt_folders()):
            # What was judged is for a person to read.
            if not files.verdict.exists() and not _adopted(Work(number, chunk, ()), output, files, store):
                remove_folder(files.folder)
        output.ledger.taken_apart()  # folders of chunks that are committed are removed
        output.saved_before = output.ledger.saved()


def _adopted(work: Work, output: OutputRun, files: AttemptFiles, store: Keeper) -> bool:
    """Take over what is good of the attempt; True if that was all of it."""
    ledger, spec = output.ledger, read_message(Spec, files.spec)
    wanted = ledger.fingerprint, output.name, work.chunk
    if spec is None or (spec.fingerprint, spec.output, spec.chunk) != wanted or work.chunk >= ledger.plan.count:
        return False
    texts = sorted(set(range(spec.start, spec.stop)).difference(spec.start + row for row in spec.skip))
    if not set(output.missing(work.chunk)).issuperset(texts):
        return False
    # If the model's folder was touched since the attempt began, what its worker has loaded is not known.
    if output.model is not None and not output.model.settled_since(files.spec.stat().st_mtime_ns):
        return False
    is_blank = output.blank_test(spec)
    verdict = judge(gather(files, spec, ledger.facts, is_blank, returncode=None, limits=spec.limits))
    if verdict.outcome is Outcome.COMMITTED:
        store.keep(work.of(texts), spec, files, None)
    elif done := look(files, spec, ledger.facts, is_blank).done:
        part = work.of([spec.start + row for row in done])
        store.keep(part, spec, files, verdict)
    else:
        return False
    store.compose(work.output, work.chunk)
    return verdict.outcome is Outcome.COMMITTED


def forget_unsure(output: OutputRun) -> None:
    """Have the next run adopt nothing if the model's folder has changed: put back, it would pass as unchanged."""
    try:
        output.check_model()
    except Halt:
        for _, files in list(output.ledger.attempt_folders()):
            files.result.unlink(missing_ok=True)
            files.batches.unlink(missing_ok=True)
