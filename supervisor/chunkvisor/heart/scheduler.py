"""Says what a run does next. Pure: events in, commands out; it only looks at the clock, the outputs and the engine."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from chunkvisor.devices.health import Health, Opinion
from chunkvisor.errors import ExitCode
from chunkvisor.heart import messages, policy
from chunkvisor.heart.memory import Memory, cause_of, start_of
from chunkvisor.heart.messages import (
    OWN,
    AttemptEnded,
    Dropped,
    End,
    Failed,
    Learnt,
    Look,
    OpenGate,
    RunHalts,
    RunWaits,
    StartWorker,
    StoreVectors,
    TakenApart,
    Tell,
)
from chunkvisor.heart.policy import How
from chunkvisor.heart.work import Backlog, DevicePlace, OutputProgress, Work
from chunkvisor.judge import Budget, Company, Verdict
from chunkvisor.words import BadRows
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits

LOOK_PAUSE_S = 2.0
"""Between two looks at a device that is not fit."""

RESERVE, RESERVE_S = 0.2, 10.0
"""Of the time until a run has to end, kept for what follows the last worker; at most so much."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the scheduler needs of the config."""

    per_device: int = 1
    standby: int = 1
    budget: Budget = field(default_factory=Budget)
    bad_rows: BadRows = field(default_factory=BadRows)


class LoopView(Protocol):
    """What the loop can answer at once."""

    def holding(self, device: int) -> bool:
        """Say whether nothing is to be started there yet."""

    def has_room(self, device: int) -> bool:
        """Say whether its machine has memory for one worker more."""

    def left_s(self, worker: int) -> float | None:
        """Say in how many seconds the worker has its last vector; None = it has done no batch yet."""


class GateState(Enum):
    """Where a worker stands before its device."""

    SHUT = "shut"
    OPEN = "open"
    PASSED = "passed"
    """It has given its device back."""


@dataclass(slots=True, eq=False)
class WorkerState:
    """From the order to start it to its judged end."""

    number: int
    work: Work
    device: "DeviceState"
    canary: int | None = None
    gate: GateState = GateState.SHUT
    ready: bool = False
    ending: bool = False
    leaving: bool = False
    go_s: float = -math.inf


@dataclass(slots=True, eq=False)
class DeviceState:
    """One device, until its last worker has ended."""

    place: DevicePlace
    kind: str
    watched: bool
    """Whether there is something to look with."""
    gone: bool = False
    paused_until_s: float = 0.0
    doubt: bool = False
    """Whether the last attempt on it failed: the next begins with a canary."""
    fresh: bool = False
    """Whether a worker from a template did not start on it."""
    suspected_s: float | None = None
    """Since when it is to be looked at before the next worker gets it."""
    look_s: float = 0.0
    """When it may be looked at; inf = it is being looked at."""
    workers: list[WorkerState] = field(default_factory=list)

    def at(self, *gates: GateState) -> int:
        """Count its workers that stand there."""
        return sum(worker.gate in gates for worker in self.workers)


class Scheduler:
    """Runs the pending texts of all outputs on all devices."""

    def __init__(
        self,
        outputs: Sequence[OutputProgress],
        settings: Settings,
        recall: Callable[[str], tuple[int, int | None] | None],
        view: LoopView,
        clock: Callable[[], float],
    ) -> None:
        """`recall` has what earlier runs learnt of each kind of device."""
        self._outputs, self._settings, self._view, self._clock = outputs, settings, view, clock
        self._memory = Memory(recall)
        self._backlog = Backlog(outputs)
        self.devices: dict[int, DeviceState] = {}
        self.workers: dict[int, WorkerState] = {}
        self.paused_until_s = 0.0
        self._started = 0
        self._out: list[messages.Command] = []
        self._unfit: RunHalts | None = None
        """Why the last device that could not be used when it joined was so."""
        self._draining = False
        self._last_s = self._halfway_s = math.inf

    @property
    def finished(self) -> bool:
        """Whether nothing is under way, and nothing left to do."""
        return not self.workers and (self._draining or self._backlog.empty)

    @property
    def alive(self) -> list[DeviceState]:
        """The devices that are left to the run."""
        return [device for device in self.devices.values() if not device.gone]

    def handle(self, event: messages.Event) -> list[messages.Command]:
        """Say what is to be done now that this has happened, in order."""
        now_s = self._clock()
        match event:
            case messages.Tick():
                self._turn(now_s)
            case messages.DeviceSeen():
                self._device(event, now_s)
            case messages.Called() if (worker := self.workers.get(event.worker)) is not None:
                worker.ready = True
                worker.gate = GateState.PASSED if event.freed else worker.gate
                self._open_gates(worker.device, now_s)
            case AttemptEnded() if event.worker in self.workers:
                self._ended(event, now_s)
            case messages.Stored():
                self._stored(event, now_s)
            case messages.Lost():
                self._backlog.lost(event.output, event.chunk)
            case messages.StopBy():
                self._stop(event.until_s, now_s)
        said, self._out = self._out, []
        return said

    def _say(self, command: messages.Command) -> None:
        self._out.append(command)

    # --- turns: who gets which texts, and who its device

    def _turn(self, now_s: float) -> None:
        if self._draining:
            self._drain(now_s)
            return
        alive = self.alive
        if self._unfit is not None and not alive:
            self._say(Tell(self._unfit))
            return
        working = [each for each in alive if now_s >= max(each.paused_until_s, self.paused_until_s)]
        for device in working:
            self._open_gates(device, now_s)
        per_device = self._settings.per_device
        # Each time that memory of the machine ran out, one worker less is prepared ahead.
        places = per_device + max(0, self._settings.standby - self._memory.host_ooms)
        for place in range(places):  # every device gets its first worker before any gets a second
            for device in working:
                if device.at(GateState.SHUT, GateState.OPEN) > place or self._view.holding(device.place.device):
                    continue
                if place >= per_device and not self._view.has_room(device.place.device):
                    continue
                if not self._backlog.due(now_s):
                    return
                work = self._backlog.take(now_s, device.place.device, alone=len(working) == 1)
                if work is not None:
                    self._start(work, device)

    def _start(self, work: Work, device: DeviceState) -> None:
        canary = None
        if device.doubt or work.doubt:
            good = self._outputs[work.output].known_good() if not work.shortest_first else None
            # Each time another of its own: the shortest may be bad itself.
            canary = good if good is not None else OWN - self._memory.count("canary", device.place.device)
        # A template that failed to start on a device may be what is broken: the next worker gets a new interpreter.
        work = replace(work, fresh=work.fresh or device.fresh)
        self._started += 1
        worker = WorkerState(self._started, work, device, canary)
        self.workers[worker.number] = worker
        device.workers.append(worker)
        self._say(StartWorker(worker.number, device.place.device, work, self._limits(worker), canary))

    def _limits(self, worker: WorkerState) -> Limits:
        limits = self._memory.limits(self._outputs[worker.work.output].limits, worker.device.kind)
        return replace(limits, rows=1, alone=True) if worker.work.one_by_one else limits

    def _open_gates(self, device: DeviceState, now_s: float) -> None:
        if self._draining or device.gone or now_s < max(device.paused_until_s, self.paused_until_s):
            return
        waiting = [each for each in device.workers if each.ready and each.gate is GateState.SHUT and not each.ending]
        for worker in waiting[: max(0, self._settings.per_device - device.at(GateState.OPEN))]:
            # Something failed on it that can come from the device: nothing runs there before nvidia-smi has been asked.
            if device.suspected_s is not None:
                if now_s >= device.look_s:
                    device.look_s = math.inf
                    self._say(Look(device.place.device))
                return
            worker.gate, worker.go_s = GateState.OPEN, now_s
            self._say(OpenGate(worker.number, self._limits(worker)))

    # --- devices

    def _device(self, event: messages.DeviceSeen, now_s: float) -> None:
        device, opinion = self.devices.get(event.number), event.opinion
        if device is None and not event.gone:
            device = DeviceState(DevicePlace(event.number, event.node), event.kind, opinion is not None)
            self.devices[event.number] = device
            if opinion is not None and opinion.health is Health.BROKEN:
                # Others may be about to join: whether this was the last shows in the next turn.
                if not event.node:
                    self._unfit = RunHalts(ExitCode.MACHINE, "broken", place=event.number, verdict=_seen(opinion))
                self._leave(device, Dropped(event.number, ExitCode.MACHINE, "broken", verdict=_seen(opinion)))
        elif device is not None and event.gone:
            self._leave(device)
        elif device is not None and opinion is not None and device.suspected_s is not None:
            self._looked(device, opinion, now_s)

    def _looked(self, device: DeviceState, opinion: Opinion, now_s: float) -> None:
        device.look_s = now_s + LOOK_PAUSE_S
        if opinion.health is Health.BROKEN:
            self._do_without(device, policy.Stop(ExitCode.MACHINE, policy.Scope.DEVICE, "broken"), _seen(opinion))
        elif opinion.health is Health.BUSY:
            waited_s = now_s - max(device.suspected_s or 0.0, self._memory.success_s)
            if waited_s > self._settings.budget.wait_timeout_s:
                stop = policy.Stop(ExitCode.TRY_AGAIN, policy.Scope.DEVICE, "busy")
                self._do_without(device, stop, _seen(opinion), waited_s=waited_s)
        # Settling: memory of a worker that has just ended is still being freed; it is looked at again.
        elif opinion.health is not Health.SETTLING:
            device.suspected_s, device.look_s = None, now_s
            self._open_gates(device, now_s)

    def _leave(self, device: DeviceState, dropped: Dropped | None = None) -> None:
        """Note that the device is gone, or (`dropped`) that the run does without it."""
        if dropped is not None:
            self._say(Tell(dropped))
        # It stays known until its last worker has ended, so that their ends are judged like all others.
        device.gone = True
        for worker in device.workers:
            self._end(worker, "its device was dropped")
        self._tidy(device)

    def _tidy(self, device: DeviceState) -> None:
        if device.gone and not device.workers:
            self.devices.pop(device.place.device, None)

    def _do_without(
        self,
        device: DeviceState | None,
        stop: policy.Stop,
        verdict: Verdict | None,
        worker: int = 0,
        work: Work | None = None,
        waited_s: float = 0.0,
    ) -> bool:
        """Do without the device, or its machine; False where that leaves nothing of our own: the run ends."""
        node, last = device.place.node if device is not None else "", len(self.alive) == 1
        scope = stop.scope
        if (
            stop.why in ("canary", "first")
            and node
            and all(each.doubt for each in self.alive if each.place.node == node)
        ):
            scope = policy.Scope.NODE  # not one of its devices can do it
        if scope is policy.Scope.NODE and not node:  # our own machine: but it may be this device alone
            scope = policy.Scope.DEVICE if stop.code is ExitCode.MACHINE else policy.Scope.RUN
        of_run = scope is policy.Scope.RUN
        of_last = scope is policy.Scope.DEVICE and last and not node and device is not None and not device.gone
        if device is None or of_run or of_last:
            place = device.place.device if device is not None and of_last else None
            output = work.output if work is not None else 0
            self._say(Tell(RunHalts(stop.code, stop.why, worker, work, verdict, place, output, waited_s=waited_s)))
            return False
        where: int | str = node if scope is policy.Scope.NODE else device.place.device
        dropped = Dropped(where, stop.code, stop.why, worker, work, verdict, waited_s)
        if scope is policy.Scope.NODE:
            self._say(Tell(dropped))
            for each in [each for each in self.alive if each.place.node == node]:
                self._leave(each)
        elif not device.gone:
            self._leave(device, dropped)
        return True

    # --- ends

    def _ended(self, end: AttemptEnded, now_s: float) -> None:
        worker = self.workers.pop(end.worker)
        device, work, verdict = worker.device, worker.work, end.verdict
        device.workers.remove(worker)
        self._tidy(device)
        if verdict is None:
            self._backlog.put_back(replace(work, fresh=True))
            self._say(Tell(Failed(end.worker, work, None)))
        elif verdict.outcome is Outcome.COMMITTED:
            # It has worked: the next attempt needs no canary, and may come from the template again.
            device.doubt = device.fresh = False
            self._memory.encoded(device.place)
            self._got_vectors(work)
            self._say(StoreVectors(end.worker, work))
        else:
            if worker.gate is not GateState.SHUT and verdict.can_touch_gpu and device.watched:
                device.suspected_s = now_s if device.suspected_s is None else device.suspected_s
            rest: Work | None = work
            if end.done:
                # Before the decision: what it has brought counts, though the disk has not answered yet. Otherwise a
                # run could end for want of any vector with the first one in its hands.
                self._memory.stored(work.output, now_s)
                self._got_vectors(work)
                self._say(
                    StoreVectors(end.worker, work.of([text for text in work.texts if text in end.done], part=True))
                )
                left = [text for text in work.texts if text not in end.done]
                rest = work.of(left, tries=work.tries) if left else None
            if rest is not None:
                self._fail(rest, end, verdict, worker, now_s)
            else:
                self._say(Tell(Failed(end.worker, work, verdict)))
        # The verdict comes before the next `go` of the device: it may have something to teach.
        self._open_gates(device, now_s)

    def _got_vectors(self, work: Work) -> None:
        self._memory.fits.add((work.output, work.chunk))
        self._memory.forget("dimension")

    def _fail(self, work: Work, end: AttemptEnded, verdict: Verdict, worker: WorkerState | None, now_s: float) -> None:
        """Carry out what follows of an attempt that failed, or (no worker) of what could not be stored."""
        memory, device = self._memory, worker.device if worker is not None else None
        step = policy.decide(verdict, self._history(work, end, verdict, worker, now_s), self._settings.budget)
        suspects = tuple(text for text in work.texts if text in end.under_way)
        self._say(Tell(Failed(end.worker, work, verdict, step, suspects)))
        # Remembered for the whole run: whoever prepares workers ahead takes the memory that was short.
        memory.host_ooms += verdict.outcome is Outcome.HOST_OOM
        if policy.fruitless(step, verdict, len(work.texts)):
            memory.note("fruitless")
        if verdict.other_dimension:
            memory.note("dimension")
        # A wait, a lesson and a start that failed say nothing of the texts.
        passing = isinstance(step, policy.Wait) or (isinstance(step, policy.Retry) and step.lesson is not None)
        doubt = verdict.row_can_cause and not (passing or verdict.before_first_batch)
        doubt = doubt and verdict.outcome is not Outcome.BAD_INPUT
        if device is not None:
            device.doubt = device.doubt or doubt
            if verdict.past_its_start:
                device.fresh = False
                memory.started(device.place, verdict.outcome)
            if end.proven:
                memory.forget("canary", device.place.device)
        avoid = work.avoid if verdict.blameless or device is None else device.place.device
        fresh = work.fresh or verdict.outcome is not Outcome.LOST
        again = replace(work, avoid=avoid, fresh=fresh, doubt=work.doubt or doubt, due_s=0.0)
        match step:
            case policy.Retry():
                self._retry(step, again, end, verdict, worker, now_s)
            case policy.Wait():
                self._wait(step, again, verdict, device, now_s)
            case policy.Split():
                self._split(step.how, again, end, verdict)
            case policy.Quarantine():
                self._quarantine(again, end, verdict)
            case policy.GiveUp():
                memory.note("given up")
            case policy.Stop():
                if self._do_without(device, step, verdict, end.worker, work):
                    self._backlog.put_back(again)

    def _history(
        self, work: Work, end: AttemptEnded, verdict: Verdict, worker: WorkerState | None, now_s: float
    ) -> policy.History:
        memory, place = self._memory, worker.device.place if worker is not None else None
        starts, failing_s, canaries, worked = 0, 0.0, 0, work.output in memory.worked
        if worker is not None and place is not None:
            where = start_of(verdict, place)
            worked = where in memory.sound if verdict.before_first_batch else worked
            failing_s = memory.lasts_s("start", where, now_s)
            if end.began_s is not None:
                # What goes wrong on the device begins with its `go`, however long before that it was prepared.
                starts = memory.count("start", where)
                starts -= not memory.confirms("start", where, max(end.began_s, worker.go_s))
            canaries = memory.count("canary", place.device)
            canaries -= not memory.confirms("canary", place.device, worker.go_s)
        waited_s, spell_s = memory.waited_s(verdict.outcome, cause_of(verdict, place), now_s)
        # Every device may fail as often as a chunk is tried, without a success in between.
        fruitless = memory.count("fruitless") - self._settings.budget.attempts * max(0, len(self.alive) - 1)
        if any(each.gate is GateState.PASSED for each in self.workers.values()):
            fruitless = 0  # that one has given its device back: it is about to bring vectors
        return policy.History(
            texts=len(work.texts),
            tries=work.tries.count(verdict.outcome),
            canary=worker is not None and worker.canary is not None,
            proven=end.proven,
            good=bool(end.done) or self._outputs[work.output].known_good() is not None,
            worked=worked,
            part=work.part,
            under_way=sum(text in end.under_way for text in work.texts),
            one_by_one=work.one_by_one,
            company=end.company,
            waited_s=waited_s,
            spell_s=spell_s,
            starts=starts,
            failing_s=failing_s,
            canaries=canaries,
            given_up=memory.count("given up"),
            fruitless=max(0, fruitless),
            own=worker is not None and worker.canary is not None and worker.canary <= OWN,
            chosen=work.shortest_first,
            sound=place is not None and place.device in memory.sound,
            fits=(work.output, work.chunk) in memory.fits,
            lacking=work.lacking,
            dimension=memory.count("dimension"),
        )

    def _retry(
        self,
        step: policy.Retry,
        work: Work,
        end: AttemptEnded,
        verdict: Verdict,
        worker: WorkerState | None,
        now_s: float,
    ) -> None:
        due_s = now_s + step.delay_s if step.delay_s else 0.0
        if step.charge:
            blocking = verdict.outcome is Outcome.DEVICE_FAULT
            work = replace(work, tries=(*work.tries, verdict.outcome), blocking=blocking, shortest_first=False)
        if worker is not None and step.lesson is not None:
            kind = worker.device.kind
            if (lesson := self._memory.learn(kind, step.lesson)) is not None:
                lasting = end.company in (Company.UNTOLD, Company.ALONE)
                self._say(Tell(Learnt(kind, lesson.rows, lesson.tokens, lasting)))
        if worker is not None and step.note == "start":
            device = worker.device
            if end.began_s is not None:
                began_s = max(end.began_s, worker.go_s)
                self._memory.note("start", start_of(verdict, device.place), began_s, now_s)
            device.fresh = device.fresh or end.began_s is None
            device.paused_until_s = max(device.paused_until_s, due_s)
            due_s += step.delay_s  # others first: they show whether it is the device, the model, or chance
        if worker is not None and step.note == "canary":
            self._memory.note("canary", worker.device.place.device, worker.go_s, now_s)
        if step.note in ("memory", "lacking"):
            work = replace(work, doubt=True, shortest_first=step.note == "memory", lacking=step.note == "lacking")
        self._backlog.put_back(replace(work, due_s=due_s))

    def _wait(self, step: policy.Wait, work: Work, verdict: Verdict, device: DeviceState | None, now_s: float) -> None:
        where = cause_of(verdict, device.place if device is not None else None)
        _, spell_s = self._memory.waited_s(verdict.outcome, where, now_s)
        self._memory.wait(verdict.outcome, where, now_s)
        waits = self if where is None or device is None else device
        waits.paused_until_s = max(waits.paused_until_s, now_s + step.delay_s)
        number = device.place.device if waits is device and device is not None else None
        self._say(Tell(RunWaits(number, step.delay_s, spell_s, verdict)))
        self._backlog.put_back(work)

    def _split(self, how: How, work: Work, end: AttemptEnded, verdict: Verdict) -> None:
        texts = list(work.texts)
        if how is How.BAD:
            bad = {texts[0] + row for row in verdict.bad_rows}
            self._say(StoreVectors(end.worker, work.of([text for text in texts if text not in bad], part=True)))
            pieces = [work.of([text], part=True) for text in sorted(bad)]
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
            pieces = [work.of(half, part=True, one_by_one=False) for half in (texts[:middle], texts[middle:])]
        for piece in pieces:
            self._backlog.put_back(piece)
        self._say(Tell(TakenApart(tuple(pieces), work, how)))

    def _quarantine(self, work: Work, end: AttemptEnded, verdict: Verdict) -> None:
        limit = self._settings.bad_rows
        count = self._outputs[work.output].rows_of(work.texts[0]) + sum(each.bad_rows() for each in self._outputs)
        if limit.fail or count > limit.limit:
            self._say(
                Tell(RunHalts(ExitCode.CONFIG, "bad rows", end.worker, work, verdict, output=work.output, count=count))
            )
        else:
            self._say(StoreVectors(end.worker, work, verdict))

    def _stored(self, event: messages.Stored, now_s: float) -> None:
        number = event.work.output
        if event.verdict is not None:
            self._fail(event.work, AttemptEnded(0, event.verdict), event.verdict, None, now_s)
            return
        self._memory.stored(number, now_s)
        output = self._outputs[number]
        if output.bad_count >= output.texts:
            self._say(Tell(RunHalts(ExitCode.CONFIG, "all bad", work=event.work, output=number)))

    # --- the end of a run

    def _stop(self, until_s: float | None, now_s: float) -> None:
        self._draining = True
        if until_s is not None:
            left_s = max(0.0, until_s - now_s)
            self._last_s = until_s - min(RESERVE * left_s, RESERVE_S)
            self._halfway_s = now_s + left_s / 2
        self._drain(now_s)

    def _drain(self, now_s: float) -> None:
        """Have those leave who cannot be done in time, and end who is still there when it is over."""
        for worker in self.workers.values():
            if worker.gate is GateState.SHUT or now_s >= self._last_s:
                self._end(worker, "the run has to end")
            elif worker.gate is GateState.OPEN and not (worker.leaving or worker.ending):
                left_s = self._view.left_s(worker.number)
                if now_s >= self._halfway_s if left_s is None else now_s + left_s > self._last_s:
                    worker.leaving = True
                    self._say(End(worker.number, "it cannot be done before the run has to end", gently=True))

    def _end(self, worker: WorkerState, why: str) -> None:
        if not worker.ending:
            worker.ending = True
            self._say(End(worker.number, why))


def _seen(opinion: Opinion) -> Verdict:
    """Put what a look at a device has shown into the form of a verdict."""
    return Verdict(Outcome.GPU_BUSY if opinion.health is Health.BUSY else Outcome.HARDWARE_FAULT, opinion.why)
