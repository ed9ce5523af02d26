"""What follows an attempt's end: the run's history, the policy's step, and what that means for texts and devices.

Pure: `decide.policy` decides, this keeps the history that it needs and spells its steps out as instructions.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from chunkvisor.decide import lastwords
from chunkvisor.decide.bisect import halves
from chunkvisor.decide.outcome import Verdict
from chunkvisor.decide.policy import (
    Budget,
    Commit,
    EndRun,
    History,
    Quarantine,
    Retry,
    SetAside,
    Split,
    Step,
    Wait,
    decide,
)
from chunkvisor.decide.suspicion import Charge, Suspicion
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.backlog import NOW, Backlog, Progress, Task
from chunkvisor.supervise.blame import Blame
from chunkvisor.supervise.fleet import Device, Fleet, Gate, Worker
from chunkvisor.supervise.joins import Joins
from chunkvisor.supervise.lessonbook import LessonBook
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits

_LEAVES_DEVICE_AS_IT_WAS = frozenset(
    {Outcome.COMMITTED, Outcome.BAD_INPUT, Outcome.BAD_OUTPUT, Outcome.DISK_FULL, Outcome.HUB}
)
"""After any other end the device is looked at before the next worker gets it."""


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
        self._tries: dict[tuple[int, int, int], Counter[Outcome]] = {}
        self._devices, self._nodes = Suspicion(), Suspicion()
        self._barren_chunks = 0
        self._fruitless = 0
        self._worked: set[int] = set()
        """Outputs of which this run has committed a chunk."""
        self._keeping: dict[tuple[int, int, int], tuple[int, int, tuple[int, ...]]] = {}
        """(worker, device, holes) of what the driver is storing, by texts."""
        self._without_facts: set[tuple[int, int]] = set()
        """(output, chunk) of chunks that hold nothing but bad texts, while the dimension is not known yet."""

    def limits(self, task: Task, device: Device) -> Limits:
        """The batch limits of an attempt on the device as they hold now."""
        return self._book.limits(self._outputs[task.output].limits, device.kind, task.tier)

    def refused(self, worker: Worker) -> None:
        """It would not run from its template, or was lost with it: no attempt; a fresh worker makes one."""
        self._backlog.put_back(replace(worker.task, fresh=True))
        self._say(do.Refuse(worker.number, worker.task))

    def obey(self, worker: Worker, verdict: Verdict, now_s: float) -> None:
        """Carry out what the policy says of an attempt that has ended, or could not begin."""
        task, device = worker.task, worker.device
        if worker.gate is not Gate.SHUT and verdict.outcome not in _LEAVES_DEVICE_AS_IT_WAS:
            device.suspect(now_s)
        if task.control:
            history = self._history(task, verdict, now_s, device)
            if isinstance(step := decide(verdict, history, self._budget), Wait):
                # A world that is not ready says nothing of the device or the texts.
                self._say(do.Discard(worker.number, task, verdict))
                self.blame.control_waits(task)
                self._wait(step, verdict, now_s, device)
            else:
                self.blame.control_ended(worker.number, task, verdict)
            return
        if verdict.outcome is Outcome.COMMITTED:
            self._succeeded_on(device)
        elif not verdict.blameless:
            task = replace(task, avoid=worker.seat)
        self._take(task, verdict, now_s, worker.number, device)
        self._leave_out_guilty()

    def _take(self, task: Task, verdict: Verdict, now_s: float, worker: int, device: Device | None) -> None:
        history = self._history(task, verdict, now_s, device)
        step = decide(verdict, history, self._budget)
        if isinstance(step, Commit):
            self._keep(worker, task, device)
            return
        self.host_ooms += verdict.outcome is Outcome.HOST_OOM
        self._say(do.Record(worker, task, verdict))
        self._do(step, task, verdict, now_s, worker, device, history)

    def _history(self, task: Task, verdict: Verdict, now_s: float, device: Device | None) -> History:
        since_s = self._waits(verdict, device).waiting_since_s
        return History(
            tries=self._tries.setdefault(task.key, Counter()),
            worked_before=task.output in self._worked,
            waited_s=now_s - since_s if since_s is not None else 0.0,
            barren_chunks=self._barren_chunks,
            fruitless=self._fruitless,
            texts=task.texts,
            taken_apart=self._is_part(task),
        )

    def _do(
        self,
        step: Step,
        task: Task,
        verdict: Verdict,
        now_s: float,
        worker: int,
        device: Device | None,
        history: History,
    ) -> None:
        match step:
            case Retry():
                self._retry(step, task, verdict, now_s, device)
            case Wait():
                self._backlog.put_back(replace(task, due_s=NOW, fresh=True))
                self._wait(step, verdict, now_s, device)
            case Split():
                self._split(step, task, worker, device)
            case Quarantine():
                self.blame.accuse(task, verdict, worker, device.number if device is not None else 0)
            case SetAside():
                self._barren_chunks += 1
                self._fruitless += 1
                self._say(do.SetAside(worker, task, verdict))
            case EndRun():
                self._end(step, task, verdict, worker, device)

    def _wait(self, step: Wait, verdict: Verdict, now_s: float, device: Device | None) -> None:
        waits = self._waits(verdict, device)
        waits.waiting_since_s = now_s if waits.waiting_since_s is None else waits.waiting_since_s
        waits.paused_until_s = now_s + step.delay_s
        self._say(do.TellWaiting(device.number if waits is device and device else None, step.delay_s, verdict))

    def _retry(self, step: Retry, task: Task, verdict: Verdict, now_s: float, device: Device | None) -> None:
        self._fruitless += step.charged and not verdict.blameless
        if step.charged:
            self._tries[task.key][verdict.outcome] += 1
            if device is not None and not verdict.blameless and not self._is_part(task):
                charge = Charge(task.key, verdict.outcome)
                self._devices.failed(str(device.number), charge)
                if device.node:
                    self._nodes.failed(device.node, charge)
        if step.tier is not None and step.lesson and device is not None:
            self._say_if(self._book.learn(device.kind, step.tier))
        again = replace(
            task,
            due_s=now_s + step.delay_s,
            tier=task.tier if step.lesson else step.tier,
            blocking_launches=step.blocking_launches,
            fresh=task.fresh or verdict.outcome is not Outcome.LOST,
        )
        self._backlog.put_back(again)

    def _split(self, step: Split, task: Task, worker: int, device: Device | None) -> None:
        """Keep all rows but the bad ones and try those alone, or try both halves."""
        if step.bad_rows and len(step.bad_rows) < task.texts:
            self._keep(worker, task, device, step.bad_rows)
            return
        parts = halves(task.start, task.stop)
        self._say(do.Cut(task, parts[0][1]))
        self._put_parts(task, parts)

    def _put_parts(self, task: Task, parts: Sequence[tuple[int, int]]) -> None:
        """In the order of the texts: one end of the search is reached before the other begins."""
        for start, stop in parts:
            self._backlog.put_back(Task(NOW, task.output, task.chunk, start, stop, fresh=True, avoid=task.avoid))
        self._say(do.TellSplit(task, len(parts)))

    def _end(self, step: EndRun, task: Task, verdict: Verdict, worker: int, device: Device | None) -> None:
        """Do without what every further worker would fail on: the device, its machine, or else the run ends."""
        halt = lastwords.halt_of(step, verdict, self._outputs[task.output].name, task.chunk)
        machines_own = step.exit_code is ExitCode.DISK or verdict.outcome is Outcome.SETUP
        if device is not None and device.node and machines_own:
            self._drop_node(device.node, halt)
        elif device is not None and step.exit_code is ExitCode.MACHINE:
            self._drop(device, halt, worker)
        else:
            self._say(do.HaltRun(halt, worker))
            return
        self._backlog.put_back(replace(task, due_s=NOW, fresh=True))

    # --- what the driver has stored

    def _keep(self, worker: int, task: Task, device: Device | None, holes: tuple[int, ...] = ()) -> None:
        self._keeping[task.key] = (worker, device.number if device is not None else 0, holes)
        self._say(do.Keep(worker, task, holes))

    def heed_storage(self, stimulus: on.StorageStimulus, now_s: float) -> None:
        """Take note of what is on the disk now, or could not be written."""
        match stimulus:
            case on.Stored():
                self._stored(stimulus.task, whole=stimulus.whole)
            case on.Quarantined():
                self.blame.confirmed()
                self._succeeded(stimulus.task)
                self.compose_if_known(stimulus.task.output, stimulus.task.chunk)
            case on.NotStored():
                worker, *_ = self._keeping.pop(stimulus.task.key, (0, 0, ()))
                if not worker and stimulus.task.texts:
                    self.blame.confirmed()
                self._take(stimulus.task, stimulus.verdict, now_s, worker, None)
            case on.PartsDamaged() if self._backlog.handed_out(stimulus.output, stimulus.chunk):
                for part in self._outputs[stimulus.output].missing(stimulus.chunk):
                    self._backlog.put_back(Task(NOW, stimulus.output, stimulus.chunk, *part))

    def _stored(self, task: Task, *, whole: bool) -> None:
        _, device, holes = self._keeping.pop(task.key, (0, 0, ()))
        self._succeeded(task)
        if task.texts:
            self.blame.encoded(device)
        if holes:
            self._put_parts(task, [(task.start + row, task.start + row + 1) for row in holes])
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
            self._say(do.HaltRun(lastwords.all_bad(output.name, self.blame.last)))
        else:
            # Of a slice: others may have good ones; until then its chunks stay in parts.
            self._without_facts.add((number, chunk))

    def _succeeded(self, task: Task) -> None:
        self._barren_chunks = self._fruitless = 0
        self._fleet.waiting_since_s = None
        self._tries.pop(task.key, None)

    # --- devices

    def _succeeded_on(self, device: Device) -> None:
        device.waiting_since_s = None
        self._devices.succeeded(str(device.number))
        if device.node:
            self._nodes.succeeded(device.node)

    def _waits(self, verdict: Verdict, device: Device | None) -> Device | Fleet:
        """What is not ready: the device, its machine's disk, or the world of all devices."""
        own = verdict.outcome is Outcome.GPU_BUSY or (verdict.outcome is Outcome.DISK_FULL and device and device.node)
        return device if own and device is not None else self._fleet

    def _leave_out_guilty(self) -> None:
        """Do without a device or machine on which all fails that succeeds on others; the chunks get their tries back."""
        if (name := self._devices.guilty()) is not None:
            device = self._fleet.devices.get(int(name))
            halt = lastwords.failing_device(device.name if device else name, self._forgive(self._devices.pardon(name)))
            if device is not None:
                self._drop(device, halt, 0)
        if (node := self._nodes.guilty()) is not None:
            self._drop_node(node, lastwords.failing_machine(self._forgive(self._nodes.pardon(node))))

    def _forgive(self, charges: list[Charge]) -> list[Charge]:
        for charge in charges:
            if charge.task in self._tries:
                self._tries[charge.task][charge.outcome] -= 1
        return charges

    def _drop_node(self, node: str, halt: Halt) -> None:
        self._say(do.DropNode(node, halt))

    def _is_part(self, task: Task) -> bool:
        return (task.start, task.stop) != self._outputs[task.output].bounds(task.chunk)

    def _say_if(self, instruction: do.Instruction | None) -> None:
        if instruction is not None:
            self._say(instruction)
