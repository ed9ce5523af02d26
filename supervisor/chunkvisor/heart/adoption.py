"""Takes over attempts that an earlier run left unjudged: they are judged as if they had ended just now.

It starts nothing, and decides no more than `outcome` and `policy` do.
"""

from collections.abc import Sequence

from chunkvisor.devices.stations import Stations
from chunkvisor.errors import Halt
from chunkvisor.heart.memory import Lesson
from chunkvisor.heart.output import OutputRun
from chunkvisor.heart.policy import History, Retry, decide
from chunkvisor.heart.store import Store, check_space
from chunkvisor.heart.work import Work
from chunkvisor.judge import Budget, judge
from chunkvisor.store.attempt import gather, look
from chunkvisor.store.records import LessonFile
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.messages import Spec
from chunkvisor_worker.contract.wire import read_message


def adopt_all(
    outputs: Sequence[OutputRun], stations: Stations, store: Store, lessons: LessonFile, budget: Budget
) -> None:
    """Take over what an earlier run left; its lessons hold where all devices are of one kind. Raises Halt, OSError."""
    kinds = {station.device.model for station in stations.alive}
    for number, output in enumerate(outputs):
        check_space(output)
        for lesson in _adopt(number, output, store, budget):
            for kind in kinds if len(kinds) == 1 else ():
                rows, tokens = lessons.get(kind) or lesson
                known = [each for each in (tokens, lesson.tokens) if each is not None]
                lessons.save(kind, min(rows, lesson.rows), min(known, default=None))
        output.saved_before = output.ledger.saved()


def _adopt(number: int, output: OutputRun, store: Store, budget: Budget) -> list[Lesson]:
    """Take over what is good, remove the rest; returns what out-of-memory faults teach. Raises Halt, OSError."""
    ledger, lessons = output.ledger, list[Lesson]()
    for chunk, files in list(ledger.attempt_folders()):
        if files.verdict.exists():
            continue
        spec = read_message(Spec, files.spec)
        wanted = chunk < ledger.plan.count and not ledger.committed(chunk)
        if spec is not None and wanted and _belongs(spec, output, chunk) and _of_this_model(files, output):
            evidence = gather(files, spec, ledger.facts, output.blank_test(spec), returncode=None, limits=spec.limits)
            verdict = judge(evidence)
            work = Work(number, chunk, tuple(_texts_of(spec)))
            good = verdict.outcome is Outcome.COMMITTED
            if good:
                store.keep(work, spec, files, None)
                continue
            left = look(files, spec, ledger.facts, output.blank_test(spec))
            if left.done:
                store.keep(work.of([spec.start + row for row in left.done]), spec, files, verdict)
            step = decide(verdict, History(), budget)
            if isinstance(step, Retry) and step.lesson is not None:
                lessons.append(step.lesson)
        remove_folder(files.folder)
    ledger.taken_apart()  # folders of chunks that are committed are removed
    return lessons


def forget_unsure(output: OutputRun) -> None:
    """Have the next run adopt nothing where the model's folder has changed: put back, it would pass as unchanged."""
    try:
        output.check_model()
    except Halt:
        for _, files in list(output.ledger.attempt_folders()):
            files.result.unlink(missing_ok=True)
            files.batches.unlink(missing_ok=True)


def _texts_of(spec: Spec) -> list[int]:
    skip = {spec.start + row for row in spec.skip}
    return [text for text in range(spec.start, spec.stop) if text not in skip]


def _of_this_model(files: AttemptFiles, output: OutputRun) -> bool:
    """Say whether the model's folder was not touched since the attempt began: so its worker loaded what is there."""
    return output.model is None or output.model.settled_since(files.spec.stat().st_mtime_ns)


def _belongs(spec: Spec, output: OutputRun, chunk: int) -> bool:
    """Say whether the attempt is at texts of this chunk that still have no vectors."""
    if (spec.fingerprint, spec.output, spec.chunk) != (output.ledger.fingerprint, output.name, chunk):
        return False
    return set(output.missing(chunk)).issuperset(_texts_of(spec))
