"""Says what a run does next. Pure: it learns what happens, and looks only at the clock and the outputs.

Whatever it hears, it answers with instructions, in order.
"""

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from chunkvisor.config.choices import OnBadRow
from chunkvisor.config.model import Config
from chunkvisor.devices.stations import Health, Opinion
from chunkvisor.errors import ExitCode
from chunkvisor.heart import policy
from chunkvisor.heart.instructions import (
    AskToLeave,
    AttemptEnded,
    DropDevice,
    Ending,
    EndRun,
    EndWorker,
    Instruction,
    KeepVectors,
    LookAtDevice,
    LowerLimits,
    OpenGate,
    QuarantineTexts,
    StartWorker,
    TellFailure,
    TellSplit,
    TellWait,
    Work,
)
from chunkvisor.heart.policy import OWN, How, Memory, cause_of, start_of
from chunkvisor.judge import Company, Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, Phase

if TYPE_CHECKING:
    from chunkvisor.heart.output import OutputRun

LOOK_PAUSE_S = 2.0  # between two looks at a device that is not fit
RESERVE, RESERVE_S = (
    0.2,
    10.0,
)  # of the time until a run has to end, kept for what follows the last worker; at most


class Backlog:
    """What is pending: a position in each output, and what was put back."""

    def __init__(self, outputs: "Sequence[OutputRun]") -> None:
        self._outputs = outputs
        self._next = [0] * len(outputs)
        self._again: list[Work] = []
        self._left: set[tuple[int, int]] = set()  # chunks left to the next run

    def put_back(self, work: Work) -> None:
        """Have the texts tried, or tried again."""
        if (work.output, work.chunk) not in self._left:
            insort(
                self._again,
                work,
                key=lambda each: (each.due_s, each.output, each.texts[0], each.texts[-1]),
            )

    def lost(self, output: int, chunk: int) -> None:
        """Note that something stored of the chunk is gone."""
        if chunk < self._next[output] and (texts := self._outputs[output].missing(chunk)):
            self.put_back(Work(output, chunk, tuple(texts)))

    def leave(self, output: int, chunk: int) -> None:
        """Leave what is pending of the chunk to the next run, and what still comes back."""
        self._left.add((output, chunk))
        self._again = [work for work in self._again if (work.output, work.chunk) != (output, chunk)]

    def take(self, now_s: float, device: int, *, alone: bool) -> Work | None:
        """Take the next that may start on this device.

        What failed last on this device is left for others unless the device is `alone`.
        """
        # While no text of the output has a vector, a chunk that failed may be bad throughout: another one may show that
        # the model works, and gives a canary.
        any_new = self._any_new()
        for position in range(bisect_right(self._again, now_s, key=lambda work: work.due_s)):
            work = self._again[position]
            if any_new and work.doubt and self._outputs[work.output].known_good() is None:
                continue
            if alone or work.avoid != device:
                return self._again.pop(position)
        for number, output in enumerate(self._outputs):
            if (chunk := output.next_pending(self._next[number])) is not None:
                self._next[number] = chunk + 1
                # A range costs nothing to hold; a tuple of the texts of 50,000 chunks would.
                missing, whole = output.missing(chunk), range(*output.bounds(chunk))
                return Work(number, chunk, whole if len(missing) == len(whole) else tuple(missing))
        return None

    @property
    def empty(self) -> bool:
        """Whether nothing is pending, now or later, except what was handed out."""
        return not self._again and not self._any_new()

    def _any_new(self) -> bool:
        return any(
            output.next_pending(at) is not None
            for output, at in zip(self._outputs, self._next, strict=True)
        )


class GateState(Enum):
    """Where a worker stands before its device."""

    SHUT = "shut"
    OPEN = "open"
    PASSED = "passed"  # it has given its device back


@dataclass(slots=True, eq=False)
class WorkerState:
    """From the order to start it to its judged end."""

    number: int
    work: Work
    device: "DeviceState"
    canary: int | None = None
    gate: GateState = GateState.SHUT
    ready: bool = False
    ending: bool = False  # or ended already, and not judged yet
    leaving: bool = False
    go_s: float = -math.inf


@dataclass(slots=True, eq=False)
class DeviceState:
    """One device, until its last worker has ended."""

    number: int
    node: str  # the machine of a cluster that it belongs to; empty for our own
    kind: str
    watched: bool  # there is something to look with
    gone: bool = False
    paused_until_s: float = 0.0
    doubt: bool = False  # the last attempt on it failed: the next begins with a canary
    fresh: bool = False  # a worker from a template did not start on it
    suspected_s: float | None = (
        None  # since when it is to be looked at before the next worker gets it
    )
    look_s: float = 0.0  # when it may be looked at; inf = it is being looked at
    workers: list[WorkerState] = field(default_factory=list)

    def at(self, *gates: GateState) -> int:
        """Count its workers that stand there."""
        return sum(worker.gate in gates for worker in self.workers)


class Scheduler:
    """Runs the pending texts of all outputs on all devices."""

    def __init__(
        self,
        outputs: "Sequence[OutputRun]",
        config: Config,
        recall: Callable[[str], tuple[int, int | None] | None],
        clock: Callable[[], float],
    ) -> None:
        """`recall` has what earlier runs learnt of each kind of device."""
        self._outputs, self._clock = outputs, clock
        self._workers, self._recovery = config.workers, config.recovery
        self._memory = Memory(recall)
        self._backlog = Backlog(outputs)
        self.devices: dict[int, DeviceState] = {}
        self.workers: dict[int, WorkerState] = {}
        self.paused_until_s = 0.0
        self._started = 0
        self._said: list[Instruction] = []
        self._draining = False
        self.last_s = math.inf  # when the workers have to be gone

    @property
    def finished(self) -> bool:
        """Whether nothing is in progress, and nothing left to do."""
        return not self.workers and (self._draining or self._backlog.empty)

    @property
    def alive(self) -> list[DeviceState]:
        """The devices that are left to the run."""
        return [device for device in self.devices.values() if not device.gone]

    def _answer(self) -> list[Instruction]:
        said, self._said = self._said, []
        return said

    def _say(self, instruction: Instruction) -> None:
        self._said.append(instruction)

    # --- turns: who gets which texts, and who its device

    def tick(self, held: Collection[int] = ()) -> list[Instruction]:
        """Take a turn; on devices that are `held`, nothing is to be started yet."""
        now_s, alive = self._clock(), self.alive
        if self._draining:
            self._drain(now_s)
            return self._answer()
        working = [each for each in alive if now_s >= max(each.paused_until_s, self.paused_until_s)]
        for device in working:
            self._open_gates(device, now_s)
        # Each time that memory of the machine ran out, one worker less is prepared ahead.
        places = self._workers.per_device + max(0, self._workers.standby - self._memory.host_ooms)
        for place in range(places):  # every device gets its first worker before any gets a second
            for device in working:
                if device.at(GateState.SHUT, GateState.OPEN) > place or device.number in held:
                    continue
                if (
                    work := self._backlog.take(now_s, device.number, alone=len(working) == 1)
                ) is not None:
                    self._start(work, device)
        return self._answer()

    def _start(self, work: Work, device: DeviceState) -> None:
        canary = None
        if device.doubt or work.doubt:
            own = _shows_its_shortest(work)
            canary = None if own else self._outputs[work.output].known_good()
            if canary is None:  # each time another of its own: the shortest may be bad itself
                failed = (
                    ("too large", (work.output, work.chunk)) if own else ("canary", device.number)
                )
                canary = OWN - self._memory.count(*failed)
        # A template that failed to start on a device may be what is broken: the next worker gets a new interpreter.
        work = replace(work, fresh=work.fresh or device.fresh)
        self._started += 1
        worker = WorkerState(self._started, work, device, canary)
        self.workers[worker.number] = worker
        device.workers.append(worker)
        self._say(StartWorker(worker.number, device.number, work, self._limits(worker), canary))

    def _limits(self, worker: WorkerState) -> Limits:
        limits = self._memory.limits(self._outputs[worker.work.output].limits, worker.device.kind)
        return replace(limits, rows=1, alone=True) if worker.work.one_by_one else limits

    def called(self, number: int, *, freed: bool) -> list[Instruction]:
        """Hear that the worker waits at the gate, or (`freed`) has given its device back."""
        if (worker := self.workers.get(number)) is not None:
            worker.ready = True
            worker.gate = GateState.PASSED if freed else worker.gate
            self._open_gates(worker.device, self._clock())
        return self._answer()

    def _open_gates(self, device: DeviceState, now_s: float) -> None:
        if self._draining or device.gone or now_s < max(device.paused_until_s, self.paused_until_s):
            return
        waiting = [
            each
            for each in device.workers
            if each.ready and each.gate is GateState.SHUT and not each.ending
        ]
        for worker in waiting[: max(0, self._workers.per_device - device.at(GateState.OPEN))]:
            # Something failed on it that can come from the device: nothing runs there before nvidia-smi has been asked.
            if device.suspected_s is not None:
                if now_s >= device.look_s:
                    device.look_s = math.inf
                    self._say(LookAtDevice(device.number))
                return
            worker.gate, worker.go_s = GateState.OPEN, now_s
            self._say(OpenGate(worker.number, self._limits(worker)))

    def gone(self, number: int) -> None:
        """Hear that the worker has ended; how, comes later: until then no gate is opened for it."""
        self.workers[number].ending = True

    # --- devices

    def seen(
        self, number: int, node: str, kind: str, opinion: Opinion | None, *, gone: bool
    ) -> list[Instruction]:
        """Hear that a device may be worked on, was looked at, or is gone.

        Devices of one `kind` share what is learnt. No opinion: there is nothing to look with.
        """
        device = self.devices.get(number)
        if device is not None and gone:
            self._leave(device)
        elif device is not None and opinion is not None and device.suspected_s is not None:
            self._looked(device, opinion, device.suspected_s)
        elif device is None and not gone:
            self.devices[number] = device = DeviceState(number, node, kind, opinion is not None)
            if opinion is not None and opinion.health is Health.BROKEN:
                # Others may be about to join: it is looked at again before a worker gets it.
                device.suspected_s = self._clock()
        return self._answer()

    def _looked(self, device: DeviceState, opinion: Opinion, since_s: float) -> None:
        now_s = self._clock()
        device.look_s = now_s + LOOK_PAUSE_S
        if opinion.health is Health.BROKEN:
            verdict = Verdict(Outcome.HARDWARE_FAULT, opinion.why)
            self._do_without(
                device, Ending(ExitCode.MACHINE, "broken", verdict=verdict), local=True
            )
        elif opinion.health is Health.BUSY:
            if now_s - max(since_s, self._memory.success_s) > self._recovery.wait_timeout:
                verdict = Verdict(Outcome.GPU_BUSY, opinion.why)
                self._do_without(
                    device, Ending(ExitCode.TRY_AGAIN, "busy", verdict=verdict), local=True
                )
        else:
            device.suspected_s = None
            device.look_s = now_s
            self._open_gates(device, now_s)

    def _leave(self, device: DeviceState) -> None:
        # It stays known until its last worker has ended, so that their ends are judged like all others.
        device.gone = True
        for worker in device.workers:
            self._end(worker)
        self._tidy(device)

    def _tidy(self, device: DeviceState) -> None:
        if device.gone and not device.workers:
            self.devices.pop(device.number, None)

    def _do_without(self, device: DeviceState, ending: Ending, *, local: bool) -> None:
        """Do without the device, or end the run if it is the last of our own machine, or not `local`."""
        # On our own machine the set-up and the disk are those of every device.
        of_machine = ending.why == "halted" and ending.code in (ExitCode.CONFIG, ExitCode.DISK)
        if not local or (of_machine and not device.node):
            self._say(EndRun(ending))
        elif not device.gone:
            ending, last = replace(ending, device=device.number), len(self.alive) == 1
            # On a cluster others may join.
            self._say(EndRun(ending) if last and not device.node else DropDevice(ending))
            self._leave(device)

    # --- ends

    def ended(self, end: AttemptEnded) -> list[Instruction]:
        """Hear what became of a worker."""
        worker, verdict, now_s = self.workers.pop(end.worker), end.verdict, self._clock()
        device, work = worker.device, worker.work
        device.workers.remove(worker)
        self._tidy(device)
        if verdict is None:
            self._backlog.put_back(replace(work, fresh=True))
        elif verdict.outcome is Outcome.COMMITTED:
            # It has worked: the next attempt needs no canary, and may come from the template again.
            device.doubt = device.fresh = False
            self._memory.encoded(device.number, device.node)
            self._keep(end.worker, work)
        else:
            if worker.gate is not GateState.SHUT and verdict.can_touch_gpu and device.watched:
                device.suspected_s = now_s if device.suspected_s is None else device.suspected_s
            left = work.texts
            if end.done:
                # Before the decision: what it has brought counts, though the disk has not answered yet. Otherwise a
                # run could end for want of any vector with the first one in its hands.
                self._memory.stored(work.output, now_s)
                self._keep(
                    end.worker,
                    work.of([text for text in work.texts if text in end.done], part=True),
                )
                left = [text for text in work.texts if text not in end.done]
            if left:
                rest = work.of(left, tries=work.tries) if end.done else work
                self._fail(rest, end, verdict, worker)
            else:
                self._say(TellFailure(end.worker, work, verdict, None, ()))
        # The verdict comes before the next `go` of the device: it may have something to teach.
        self._open_gates(device, now_s)
        return self._answer()

    def _keep(self, worker: int, work: Work) -> None:
        self._memory.forget("too large", (work.output, work.chunk))
        self._say(KeepVectors(worker, work))

    def _fail(self, work: Work, end: AttemptEnded, verdict: Verdict, worker: WorkerState) -> None:
        """Carry out what follows of an attempt that failed."""
        memory, device = self._memory, worker.device
        step = policy.decide(verdict, self._history(work, end, verdict, worker), self._recovery)
        suspects = tuple(text for text in work.texts if text in end.under_way)
        self._say(TellFailure(end.worker, work, verdict, step, suspects))
        # Remembered for the whole run: whoever prepares workers ahead takes the memory that was short.
        memory.host_ooms += verdict.outcome is Outcome.HOST_OOM
        if policy.fruitless(step, verdict, len(work.texts)):
            memory.note("fruitless")
        # A wait, a lesson and a start that failed say nothing of the texts.
        passing = isinstance(step, policy.Wait) or (
            isinstance(step, policy.Retry) and step.lesson is not None
        )
        doubt = verdict.row_can_cause and not (passing or verdict.before_first_batch)
        doubt = doubt and verdict.outcome is not Outcome.BAD_INPUT
        device.doubt = device.doubt or doubt
        if verdict.phase in (Phase.FORWARD, Phase.WRITE, Phase.DONE):  # it got to its first batch
            device.fresh = False
            memory.started(device.number, device.node, verdict.outcome)
        if end.proven:
            memory.forget("canary", device.number)
        avoid = work.avoid if verdict.blameless else device.number
        fresh = work.fresh or verdict.outcome is not Outcome.LOST
        again = replace(work, avoid=avoid, fresh=fresh, doubt=work.doubt or doubt, due_s=0.0)
        match step:
            case policy.Retry():
                self._retry(step, again, end, verdict, worker)
            case policy.Wait():
                where = cause_of(verdict, device.number, device.node)
                self._wait(step.delay_s, again, verdict, device if where is not None else None)
            case policy.Split():
                self._split(step.how, again, end, verdict)
            case policy.Quarantine():
                bad = self._keep_good(again, end, verdict) or work
                count = len(bad.texts) + sum(each.bad_count for each in self._outputs)
                if (
                    self._recovery.on_bad_row is OnBadRow.FAIL
                    or count > self._recovery.max_bad_rows
                ):
                    self._say(EndRun(Ending(ExitCode.CONFIG, "bad rows", end.worker, bad, verdict)))
                else:
                    self._say(QuarantineTexts(bad, verdict))
            case policy.GiveUp():
                memory.note("given up")
                self._backlog.leave(work.output, work.chunk)
            case policy.Stop():
                self._do_without(
                    device, Ending(step.code, step.why, end.worker, work, verdict), local=step.local
                )
                self._backlog.put_back(again)  # for the other devices

    def _wait(
        self, delay_s: float, work: Work, verdict: Verdict, device: DeviceState | None
    ) -> None:
        """Pause on the device, or (None) everywhere."""
        now_s, where = self._clock(), device.number if device is not None else None
        waited_s = self._memory.lasts_s(verdict.outcome, where, now_s)
        self._memory.note(verdict.outcome, where, now_s=now_s)
        waits = device if device is not None else self
        waits.paused_until_s = max(waits.paused_until_s, now_s + delay_s)
        self._say(TellWait(where, delay_s, waited_s, verdict))
        self._backlog.put_back(work)

    def _history(
        self, work: Work, end: AttemptEnded, verdict: Verdict, worker: WorkerState
    ) -> policy.History:
        memory, now_s, device, node = (
            self._memory,
            self._clock(),
            worker.device.number,
            worker.device.node,
        )
        start, chunk = start_of(verdict, device, node), (work.output, work.chunk)
        starts = 0
        if end.began_s is not None:
            # What goes wrong on the device begins with its `go`, however long before that it was prepared.
            starts = memory.count("start", start, max(end.began_s, worker.go_s))
        # Every device may fail as often as a chunk is tried, without a success in between.
        fruitless = memory.count("fruitless") - self._recovery.attempts * max(
            0, len(self.alive) - 1
        )
        if any(each.gate is GateState.PASSED for each in self.workers.values()):
            fruitless = 0  # that one has given its device back: it is about to bring vectors
        return policy.History(
            texts=len(work.texts),
            tries=work.tries.count(verdict.outcome),
            canary=worker.canary,
            chosen=_shows_its_shortest(work),
            proven=end.proven,
            good=bool(end.done) or self._outputs[work.output].known_good() is not None,
            worked=start in memory.sound
            if verdict.before_first_batch
            else work.output in memory.worked,
            part=work.part,
            under_way=sum(text in end.under_way for text in work.texts),
            one_by_one=work.one_by_one,
            company=end.company,
            waited_s=memory.waited_s(verdict.outcome, cause_of(verdict, device, node), now_s),
            failing_s=memory.lasts_s("start", start, now_s),
            starts=starts,
            canaries=memory.count("canary", device, worker.go_s),
            given_up=memory.count("given up"),
            fruitless=max(0, fruitless),
            too_large=memory.count("too large", chunk),
        )

    def _retry(
        self,
        step: policy.Retry,
        work: Work,
        end: AttemptEnded,
        verdict: Verdict,
        worker: WorkerState,
    ) -> None:
        now_s, device = self._clock(), worker.device
        due_s = now_s + step.delay_s if step.delay_s else 0.0
        if step.charge:
            work = replace(work, tries=(*work.tries, verdict.outcome))
        if (
            step.lesson is not None
            and (lesson := self._memory.learn(device.kind, step.lesson)) is not None
        ):
            # Later runs should not know what is so only while others hold memory.
            lasting = end.company in (Company.UNTOLD, Company.ALONE)
            self._say(LowerLimits(device.kind, lesson, lasting))
        if step.note == "too large":
            self._memory.note("too large", (work.output, work.chunk))
        elif step.note == "canary":
            self._memory.note("canary", device.number, worker.go_s, now_s)
        elif step.note == "start":
            if end.began_s is None:  # a template did not start
                device.fresh = True
            else:
                start = start_of(verdict, device.number, device.node)
                self._memory.note("start", start, max(end.began_s, worker.go_s), now_s)
            device.paused_until_s = max(device.paused_until_s, due_s)
            due_s += (
                step.delay_s
            )  # others first: they show whether it is the device, the model, or chance
        self._backlog.put_back(replace(work, due_s=due_s))

    def _split(self, how: How, work: Work, end: AttemptEnded, verdict: Verdict) -> None:
        texts = list(work.texts)
        if how is How.BAD:
            bad = self._keep_good(work, end, verdict)
            assert bad is not None, verdict
            pieces = [replace(bad, one_by_one=True)]
        elif how is How.SUSPECTS:
            suspects = [text for text in texts if text in end.under_way]
            others = [text for text in texts if text not in end.under_way]
            alone = len(suspects) == 1
            # In a batch by itself after a proof, it was alone just now.
            tries = (verdict.outcome,) if alone and end.proven else ()
            pieces = [work.of(suspects, part=True, one_by_one=not alone, tries=tries)]
            pieces += [work.of(others, part=True)] if others else []
        else:
            middle = len(texts) // 2
            pieces = [
                work.of(half, part=True, one_by_one=False)
                for half in (texts[:middle], texts[middle:])
            ]
        for piece in pieces:
            self._backlog.put_back(piece)
        self._say(TellSplit(work, tuple(pieces), how))

    def _keep_good(self, work: Work, end: AttemptEnded, verdict: Verdict) -> Work | None:
        """Have the good vectors stored, and give the texts whose vectors are bad; None if it is not vectors."""
        bad = {work.texts[0] + row for row in verdict.bad_rows}
        if good := [text for text in work.texts if bad and text not in bad]:
            self._keep(end.worker, work.of(good, part=True))
        return work.of(sorted(bad), part=True) if bad else None

    def stored(self, work: Work, problem: Verdict | None) -> list[Instruction]:
        """Hear that vectors, or that a text gets none, are on the disk, or (`problem`) that it would not take them."""
        now_s, output = self._clock(), self._outputs[work.output]
        if problem is not None:  # they are computed again
            waited_s = self._memory.waited_s(problem.outcome, None, now_s)
            step = policy.decide(problem, policy.History(waited_s=waited_s), self._recovery)
            if isinstance(step, policy.Wait):
                self._wait(step.delay_s, work, problem, None)
            else:
                self._say(EndRun(Ending(ExitCode.DISK, "halted", work=work, verdict=problem)))
            return self._answer()
        self._memory.stored(work.output, now_s)
        if output.bad_count >= output.texts:
            self._say(EndRun(Ending(ExitCode.CONFIG, "all bad", work=work)))
        return self._answer()

    def lost(self, output: int, chunk: int) -> None:
        """Hear that something that was stored of the chunk is damaged, and was discarded."""
        self._backlog.lost(output, chunk)

    # --- the end of a run

    def stop(self, until_s: float | None) -> list[Instruction]:
        """Start nothing new; be done by then (None = as long as it takes, -inf = at once)."""
        self._draining = True
        if until_s is not None:
            left_s = max(0.0, until_s - self._clock())
            self.last_s = until_s - min(RESERVE * left_s, RESERVE_S)
        self._drain(self._clock())
        return self._answer()

    def _drain(self, now_s: float) -> None:
        """Have those leave who compute, if the time is limited, and end who is still there when it is over."""
        for worker in self.workers.values():
            if worker.gate is GateState.SHUT or now_s >= self.last_s:
                self._end(worker)
            elif (
                worker.gate is GateState.OPEN
                and self.last_s < math.inf
                and not (worker.leaving or worker.ending)
            ):
                worker.leaving = True
                self._say(AskToLeave(worker.number))

    def _end(self, worker: WorkerState) -> None:
        if not worker.ending:
            worker.ending = True
            self._say(EndWorker(worker.number))


def _shows_its_shortest(work: Work) -> bool:
    """Say whether, of texts that lacked the GPU's memory, the shortest has to show if that is a matter of length."""
    return len(work.texts) > 1 and Outcome.GPU_OOM in work.tries
