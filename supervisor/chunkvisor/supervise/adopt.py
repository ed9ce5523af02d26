"""Attempts that an earlier run left unjudged: judged as if they had ended just now.

It starts nothing, and decides no more than `outcome` and `policy` do.
"""

from collections.abc import Sequence

from chunkvisor.decide.history import Budget, History
from chunkvisor.decide.lessons import learn
from chunkvisor.decide.outcome import judge
from chunkvisor.decide.policy import decide
from chunkvisor.decide.steps import Retry
from chunkvisor.devices.stations import Stations
from chunkvisor.errors import Halt
from chunkvisor.store.attempt import gather
from chunkvisor.store.lessons import LessonFile
from chunkvisor.store.salvage import look
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.storage import Storage, check_space
from chunkvisor.supervise.task import Task
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.messages import Spec, Tier
from chunkvisor_worker.contract.wire import read_message


def adopt_all(
    outputs: Sequence[OutputRun], stations: Stations, storage: Storage, lessons: LessonFile, budget: Budget
) -> None:
    """Take over what an earlier run left; its lessons hold where all devices are of one kind. Raises Halt, OSError."""
    kinds = {station.device.model for station in stations.alive}
    for number, output in enumerate(outputs):
        check_space(output)
        for tier in _adopt(number, output, storage, budget):
            for kind in kinds if len(kinds) == 1 else ():
                lessons.save(kind, learn(lessons.get(kind), tier))
        output.saved_before = output.ledger.saved()


def _adopt(number: int, output: OutputRun, storage: Storage, budget: Budget) -> list[Tier]:
    """Take over what is good, remove the rest; returns what out-of-memory faults teach. Raises Halt, OSError."""
    ledger, tiers = output.ledger, []
    for chunk, files in list(ledger.attempt_folders()):
        if files.verdict.exists():
            continue
        spec = read_message(Spec, files.spec)
        wanted = chunk < ledger.plan.count and not ledger.committed(chunk)
        if spec is not None and wanted and _belongs(spec, output, chunk) and _of_this_model(files, output):
            evidence = gather(files, spec, ledger.facts, output.blank_test(spec), returncode=None, limits=spec.limits)
            verdict = judge(evidence)
            skip = tuple(spec.start + row for row in spec.skip)
            task = Task(0, number, chunk, spec.start, spec.stop, skip=skip)
            good = verdict.outcome is Outcome.COMMITTED
            if good:
                storage.keep(task, files)
                continue
            left = look(files, spec, ledger.facts, output.blank_test(spec))
            if left.done:
                rows = {text - spec.start for text in task.wanted}.difference(left.done)
                storage.keep(task, files, tuple(sorted(rows)), failed=True, interrupted=verdict.blameless)
            step = None if good else decide(verdict, History(), budget)
            if isinstance(step, Retry) and step.tier is not None:
                tiers.append(step.tier)
        remove_folder(files.folder)
    ledger.taken_apart()  # folders of chunks that are committed are removed
    return tiers


def forget_unsure(output: OutputRun) -> None:
    """Where the model's folder has changed, have the next run adopt nothing: put back, it would pass as unchanged."""
    try:
        output.check_model()
    except Halt:
        for _, files in list(output.ledger.attempt_folders()):
            files.result.unlink(missing_ok=True)
            files.batches.unlink(missing_ok=True)


def _of_this_model(files: AttemptFiles, output: OutputRun) -> bool:
    """Whether the model's folder has not been touched since the attempt began: so its worker loaded what is there."""
    return output.model is None or output.model.settled_since(files.spec.stat().st_mtime_ns)


def _belongs(spec: Spec, output: OutputRun, chunk: int) -> bool:
    """Whether the attempt is at texts of this chunk that still have no vectors."""
    if (spec.fingerprint, spec.output, spec.chunk) != (output.ledger.fingerprint, output.name, chunk):
        return False
    missing = {text for part in output.missing(chunk) for text in range(*part)}
    skip = {spec.start + row for row in spec.skip}
    return missing.issuperset(text for text in range(spec.start, spec.stop) if text not in skip)
