"""What follows an attempt's end: the run's history, the policy's step, and what that means for texts and devices.

Pure: `decide.policy` decides, this keeps the history that it needs and spells its steps out as instructions.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from chunkvisor.decide import lastwords
from chunkvisor.decide.bisect import halves
from chunkvisor.decide.outcome import Verdict
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
    Step,
    Wait,
    decide,
    is_devices_own,
    is_fruitless,
    is_machines_own,
)
from chunkvisor.decide.suspicion import Charge
from chunkvisor.decide.waits import Cause, Waits
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.backlog import NOW, Backlog, Progress, Task
from chunkvisor.supervise.blame import Accused, Blame
from chunkvisor.supervise.fleet import Device, Fleet, Gate, Worker
from chunkvisor.supervise.joins import Joins
from chunkvisor.supervise.lessonbook import LessonBook
from chunkvisor.supervise.suspects import Suspects
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits


@dataclass(frozen=True, slots=True)
class _End:
    """An attempt that has ended, or a part of it that could not be stored."""

    task: Task
    verdict: Verdict
    now_s: float
    worker: int = 0
    """0 where none could be started, or what failed was to store."""
    device: Device | None = None
    company: Company = Company.UNTOLD
    began_s: float | None = None
    """When its worker was started, or got its device; None where a failure of its start is to prove nothing."""
    go_s: float = 0.0
    """When its worker got its device."""

    @property
    def life_s(self) -> tuple[float, float] | None:
        """When its worker began, and when it ended."""
        return (self.began_s, self.now_s) if self.began_s is not None and self.device is not None else None


class Consequences:
    """The run's history, and the consequences of each ended attempt."""

    def __init__(
        self,
        outputs: Sequence[Progress],
        budget: Budget,
        bad_rows: lastwords.BadRows,
        backlog: Backlog,
        fleet: Fleet,
        book: LessonBook,
        joins: Joins,
        say: Callable[[do.Instruction], None],
        drop: Callable[[Device, Halt, int], None],
    ) -> None:
        """`drop(device, halt, worker)` does without a device; `say` hands an instruction to the driver."""
        self._outputs = outputs
        self._budget = budget
        self._backlog = backlog
        self._fleet = fleet
        self._book = book
        self._joins = joins
        self._say = say
        self._drop = drop
        self.blame = Blame(outputs, bad_rows, backlog, fleet, say, drop)
        self.host_ooms = 0
        """Attempts that ran out of host memory: each is a reason to prepare one worker less ahead."""
        self.gave_up = False
        """Whether a chunk was set aside."""
        self._tries: dict[tuple[int, int, int], Counter[Outcome]] = {}
        self._suspects = Suspects()
        self._waits = Waits()
        self._barren_chunks = 0
        self._fruitless = 0
        self._worked: set[int] = set()
        """Outputs of which this run has committed a chunk."""
        self._keeping: dict[tuple[int, int, int], tuple[_End, tuple[int, ...]]] = {}
        """(whose attempt, holes) of what the driver is storing, by texts."""
        self._without_facts: set[tuple[int, int]] = set()
        """(output, chunk) of chunks that hold nothing but bad texts, while the dimension is not known yet."""

    def limits(self, task: Task, device: Device) -> Limits:
        """The batch limits of an attempt on the device as they hold now."""
        return self._book.limits(self._outputs[task.output].limits, device.kind, task.tier)

    def refused(self, worker: Worker) -> None:
        """It would not run from its template, or was lost with it: no attempt; a fresh worker makes one."""
        self._backlog.put_back(replace(worker.task, fresh=True))
        self._say(do.Refuse(worker.number, worker.task))

    def obey(self, worker: Worker, stimulus: on.Ended | on.NotStarted, now_s: float) -> None:
        """Carry out what the policy says of an attempt that has ended, or could not begin."""
        task, device, verdict = worker.task, worker.device, stimulus.verdict
        if worker.gate is not Gate.SHUT and verdict.can_touch_gpu:
            device.suspect(now_s)
        if task.control:
            self._end_control(worker, verdict, now_s)
            return
        if verdict.outcome is Outcome.COMMITTED:
            self._waits.free(device.number)
            device.fresh_only = False
            self._suspects.succeeded(device.seat)
        elif not verdict.blameless:
            task = replace(task, avoid=worker.seat)
        if isinstance(stimulus, on.Ended):
            # What goes wrong on the device has begun with its `go`, however long before that it was prepared.
            began_s = max(stimulus.began_s, worker.go_s) if stimulus.began_s is not None else None
            self._take(_End(task, verdict, now_s, worker.number, device, stimulus.company, began_s, worker.go_s))
        else:
            self._take(_End(task, verdict, now_s))
        self._leave_out_guilty()

    def _take(self, end: _End) -> None:
        verdict, device = end.verdict, end.device
        history = self._history(end)
        step = decide(verdict, history, self._budget)
        if isinstance(step, Commit):
            self._keep(end)
            return
        self.host_ooms += verdict.outcome is Outcome.HOST_OOM
        self._fruitless += is_fruitless(step, verdict, end.task.texts)
        self._say(do.Record(end.worker, end.task, verdict))
        if device is not None and verdict.past_its_start:
            self._suspects.started(device.seat)
            device.fresh_only = False
            self._waits.got_through((Outcome.GPU_BUSY, device.number))
        if verdict.outcome is Outcome.GPU_OOM and history.waited_s >= self._budget.wait_timeout_s:
            self._give_up_waiting(end)
        self._do(step, end)

    def _history(self, end: _End) -> History:
        cause, task = self._cause(end), end.task
        failed_starts, same_elsewhere = 0, False
        if end.device is not None and end.life_s is not None:
            chunk = (task.output, task.chunk)
            found = self._suspects.starts_before(end.device.seat, end.verdict, chunk, end.life_s)
            failed_starts, same_elsewhere = found
        return History(
            tries=self._tries.setdefault(task.key, Counter()),
            worked_before=task.output in self._worked,
            waited_s=self._waits.without_success_s(cause, end.now_s),
            spell_s=self._waits.spell_s(cause, end.now_s),
            company=end.company,
            failed_starts=failed_starts,
            same_elsewhere=same_elsewhere,
            barren_chunks=self._barren_chunks,
            # Every device may fail with its first chunk as often as that is tried, without a success in between.
            fruitless=max(0, self._fruitless - self._budget.attempts * (len(self._fleet.alive) - 1)),
            texts=task.texts,
            taken_apart=self._is_part(task),
        )

    def _cause(self, end: _End) -> Cause:
        """What would be waited for: a device's own memory, a node's own disk, or the world that all share."""
        outcome, device = end.verdict.outcome, end.device
        own = outcome in (Outcome.GPU_BUSY, Outcome.GPU_OOM)
        own = own or (outcome is Outcome.DISK_FULL and device is not None and bool(device.node))
        return outcome, device.number if device is not None and own else None

    def _give_up_waiting(self, end: _End) -> None:
        """The wait has not helped: whoever holds the memory stays, and the next batch does not wait for them again."""
        self._waits.in_vain(self._cause(end))
        if end.device is not None and end.verdict.figures is not None:
            self._say(do.GetUsedTo(end.device.number, end.verdict.figures.others_bytes))

    def _do(self, step: Step, end: _End) -> None:
        task, verdict, device = end.task, end.verdict, end.device
        match step:
            case Retry():
                self._retry(step, end)
            case StartAgain():
                if device is not None and end.life_s is not None:
                    chunk = (task.output, task.chunk)
                    self._suspects.did_not_start(device.seat, verdict, chunk, end.life_s)
                if device is not None:
                    device.fresh_only = device.fresh_only or end.life_s is None
                    device.pause(end.now_s + step.delay_s)
                # Others first: whether their workers start tells whether it is the device, or the model, or chance.
                self._backlog.put_back(replace(task, due_s=end.now_s + 2 * step.delay_s, fresh=True))
            case Wait():
                self._backlog.put_back(replace(task, due_s=NOW, fresh=True))
                self._wait(step, end)
            case Split():
                self._split(step, end)
            case Quarantine():
                number = device.number if device is not None else 0
                self.blame.accuse(Accused(task, verdict, end.worker, number, end.now_s))
            case SetAside():
                self._barren_chunks += 1
                self.gave_up = True
                self._say(do.SetAside(end.worker, task, verdict))
            case EndRun():
                self._end(step, end)

    def _wait(self, step: Wait, end: _End) -> None:
        cause = self._cause(end)
        self._waits.wait(cause, end.now_s)
        waits = end.device if cause[1] is not None and end.device is not None else self._fleet
        waits.pause(end.now_s + step.delay_s)
        self._say(do.TellWaiting(cause[1], step.delay_s, end.verdict))

    def _end_control(self, worker: Worker, verdict: Verdict, now_s: float) -> None:
        end = _End(worker.task, verdict, now_s, worker.number, worker.device)
        if isinstance(step := decide(verdict, self._history(end), self._budget), Wait):
            # A world that is not ready says nothing of the device or the texts.
            self._say(do.Discard(worker.number, worker.task, verdict))
            self.blame.control_waits(worker.task)
            self._wait(step, end)
        else:
            self.blame.control_ended(worker.number, worker.task, verdict)

    def _retry(self, step: Retry, end: _End) -> None:
        task, verdict, device = end.task, end.verdict, end.device
        if step.charged:
            self._tries[task.key][verdict.outcome] += 1
            if device is not None and not verdict.blameless and not self._is_part(task):
                self._suspects.failed(device.seat, Charge(task.key, verdict.outcome))
        if step.tier is not None and step.lesson and device is not None:
            self._say_if(self._book.learn(device.kind, step.tier))
        again = replace(
            task,
            due_s=end.now_s + step.delay_s if step.delay_s else NOW,
            tier=task.tier if step.lesson else step.tier,
            blocking_launches=step.blocking_launches,
            fresh=task.fresh or verdict.outcome is not Outcome.LOST,
        )
        self._backlog.put_back(again)

    def _split(self, step: Split, end: _End) -> None:
        """Keep all rows but the bad ones and try those alone, or try both halves."""
        task = end.task
        if step.bad_rows and len(step.bad_rows) < task.texts:
            self._keep(end, step.bad_rows)
            return
        parts = halves(task.start, task.stop)
        self._say(do.Cut(task, parts[0][1]))
        self._put_parts(task, parts)

    def _put_parts(self, task: Task, parts: Sequence[tuple[int, int]], *, holes: bool = False) -> None:
        """In the order of the texts: one end of the search is reached before the other begins."""
        for start, stop in parts:
            self._backlog.put_back(
                Task(NOW, task.output, task.chunk, start, stop, fresh=True, avoid=task.avoid, hole=holes)
            )
        self._say(do.TellSplit(task, len(parts)))

    def _end(self, step: EndRun, end: _End) -> None:
        """Do without what every further worker would fail on: the device, its machine, or else the run ends."""
        task, verdict, device = end.task, end.verdict, end.device
        if step.exit_code is ExitCode.TRY_AGAIN and verdict.row_can_cause and not self._any_good():
            # Another run would come to the same.
            step = replace(step, exit_code=lastwords.code_of_nothing(verdict))
        halt = lastwords.halt_of(step, verdict, self._outputs[task.output].name, task.chunk)
        if device is not None and device.node and is_machines_own(step.exit_code, verdict):
            self._drop_node(device.node, halt)
        elif device is not None and is_devices_own(step.exit_code, verdict):
            self._drop(device, halt, end.worker)
        else:
            self._say(do.HaltRun(halt, end.worker))
            return
        self._backlog.put_back(replace(task, due_s=NOW, fresh=True))

    # --- what the driver has stored

    def _keep(self, end: _End, holes: tuple[int, ...] = ()) -> None:
        self._keeping[end.task.key] = (end, holes)
        self._say(do.Keep(end.worker, end.task, holes))

    def heed_storage(self, stimulus: on.StorageStimulus, now_s: float) -> None:
        """Take note of what is on the disk now, or could not be written."""
        match stimulus:
            case on.Stored():
                self._stored(stimulus.task, now_s, whole=stimulus.whole)
            case on.Quarantined():
                self.blame.confirmed()
                self._succeeded(stimulus.task, now_s)
                self.compose_if_known(stimulus.task.output, stimulus.task.chunk)
            case on.NotStored():
                kept, _ = self._keeping.pop(stimulus.task.key, (None, ()))
                worker = kept.worker if kept is not None else 0
                if not worker and stimulus.task.texts:
                    self.blame.confirmed()
                self._take(_End(stimulus.task, stimulus.verdict, now_s, worker))
            case on.PartsDamaged() if self._backlog.handed_out(stimulus.output, stimulus.chunk):
                for part in self._outputs[stimulus.output].missing(stimulus.chunk):
                    self._backlog.put_back(Task(NOW, stimulus.output, stimulus.chunk, *part))

    def _stored(self, task: Task, now_s: float, *, whole: bool) -> None:
        kept, holes = self._keeping.pop(task.key, (None, ()))
        self._succeeded(task, now_s)
        if kept is not None and kept.device is not None:
            self.blame.encoded(kept.device.number, kept.go_s)
        if holes:
            self._put_parts(task, [(task.start + row, task.start + row + 1) for row in holes], holes=True)
        if whole:
            self._worked.add(task.output)
            for kind in dict.fromkeys(device.kind for device in self._fleet.alive):
                self._say_if(self._book.confirm(kind))
            self._joins.begin_if_complete(task.output)
        elif not holes:
            self.compose_if_known(task.output, task.chunk)
        for number, chunk in sorted(self._without_facts):
            if self._outputs[number].has_facts:
                self._without_facts.discard((number, chunk))
                self.compose_if_known(number, chunk)

    def compose_if_known(self, number: int, chunk: int) -> None:
        """Put a chunk that was taken apart together once each of its texts has a vector or a verdict."""
        output = self._outputs[number]
        if output.missing(chunk):
            return
        if output.has_facts:
            first = output.bounds(chunk)[0]
            self._say(do.Compose(Task(NOW, number, chunk, first, first)))
        elif output.bad_count >= output.texts:
            self._say(do.HaltRun(lastwords.all_bad(output.name, output.last_bad)))
        else:
            # Of a slice: others may have good ones; until then its chunks stay in parts.
            self._without_facts.add((number, chunk))

    def _succeeded(self, task: Task, now_s: float) -> None:
        self._barren_chunks = self._fruitless = 0
        self._waits.succeeded(now_s)
        self._fleet.success_s = now_s
        self._tries.pop(task.key, None)

    # --- devices

    def _leave_out_guilty(self) -> None:
        """Do without a place at which all fails that succeeds at others, and give back what that cost the chunks."""
        for guilty in self._suspects.guilty():
            for charge in guilty.charges:
                if self._tries.get(charge.task, Counter())[charge.outcome] > 0:
                    self._tries[charge.task][charge.outcome] -= 1
            device = self._fleet.devices.get(guilty.device)
            if guilty.node:
                self._drop_node(guilty.node, lastwords.failing_machine(guilty.charges))
            elif len(self._fleet.alive) > 1 and device is not None:
                self._drop(device, lastwords.failing_device(device.name, guilty.charges), 0)

    def _drop_node(self, node: str, halt: Halt) -> None:
        """Do without a machine. That it is left is heard of later, but nothing is given to its devices meanwhile."""
        for device in self._fleet.on_node(node):
            device.left = True
        self._say(do.DropNode(node, halt))

    def _any_good(self) -> bool:
        """Whether any text has ever got its vector."""
        return any(output.known_good() is not None for output in self._outputs)

    def _is_part(self, task: Task) -> bool:
        return (task.start, task.stop) != self._outputs[task.output].bounds(task.chunk)

    def _say_if(self, instruction: do.Instruction | None) -> None:
        if instruction is not None:
            self._say(instruction)
