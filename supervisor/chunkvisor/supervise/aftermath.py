"""What follows an attempt's end: gathers the evidence, has it judged, and carries out the policy's step.

It never starts or ends a worker, and never decides: `outcome` and `policy` do.
"""

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from chunkvisor.decide.lastwords import BadRows, halt_of
from chunkvisor.decide.outcome import STATUS_LOST, Verdict, judge
from chunkvisor.decide.policy import Budget, Commit, EndRun, History, Quarantine, Retry, SetAside, Split, Wait, decide
from chunkvisor.decide.suspicion import Charge, Suspicion
from chunkvisor.devices.stations import Station, Stations, is_devices_own, is_machines_own
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import Emit
from chunkvisor.store.attempt import gather
from chunkvisor.store.diskneed import DISK_ERRNOS
from chunkvisor.store.lessonbook import LessonBook
from chunkvisor.supervise.backlog import Backlog, Task
from chunkvisor.supervise.joiner import Joiner
from chunkvisor.supervise.keeper import Keeper
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.slot import Slot
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Limits, Spec, read_message, write_message


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A chunk that exhausted its tries."""

    output: str
    chunk: int
    verdict: Verdict
    files: AttemptFiles


class Aftermath:
    """The run's history, and the consequences of each ended attempt."""

    def __init__(
        self,
        outputs: Sequence[OutputRun],
        backlog: Backlog,
        joiner: Joiner,
        book: LessonBook,
        stations: Stations,
        budget: Budget,
        bad_rows: BadRows,
        emit: Emit,
    ) -> None:
        self._outputs = outputs
        self._backlog = backlog
        self._joiner = joiner
        self._book = book
        self.keeper = Keeper(outputs, backlog, joiner, book, bad_rows, emit, self._succeeded, self.obey)
        self._stations = stations
        self._budget = budget
        self._emit = emit
        self._tries: dict[tuple[int, int, int], Counter[Outcome]] = {}
        self._suspicion = Suspicion()
        self._barren_chunks = 0
        self._fruitless = 0
        self._waited_s = 0.0
        self.given_up: list[GivenUp] = []
        self.host_ooms = 0
        """Attempts that ran out of host memory: each is a reason to prepare one worker less ahead."""

    def conclude(self, slot: Slot, returncode: int) -> None:
        """Judge a worker that has ended, and obey. Raises policy's Halt; OSError."""
        output = self._outputs[slot.task.output]
        evidence = gather(
            slot.files,
            slot.spec,
            output.ledger.facts,
            _blank_test(output, slot.spec),
            returncode=returncode,
            ended_by=slot.ended_by,
            ended_why=slot.ended_why,
            oom_kills=slot.worker.oom_kills(),
            limits=slot.limits,
        )
        verdict = judge(evidence)
        if returncode not in (0, STATUS_LOST) and verdict.outcome is Outcome.COMMITTED:
            self._emit("late_crash", output=output.name, chunk=slot.task.chunk, returncode=returncode)
        self.obey(slot.task, slot.attempt, slot.files, verdict, slot.station)

    def refused(self, slot: Slot) -> None:
        """A worker would not run from its template, or was lost with it: no attempt; a fresh worker makes one."""
        shutil.rmtree(slot.files.folder, ignore_errors=True)
        self._backlog.put_back(replace(slot.task, fresh=True))
        self._emit("attempt_refused", output=slot.spec.output, chunk=slot.task.chunk, attempt=slot.attempt)

    def not_started(self, task: Task, error: OSError) -> None:
        """Obey the fault of a worker that could not even be started."""
        outcome = Outcome.DISK_FULL if error.errno in DISK_ERRNOS else Outcome.HOST_OOM
        # A batch of one row, so that the policy does not take it for a matter of batches.
        verdict = Verdict(outcome, f"no worker could be started: {error}", limits=Limits(rows=1), batch_rows=1)
        self.obey(task, 0, AttemptFiles(self._outputs[task.output].ledger.layout.attempts_of(task.chunk)), verdict)

    def adopt(self, number: int) -> None:
        """Judge the attempts that an earlier run left unjudged, as if they had ended just now."""
        output = self._outputs[number]
        ledger = output.ledger
        for chunk, files in list(ledger.attempt_folders()):
            if files.verdict.exists():
                continue
            spec = read_message(Spec, files.spec)
            wanted = chunk < ledger.plan.count and not ledger.committed(chunk)
            if spec is not None and wanted and _belongs(spec, output, chunk):
                known, blank = ledger.facts, _blank_test(output, spec)
                verdict = judge(gather(files, spec, known, blank, returncode=None, limits=spec.limits))
                if verdict.outcome is Outcome.COMMITTED:
                    self.keeper.keep(Task(0, number, chunk, spec.start, spec.stop), spec.attempt, files)
                    continue
                step = decide(verdict, History(), self._budget)
                if isinstance(step, Retry) and step.tier is not None:
                    self._book.learn(step.tier)
            shutil.rmtree(files.folder, ignore_errors=True)
        for chunk in ledger.taken_apart():
            self.keeper.finish_if_known(number, chunk)
        self._joiner.submit_if_complete(number)

    def obey(
        self, task: Task, attempt: int, files: AttemptFiles, verdict: Verdict, station: Station | None = None
    ) -> None:
        """Carry out what the policy says, of an attempt on `station`. Raises Halt where it ends the run."""
        output, now = self._outputs[task.output], time.monotonic()
        tries = self._tries.setdefault((task.output, task.start, task.stop), Counter())
        history = History(
            tries,
            output.committed_here > 0,
            self._waited_s,
            self._barren_chunks,
            self._fruitless,
            task.stop - task.start,
            taken_apart=(task.start, task.stop) != output.ledger.plan.bounds(task.chunk),
        )
        step = decide(verdict, history, self._budget)
        machine = station.site.node if station is not None else ""
        if isinstance(step, Commit):
            self.keeper.keep(task, attempt, files)
            if machine:
                self._suspicion.succeeded(machine)
                self._leave_out_guilty()
            return
        if machine and not verdict.blameless:
            task = replace(task, avoid=machine)
        self.host_ooms += verdict.outcome is Outcome.HOST_OOM
        self._fruitless += not verdict.blameless and not isinstance(step, Wait)
        self._tell_failure(output, task, attempt, files, verdict)
        match step:
            case Retry():
                if step.charged:
                    tries[verdict.outcome] += 1
                if step.charged and machine and not history.taken_apart and not verdict.blameless:
                    key = (task.output, task.start, task.stop)
                    self._suspicion.failed(machine, Charge(key, verdict.outcome))
                if step.tier is not None and step.lesson:
                    self._book.learn(step.tier)
                alone = step.tier if not step.lesson else task.tier
                due_s, blocking = now + step.delay_s, step.blocking_launches
                fresh = task.fresh or verdict.outcome is not Outcome.LOST
                again = replace(task, due_s=due_s, tier=alone, blocking_launches=blocking, fresh=fresh)
                self._backlog.put_back(again)
            case Wait():
                self._waited_s += step.delay_s
                own = verdict.outcome is Outcome.GPU_BUSY or (machine and verdict.outcome is Outcome.DISK_FULL)
                self._stations.pause(station if own else None, step.delay_s)
                self._backlog.put_back(replace(task, due_s=now, fresh=True))
                self._emit("waiting", delay_s=step.delay_s, outcome=verdict.outcome, reason=verdict.reason)
            case Split():
                self.keeper.split(task, files, step.bad_rows)
            case Quarantine():
                self.keeper.quarantine(task, verdict, files)
            case SetAside():
                self._barren_chunks += 1
                self.given_up.append(GivenUp(output.name, task.chunk, verdict, files))
                self._emit("chunk_set_aside", output=output.name, chunk=task.chunk, reason=verdict.reason)
            case EndRun():
                halt = halt_of(step, verdict, output.name, task.chunk, files)
                if machine and is_machines_own(step.exit_code, verdict):
                    self._stations.drop_node(machine, halt)
                elif station is not None and is_devices_own(step.exit_code):
                    self._stations.drop(station, halt)
                else:
                    raise halt
                self._backlog.put_back(replace(task, due_s=now, fresh=True))

        self._leave_out_guilty()

    def _leave_out_guilty(self) -> None:
        """Do without a machine on which all fails that succeeds on others, and give back what that cost the chunks."""
        if (machine := self._suspicion.guilty()) is None:
            return
        charges = self._suspicion.pardon(machine)
        for charge in charges:
            if charge.task in self._tries:
                self._tries[charge.task][charge.outcome] -= 1
        halt = Halt(
            ExitCode.MACHINE,
            "workers keep failing on one machine, and succeed on others",
            why=f"{len(charges)} attempts in a row failed there, the last as {charges[-1].outcome}",
            remedy="look after that machine: chunkvisor doctor; then run the same command again",
        )
        self._stations.drop_node(machine, halt)

    def _succeeded(self, task: Task) -> None:
        self._barren_chunks, self._fruitless, self._waited_s = 0, 0, 0.0
        self._tries.pop((task.output, task.start, task.stop), None)

    def _tell_failure(self, output: OutputRun, task: Task, attempt: int, files: AttemptFiles, verdict: Verdict) -> None:
        if verdict.asked_for:
            shutil.rmtree(files.folder, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # on a full disk the journal may still have it
                write_message(files.verdict, verdict, durable=False)
        whole = (task.start, task.stop) == output.ledger.plan.bounds(task.chunk)
        self._emit(
            "attempt_interrupted" if verdict.asked_for else "attempt_failed" if whole else "part_failed",
            output=output.name,
            chunk=task.chunk,
            attempt=attempt,
            start=task.start,
            stop=task.stop,
            outcome=verdict.outcome,
            reason=verdict.reason,
            rule=verdict.rule,
            phase=verdict.phase,
            log=str(files.log),
        )


def _belongs(spec: Spec, output: OutputRun, chunk: int) -> bool:
    """Whether the attempt is at texts of this chunk that still have no vectors."""
    if (spec.fingerprint, spec.output, spec.chunk) != (output.ledger.fingerprint, output.name, chunk):
        return False
    missing = output.ledger.parts(chunk).missing()
    return any(start <= spec.start < spec.stop <= stop for start, stop in missing)


def _blank_test(output: OutputRun, spec: Spec) -> Callable[[int], bool]:
    def is_blank(index: int) -> bool:
        first = spec.start + index
        return not output.table.texts(first, first + 1)[0].strip()

    return is_blank
