"""What follows an attempt's end: the policy's step, and what that means for texts and devices.

Pure: `decide.policy` decides; this spells its steps out as instructions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from chunkvisor.decide import lastwords
from chunkvisor.decide.bisect import halves
from chunkvisor.decide.following import what_follows
from chunkvisor.decide.history import Budget
from chunkvisor.decide.policy import decide
from chunkvisor.decide.steps import EndRun, Isolate, Quarantine, Retry, SetAside, Split, StartAgain, Step, Wait
from chunkvisor.errors import ExitCode
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.backlog import Backlog, left_of
from chunkvisor.supervise.blame import Accused, Blame
from chunkvisor.supervise.fleet import Fleet, Gate, Worker
from chunkvisor.supervise.joins import Joins
from chunkvisor.supervise.leaving import Leaving
from chunkvisor.supervise.lessonbook import LessonBook
from chunkvisor.supervise.progress import Progress
from chunkvisor.supervise.retries import Retries
from chunkvisor.supervise.runhistory import AttemptEnd, RunHistory
from chunkvisor.supervise.takeapart import part_of, suspects_apart
from chunkvisor.supervise.task import NOW, Task, TaskKey
from chunkvisor_worker.contract.exits import Outcome


class Consequences:
    """Of each ended attempt, and of what the driver has stored."""

    def __init__(
        self,
        outputs: Sequence[Progress],
        budget: Budget,
        history: RunHistory,
        backlog: Backlog,
        fleet: Fleet,
        leaving: Leaving,
        blame: Blame,
        book: LessonBook,
        joins: Joins,
        say: Callable[[do.Instruction], None],
    ) -> None:
        """`say` hands an instruction to the driver."""
        self._outputs = outputs
        self._budget = budget
        self._history = history
        self._backlog = backlog
        self._fleet = fleet
        self._leaving = leaving
        self._blame = blame
        self._book = book
        self._joins = joins
        self._retries = Retries(history, backlog, fleet, book, say)
        self._say = say
        self._keeping: dict[TaskKey, tuple[AttemptEnd, tuple[int, ...]]] = {}
        """(whose attempt, holes) of what the driver is storing, by texts."""

    def refused(self, worker: Worker) -> None:
        """It would not run from its template, or was lost with it: no attempt; a fresh worker makes one."""
        self._backlog.put_back(replace(worker.task, fresh=True))
        self._say(do.Refuse(worker.number, worker.task))

    def heed_end(self, worker: Worker, stimulus: on.Ended | on.NotStarted, now_s: float) -> None:
        """Carry out what the policy says of an attempt that has ended, or could not begin."""
        task, device, verdict = worker.task, worker.device, stimulus.verdict
        if worker.gate is not Gate.SHUT and verdict.can_touch_gpu:
            device.suspect(now_s)
        end = AttemptEnd(task, verdict, now_s)
        if isinstance(stimulus, on.Ended):
            end.worker, end.device, end.company, end.go_s = worker.number, device, stimulus.company, worker.go_s
            if stimulus.began_s is not None:
                # What goes wrong on the device has begun with its `go`, however long before that it was prepared.
                end.began_s = max(stimulus.began_s, worker.go_s)
            end.saved, end.under_way = stimulus.saved, stimulus.under_way
        if task.control:
            self._end_control(end)
            return
        if verdict.outcome is Outcome.COMMITTED:
            device.fresh_only = False
            self._history.encoded(device)
            self._keep(end)
        else:
            end.avoid = task.avoid if verdict.blameless else device.seat
            left = self._salvage(end) if end.saved else end
            if left is not None:
                self._fail(left)
        for guilty in self._history.guilty():
            self._leaving.leave_out(guilty)

    def _salvage(self, end: AttemptEnd) -> AttemptEnd | None:
        """Keep what it has encoded; what follows is about the other texts, if there are any."""
        task = end.task
        texts = [text for text in task.wanted if text not in end.saved]
        self._keep(end, tuple(text - task.start for text in texts))
        self._history.stored(task, end.now_s)
        self._history.worked(task.output)
        if not texts:
            self._say(do.Record(end.worker, task, end.verdict))
        return replace(end, task=task.of(texts), begun=task, saved=frozenset()) if texts else None

    def _fail(self, end: AttemptEnd) -> None:
        verdict, device = end.verdict, end.device
        before = self._history.before(end)
        step = decide(verdict, before, self._budget)
        self._say(do.Record(end.worker, end.task, verdict, what_follows(step), tuple(end.suspects)))
        self._history.failed(end, step)
        if device is not None and verdict.past_its_start:
            device.fresh_only = False
        if verdict.outcome is Outcome.GPU_OOM and before.waited_s >= self._budget.wait_timeout_s:
            # Whoever holds the memory stays, and the next batch does not wait for them again.
            self._history.waited_in_vain(end)
            if device is not None and verdict.figures is not None:
                self._say(do.GetUsedTo(device.number, verdict.figures.others_bytes))
        self._do(step, end)

    def _do(self, step: Step, end: AttemptEnd) -> None:
        task, verdict, device = end.task, end.verdict, end.device
        match step:
            case Retry():
                self._retries.retry(step, end)
            case StartAgain():
                self._retries.start_again(step, end)
            case Wait():
                self._retries.again(end)
                self._retries.wait(step, end)
            case Split():
                self._split(step, end)
            case Isolate():
                self._isolate(end)
            case Quarantine():
                self._blame.accuse(Accused(task, verdict, end.worker, device.number if device else 0, end.now_s))
            case SetAside():
                self._say(do.SetAside(end.worker, task, verdict))
            case EndRun():
                self._end(step, end)

    def _split(self, step: Split, end: AttemptEnd) -> None:
        """Keep all rows but the bad ones and try those alone, or try both halves."""
        task = end.task
        if step.bad_rows and len(step.bad_rows) < task.texts:
            self._keep(end, step.bad_rows)
            return
        first, second = halves(task.wanted)
        self._say(do.Cut(task, second[0]))
        self._put_parts(task, [part_of(end, first), part_of(end, second)])

    def _isolate(self, end: AttemptEnd) -> None:
        if len(suspects := end.suspects) == 1 and (end.verdict.one_by_one or end.verdict.batch_rows == 1):
            self._history.charge(replace(end, task=end.task.of(suspects), device=None))  # it was tried alone just now
        self._put_parts(end.task, suspects_apart(end), suspects)

    def _put_parts(self, task: Task, parts: Sequence[Task], alone: Sequence[int] = ()) -> None:
        for part in parts:
            self._backlog.put_back(part)
        self._say(do.TellSplit(task, len(parts), sum(part.texts for part in parts), tuple(alone)))

    def _end(self, step: EndRun, end: AttemptEnd) -> None:
        """Do without what every further worker would fail on, or else the run ends."""
        task, verdict = end.task, end.verdict
        if step.exit_code is ExitCode.TRY_AGAIN and verdict.row_can_cause and not self._any_good():
            # Another run would come to the same.
            step = replace(step, exit_code=lastwords.code_of_nothing(verdict))
        halt = lastwords.halt_of(step, verdict, self._outputs[task.output].name, task.chunk)
        if self._leaving.do_without(step, end, halt):
            self._retries.again(end)

    def _any_good(self) -> bool:
        """Whether any text has ever got its vector."""
        return any(output.known_good() is not None for output in self._outputs)

    def _end_control(self, end: AttemptEnd) -> None:
        if isinstance(step := decide(end.verdict, self._history.before(end), self._budget), Wait):
            # A world that is not ready says nothing of the device or the texts.
            self._say(do.Discard(end.worker, end.task, end.verdict))
            self._blame.control_waits(end.task)
            self._retries.wait(step, end)
        else:
            self._blame.control_ended(end.worker, end.task, end.verdict)

    # --- what the driver has stored

    def _keep(self, end: AttemptEnd, holes: tuple[int, ...] = ()) -> None:
        self._keeping[end.task.key] = (end, holes)
        stopped = end.verdict.blameless
        self._say(do.Keep(end.worker, end.task, holes, failed=bool(end.saved), interrupted=stopped))

    def heed_storage(self, stimulus: on.StorageStimulus, now_s: float) -> None:
        """Take note of what is on the disk now, or could not be written."""
        match stimulus:
            case on.Stored():
                self._stored(stimulus.task, now_s, whole=stimulus.whole)
            case on.Quarantined():
                self._blame.confirmed()
                self._history.stored(stimulus.task, now_s)
                self._joins.compose_if_known(stimulus.task.output, stimulus.task.chunk)
            case on.NotStored():
                kept, _ = self._keeping.pop(stimulus.task.key, (None, ()))
                if kept is not None and kept.saved:
                    self._backlog.put_back(part_of(kept, sorted(kept.saved)))
                    return
                if kept is None and stimulus.task.texts:
                    self._blame.confirmed()
                self._fail(AttemptEnd(stimulus.task, stimulus.verdict, now_s, kept.worker if kept is not None else 0))
            case on.PartsDamaged() if self._backlog.handed_out(stimulus.output, stimulus.chunk):
                output = self._outputs[stimulus.output]
                chunk = Task(NOW, stimulus.output, stimulus.chunk, *output.bounds(stimulus.chunk))
                for task in left_of(chunk, output.missing(stimulus.chunk), output.cuts(stimulus.chunk)):
                    self._backlog.put_back(task)

    def _stored(self, task: Task, now_s: float, *, whole: bool) -> None:
        kept, holes = self._keeping.pop(task.key, (None, ()))
        self._history.stored(task, now_s)
        if kept is not None and kept.device is not None:
            self._blame.encoded(kept.device.number, kept.go_s, task)
        if kept is not None and holes and not kept.saved:
            bad = [task.start + row for row in holes]
            self._put_parts(task, [part_of(kept, [text], hole=True) for text in bad], bad)
        if whole:
            self._history.worked(task.output)
            for kind in self._fleet.kinds:
                if (saved := self._book.confirm(kind)) is not None:
                    self._say(saved)
            self._joins.begin_if_complete(task.output)
        elif not holes:
            self._joins.compose_if_known(task.output, task.chunk)
        self._joins.compose_late()

    def _say_if(self, instruction: do.Instruction | None) -> None:
        if instruction is not None:
            self._say(instruction)
