"""Judges attempts that have ended: those of this run, and those that an earlier run left unjudged."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from chunkvisor.devices.health import company_of, in_company
from chunkvisor.devices.stations import Stations
from chunkvisor.errors import Halt
from chunkvisor.events.event import Emit, LateCrash
from chunkvisor.heart.memory import Lesson
from chunkvisor.heart.messages import AttemptEnded
from chunkvisor.heart.output import OutputRun
from chunkvisor.heart.policy import History, Retry, decide
from chunkvisor.heart.slot import Slot
from chunkvisor.heart.store import Keeper, check_space
from chunkvisor.heart.work import Work
from chunkvisor.judge import STATUS_LOST, Budget, judge
from chunkvisor.store.attempt import Salvage, gather, look
from chunkvisor.store.disk import with_room
from chunkvisor.store.records import LessonFile
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


def adopt_all(
    outputs: Sequence[OutputRun], stations: Stations, store: Keeper, lessons: LessonFile, budget: Budget
) -> None:
    """Judge what an earlier run left, as if it had ended just now: keep what is good, remove the rest.

    What out-of-memory faults teach holds if all devices are of one kind. Raises Halt, OSError.
    """
    kinds = {station.device.model for station in stations.alive}
    for number, output in enumerate(outputs):
        check_space(output)
        for lesson in _adopt(number, output, store, budget):
            for kind in kinds if len(kinds) == 1 else ():
                rows, tokens = lessons.get(kind) or lesson
                known = [each for each in (tokens, lesson.tokens) if each is not None]
                lessons.save(kind, min(rows, lesson.rows), min(known, default=None))
        output.saved_before = output.ledger.saved()


def _adopt(number: int, output: OutputRun, store: Keeper, budget: Budget) -> list[Lesson]:
    ledger, lessons = output.ledger, list[Lesson]()
    for chunk, files in list(ledger.attempt_folders()):
        # It was judged: what is left of it is for a person to read.
        if files.verdict.exists():
            continue
        spec = read_message(Spec, files.spec)
        if spec is not None and _is_wanted(spec, output, chunk) and _of_this_model(files, output):
            is_blank = output.blank_test(spec)
            verdict = judge(gather(files, spec, ledger.facts, is_blank, returncode=None, limits=spec.limits))
            work = Work(number, chunk, tuple(_texts_of(spec)))
            if verdict.outcome is Outcome.COMMITTED:
                store.keep(work, spec, files, None)
                continue
            if done := look(files, spec, ledger.facts, is_blank).done:
                store.keep(work.of([spec.start + row for row in done]), spec, files, verdict)
            step = decide(verdict, History(), budget)
            if isinstance(step, Retry) and step.lesson is not None:
                lessons.append(step.lesson)
        remove_folder(files.folder)
    ledger.taken_apart()  # folders of chunks that are committed are removed
    return lessons


def _is_wanted(spec: Spec, output: OutputRun, chunk: int) -> bool:
    """Say whether the attempt is at texts of this chunk that still have no vectors."""
    ledger = output.ledger
    if (spec.fingerprint, spec.output, spec.chunk) != (ledger.fingerprint, output.name, chunk):
        return False
    return chunk < ledger.plan.count and set(output.missing(chunk)).issuperset(_texts_of(spec))


def _of_this_model(files: AttemptFiles, output: OutputRun) -> bool:
    """Say whether the model's folder was not touched since the attempt began: so its worker loaded what is there."""
    return output.model is None or output.model.settled_since(files.spec.stat().st_mtime_ns)


def _texts_of(spec: Spec) -> list[int]:
    return sorted(set(range(spec.start, spec.stop)).difference(spec.start + row for row in spec.skip))


def forget_unsure(output: OutputRun) -> None:
    """Have the next run adopt nothing if the model's folder has changed: put back, it would pass as unchanged."""
    try:
        output.check_model()
    except Halt:
        for _, files in list(output.ledger.attempt_folders()):
            files.result.unlink(missing_ok=True)
            files.batches.unlink(missing_ok=True)
