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
from chunkvisor.decide.policy import (
    Budget,
    Commit,
    Company,
    EndRun,
    History,
    Quarantine,
    Retry,
    SetAside,
    Split,
    StartAgain,
    Wait,
    decide,
    is_fruitless,
)
from chunkvisor.decide.suspicion import Charge
from chunkvisor.decide.waits import Cause, Waits
from chunkvisor.devices.company import company_of, in_company
from chunkvisor.devices.stations import Station, Stations, device_place, is_devices_own, is_machines_own
from chunkvisor.errors import Halt
from chunkvisor.events.event import Emit
from chunkvisor.store.attempt import gather
from chunkvisor.store.diskneed import DISK_ERRNOS
from chunkvisor.store.lessonbook import LessonBook
from chunkvisor.supervise.backlog import Backlog, Task
from chunkvisor.supervise.blame import Blame
from chunkvisor.supervise.joiner import Joiner
from chunkvisor.supervise.keeper import Keeper
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.slot import Slot
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Limits, Spec, Tier, read_message, write_message


@dataclass(frozen=True, slots=True)
class Where:
    """Where an attempt was made, and beside whom."""

    station: Station
    company: Company = Company.UNTOLD
    begun_s: float | None = None
    """When its worker was started; None where a failure of its start is to prove nothing."""


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
        self._blame = Blame()
        self._waits = Waits()
        self._barren_chunks = 0
        self._fruitless = 0
        self.given_up: list[GivenUp] = []
        self.host_ooms = 0
        """Attempts that ran out of host memory: each is a reason to prepare one worker less ahead."""

    def conclude(self, slot: Slot, returncode: int, siblings: frozenset[int]) -> None:
        """Judge a worker that has ended, and obey; `siblings` are the workers that were on its device with it.

        Raises policy's Halt; OSError.
        """
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
        if slot.had_device and verdict.can_touch_gpu:
            slot.station.gate.suspect()
        company = company_of(verdict.figures, slot.station.gate.view, siblings)
        # A first try from a template proves little: the next one, in a new interpreter, tells more.
        begun_s = slot.started_s if slot.task.fresh or not slot.worker.warm else None
        where = Where(slot.station, company, begun_s)
        self.obey(slot.task, slot.attempt, slot.files, in_company(verdict, company, siblings), where)

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
                    self._learn(step.tier)
            shutil.rmtree(files.folder, ignore_errors=True)
        for chunk in ledger.taken_apart():
            self.keeper.finish_if_known(number, chunk)
        self._joiner.submit_if_complete(number)

    def obey(self, task: Task, attempt: int, files: AttemptFiles, verdict: Verdict, where: Where | None = None) -> None:
        """Carry out what the policy says, of an attempt made `where`. Raises Halt where it ends the run."""
        output, now = self._outputs[task.output], time.monotonic()
        station = where.station if where is not None else None
        history = self._history(task, verdict, where, now)
        step = decide(verdict, history, self._budget)
        if isinstance(step, Commit):
            self.keeper.keep(task, attempt, files, station.device.model if station is not None else "")
            if station is not None:  # whether its vectors could be stored or not
                self._waits.free(station.number)
                self._blame.succeeded(station)
                self._leave_out_guilty()
            return
        if station is not None and not verdict.blameless:
            task = replace(task, avoid=self._stations.places(now)(station) or station.site.node)
        self.host_ooms += verdict.outcome is Outcome.HOST_OOM
        self._fruitless += is_fruitless(step, verdict)
        self._tell_failure(output, task, attempt, files, verdict)
        if station is not None and verdict.past_its_start:
            self._blame.started(station)
            self._waits.got_through((Outcome.GPU_BUSY, station.number))
        self._learn_need(verdict)
        if verdict.outcome is Outcome.GPU_OOM and history.waited_s >= self._budget.wait_timeout_s:
            self._give_up_waiting(verdict, station)
        tries = self._tries.setdefault(_key(task), Counter())
        match step:
            case Retry():
                if step.charged:
                    tries[verdict.outcome] += 1
                if step.charged and station is not None and not history.taken_apart and not verdict.blameless:
                    self._blame.failed(station, Charge(_key(task), verdict.outcome))
                if step.tier is not None and step.lesson:
                    self._learn(step.tier, station)
                alone = step.tier if not step.lesson else task.tier
                due_s, blocking = now + step.delay_s, step.blocking_launches
                fresh = task.fresh or verdict.outcome is not Outcome.LOST
                again = replace(task, due_s=due_s, tier=alone, blocking_launches=blocking, fresh=fresh)
                self._backlog.put_back(again)
            case StartAgain():
                if where is not None and where.begun_s is not None:
                    life_s = (where.begun_s, now)
                    self._blame.did_not_start(where.station, verdict, (task.output, task.chunk), life_s)
                self._stations.pause(station, step.delay_s)
                # Others first: whether their workers start tells whether it is the device, or the model, or chance.
                self._backlog.put_back(replace(task, due_s=now + 2 * step.delay_s, fresh=True))
            case Wait():
                cause = self._cause(verdict, station)
                self._waits.wait(cause, now)
                self._stations.pause(station if cause[1] is not None else None, step.delay_s)
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
                self._end(step, verdict, halt_of(step, verdict, output.name, task.chunk, files), station)
                self._backlog.put_back(replace(task, due_s=now, fresh=True))

        self._leave_out_guilty()

    def _history(self, task: Task, verdict: Verdict, where: Where | None, now: float) -> History:
        output = self._outputs[task.output]
        cause = self._cause(verdict, where.station if where is not None else None)
        failed_starts, same_elsewhere = 0, False
        if where is not None and where.begun_s is not None:
            life_s = (where.begun_s, now)
            chunk = (task.output, task.chunk)
            failed_starts, same_elsewhere = self._blame.starts_before(where.station, verdict, chunk, life_s)
        return History(
            self._tries.get(_key(task), Counter()),
            worked_before=output.committed_here > 0,
            waited_s=self._waits.without_success_s(cause, now),
            spell_s=self._waits.spell_s(cause, now),
            company=where.company if where is not None else Company.UNTOLD,
            failed_starts=failed_starts,
            same_elsewhere=same_elsewhere,
            barren_chunks=self._barren_chunks,
            fruitless=self._fruitless,
            texts=task.stop - task.start,
            taken_apart=(task.start, task.stop) != output.ledger.plan.bounds(task.chunk),
        )

    def _cause(self, verdict: Verdict, station: Station | None) -> Cause:
        """What would be waited for: a device's own memory, a node's own disk, or the world that all share."""
        own = verdict.outcome in (Outcome.GPU_BUSY, Outcome.GPU_OOM)
        own = own or (verdict.outcome is Outcome.DISK_FULL and station is not None and bool(station.site.node))
        return verdict.outcome, station.number if station is not None and own else None

    def _learn(self, tier: Tier, station: Station | None = None) -> None:
        """Take a lesson down; of an attempt of an earlier run, whose device is not known, where all are alike."""
        stations = [station] if station is not None else self._stations.alive
        models = {each.device.model for each in stations}
        if len(models) == 1:
            self._book.learn(tier, models.pop())

    def _give_up_waiting(self, verdict: Verdict, station: Station | None) -> None:
        """The wait has not helped: whoever holds the memory stays, and the next batch does not wait for them again."""
        self._waits.in_vain(self._cause(verdict, station))
        if station is not None and verdict.figures is not None:
            station.gate.get_used_to(verdict.figures.others_bytes)

    def _learn_need(self, verdict: Verdict) -> None:
        figures = verdict.figures
        if figures is not None and verdict.weights_did_not_fit:
            self._stations.learn_need(figures.ours_bytes + figures.wanted_bytes)

    def _end(self, step: EndRun, verdict: Verdict, halt: Halt, station: Station | None) -> None:
        """Do without the machine or the device that it is the matter of. Raises `halt` where it is that of all."""
        machine = station.site.node if station is not None else ""
        if machine and is_machines_own(step.exit_code, verdict):
            self._stations.drop_node(machine, halt)
        elif station is not None and is_devices_own(step.exit_code, verdict):
            self._stations.drop(station, halt)
        else:
            raise halt

    def _leave_out_guilty(self) -> None:
        """Do without a place at which all fails that succeeds at others, and give back what that cost the chunks."""
        for guilty in self._blame.guilty():
            for charge in guilty.charges:
                if self._tries.get(charge.task, Counter())[charge.outcome] > 0:
                    self._tries[charge.task][charge.outcome] -= 1
            if guilty.machine:
                self._stations.drop_node(guilty.machine, guilty.halt)
            elif len(alive := self._stations.alive) > 1:
                for station in [each for each in alive if device_place(each) == guilty.device]:
                    self._stations.drop(station, guilty.halt)

    def _succeeded(self, task: Task) -> None:
        self._barren_chunks, self._fruitless = 0, 0
        now = time.monotonic()
        self._waits.succeeded(now)
        self._stations.succeeded(now)
        self._tries.pop(_key(task), None)

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


def _key(task: Task) -> tuple[int, int, int]:
    return task.output, task.start, task.stop


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
