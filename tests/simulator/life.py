"""A life: the scheduler, a loop on a virtual clock, and a world that does to it what its seed says.

The parent may die between any two instructions; it then begins again with what the modelled disk has kept.
"""

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from chunkvisor.devices.stations import Health, Opinion
from chunkvisor.errors import ExitCode
from chunkvisor.heart import policy
from chunkvisor.heart.policy import Lesson
from chunkvisor.heart.scheduler import AttemptEnded, Ending, Scheduler, Work
from chunkvisor.judge import Company, Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, Phase

from .disk import MISSING, Disk, Output
from .verdicts import Failure, verdict
from .watchdog import Broken, Watchdog
from .world import MISHAPS_S, NEVER, Gpu, Outage, World, draw, within

STALL_S = 60.0  # without progress for so long, a worker is overdue
RESTART_S = 60.0  # until a run is begun again
IDLE_TURNS = 500  # in which nothing happens are no wait any more; the longest lasts a minute, a turn up to 16 s
MISHAPS = 40  # so many small ones in a life, at most: without an end of mishaps no life has to end

GOOD = Opinion(Health.GOOD)


@dataclass(slots=True, eq=False)
class Process:
    """A worker."""

    number: int
    work: Work
    device: "Device"
    limits: Limits
    started_s: float = 0.0
    warm: bool = False
    canary: int | None = None
    proven: bool = False
    plan: int = 0  # rises when what was to happen to it does not
    told_ready: bool = False
    gone: bool = False
    told_freed: bool = False
    ending: bool = False
    go_step: int = 0
    alone: bool = True  # whether nobody else held memory of its device when it got its `go`
    phase: Phase = Phase.START
    batch: tuple[int, int] = (0, 0)  # rows and padded tokens of the batch that it is at
    rows_done: int = 0
    batches: list[list[int]] = field(
        default_factory=list
    )  # texts of each batch up to the one that it is at
    saved: frozenset[int] = frozenset()  # texts of batches that are written, however it ends
    under_way: frozenset[int] = frozenset()
    batch_ends_s: list[float] = field(default_factory=list)  # when each of those is done
    left_after: int | None = None  # batches after which it has left, asked to
    result: Verdict | None = (
        None  # what it leaves if nobody ends it before it has written everything
    )


@dataclass(slots=True, eq=False)
class Device:
    """A device under the number of this run."""

    number: int
    gpu: Gpu
    left: bool = False
    paused_until_s: float = 0.0
    opinion: Opinion = GOOD
    processes: list[Process] = field(default_factory=list)
    started_turn: int = 0  # the turn in which a worker was to be started there last


class _Died(Exception):
    """The parent died."""


class _Ended(Exception):
    """The run halted."""

    def __init__(self, code: ExitCode, halt: Any = None) -> None:
        super().__init__(code)
        self.code = code
        self.halt = halt


class Life:
    """A job from its first run to its last."""

    def __init__(self, world: World, seed: int, *, trace: bool = False) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.instructions = 0
        self.steps = 0  # events so far
        self.disk = Disk([_output(world, number) for number in range(len(world.lengths))])
        self.watchdog = Watchdog(world, self.disk)
        self.deaths = sorted(world.deaths, reverse=True)
        self.stops = sorted(world.stops, reverse=True)
        self.mishaps = MISHAPS if world.chances else 0
        self.codes: list[ExitCode] = []
        self.history: list[str] | None = [] if trace else None
        self.attempts = 0
        texts = sum(map(len, world.lengths))
        bad = sum(map(len, world.poison))
        self.attempts_max = 200 + 4 * texts + 20 * bad
        """A retry that nothing counts goes on for ever without being noticed otherwise."""

    def live(self) -> "Life":
        """To the end. Raises Broken where an invariant does not hold."""
        barren = 0
        while True:
            progress = self.disk.progress
            began_calm = self.now_s >= self.world.calm_s
            code = self.run_once()
            self.codes.append(code)
            self.note(f"--- ended with {code.name}")
            if code in (
                ExitCode.COMPLETE,
                ExitCode.QUARANTINED,
                ExitCode.MACHINE,
                ExitCode.DISK,
                ExitCode.CONFIG,
            ):
                self.watchdog.at_the_end(code, self.codes, self.now_s)
                return self
            self.now_s += RESTART_S
            barren = (
                barren + 1
                if began_calm and self.disk.progress == progress and code is ExitCode.TRY_AGAIN
                else 0
            )
            if barren >= 3:
                self.watchdog.given_up(self.codes)
                return self
            if len(self.codes) > 100:
                raise Broken("ends", f"after 100 runs there is no end: {Counter(self.codes)}")

    def run_once(self) -> ExitCode:
        """One run: to its exit code, or to the death of the parent (TERMINATED)."""
        run = _Run(self)
        try:
            return run.play()
        except _Ended as end:
            if self.history is not None and end.halt is not None:
                self.note(str(end.halt))
            run.leave_behind(adopt=True)
            return end.code
        except _Died:
            self.note("--- the parent dies")
            self.disk.die(self.chance)
            run.leave_behind(adopt="adopted" in self.world.chances)
            return ExitCode.TERMINATED

    def note(self, line: str) -> None:
        """Keep the line for whoever reads the history."""
        if self.history is not None:
            self.history.append(f"{self.now_s:9.2f}  {line}")

    def mishap(self, name: str) -> bool:
        """Whether this one happens now."""
        if (
            not self.mishaps
            or self.now_s > MISHAPS_S
            or self.chance.random() >= self.world.chances.get(name, 0.0)
        ):
            return False
        self.mishaps -= 1
        return True


class _Run:
    """One run of the parent; also the scheduler's hands."""

    def __init__(self, life: Life) -> None:
        self.life, self.world, self.chance = life, life.world, life.chance
        self.disk, self.watchdog = life.disk, life.watchdog
        self.outputs = self.disk.outputs
        self.devices: dict[int, Device] = {}
        self.numbered = self.turns = 0
        self.processes: dict[int, Process] = {}
        self.ended: dict[int, tuple[Process, Verdict]] = {}
        self.events: list[tuple[float, int, Callable[..., None], Any, int]] = []
        self.sequence = 0
        self.todo = deque[partial[None]]()
        self.joining = set[int]()
        self.join_due: dict[int, float] = {}
        self.join_since: dict[int, float] = {}
        self.damaged = Counter[int]()
        self.set_aside: list[Outcome] = []
        self.draining = self.stopping = False
        self.damaged_turn = 0  # the turn in which a part turned out damaged last: its texts are due from the next on
        self.over_s = NEVER  # when all has to be over
        self.paused_until_s = 0.0
        self.last_halt: Any = None
        self.without_s: float | None = None
        self.clustered = bool(self.world.nodes)
        self.began_s = life.now_s
        self.watchdog.begin()
        hands, outputs = cast("Any", self), cast("Any", self.outputs)
        self.scheduler = Scheduler(
            outputs, life.world.config, self.disk.lessons.get, hands, lambda: life.now_s
        )

    # --- what the scheduler asks: see Loop

    def holding(self, device: int) -> bool:
        return False

    # --- the loop

    def play(self) -> ExitCode:
        life = self.life
        life.note("--- a run begins")
        away = {out.node: out for out in self.world.outages if out.at_s <= life.now_s < out.back_s}
        for gpu in self.world.gpus:
            if gpu.node not in away:
                self._join_device(gpu)
        for out in self.world.outages:
            if out.node in away:
                self._at(out.back_s - life.now_s, self._node_returns, out)
            elif out.at_s > life.now_s:
                self._at(out.at_s - life.now_s, self._node_goes, out)
        step_s, scheduler = 0.25, self.scheduler
        idle = 0
        self._begin_joins()
        while not (
            scheduler.finished and not self.joining and not (self.join_due and not self.draining)
        ):
            self.turns += 1
            busy = self._happen()
            self._engine_waits()
            self._tell(self.scheduler.tick)
            self._begin_joins()
            self.watchdog.after_turn(self)
            self.ended.clear()
            step_s = 0.25 if busy or self.over_s != NEVER else min(step_s * 4, 16.0)
            idle = 0 if busy else idle + 1
            if idle > IDLE_TURNS:
                raise Broken(
                    "ends", f"nothing has happened for {idle} turns, and the run has not ended"
                )
            if (
                scheduler.finished
                and not self.joining
                and not (self.join_due and not self.draining)
            ):
                break
            next_s = life.now_s + step_s
            if self.events and self.events[0][0] < next_s:
                next_s = self.events[0][0] + 0.1
            life.now_s = max(life.now_s, next_s)
        if self.draining:
            return ExitCode.INTERRUPTED
        if self.set_aside:
            lacks_memory = all(outcome is Outcome.GPU_OOM for outcome in self.set_aside)
            return ExitCode.MACHINE if lacks_memory else ExitCode.TRY_AGAIN
        self.watchdog.finished()
        return (
            ExitCode.QUARANTINED
            if any(output.bad_count for output in self.outputs)
            else ExitCode.COMPLETE
        )

    def _happen(self) -> bool:
        """All that has happened since the last turn."""
        life, events, busy = self.life, self.events, False
        while life.stops and life.stops[-1][0] <= life.now_s:
            _, grace_s = life.stops.pop()
            self.draining, self.stopping = True, self.stopping or grace_s == 0
            if grace_s:
                self.over_s = min(self.over_s, life.now_s + grace_s)
            self._tell(
                self.scheduler.stop,
                (self.over_s if self.over_s != NEVER else None) if grace_s else -math.inf,
            )
        while events and events[0][0] <= life.now_s:
            _, _, act, subject, plan = heapq.heappop(events)
            if isinstance(subject, Process) and subject.plan != plan:
                continue
            busy = True
            act(subject)
        return busy

    def _at(self, delay_s: float, act: Callable[..., None], subject: Any) -> None:
        self.sequence += 1
        plan = subject.plan if isinstance(subject, Process) else 0
        heapq.heappush(self.events, (self.life.now_s + delay_s, self.sequence, act, subject, plan))

    def _tell(self, what: Callable[..., None], *args: Any, **named: Any) -> None:
        self._hear(what, *args, **named)
        if self.todo:
            self._obey()

    def _hear(self, what: Callable[..., None], *args: Any, **named: Any) -> list[partial[None]]:
        self.life.steps += 1
        if self.life.history is not None and what != self.scheduler.tick:
            self.life.note(f"> {what.__name__} {args} {named}")
        what(*args, **named)
        said = self.scheduler.take()
        self.todo.extend(said)
        return said

    def _maybe_die(self) -> None:
        life = self.life
        life.instructions += 1
        if life.deaths and life.instructions >= life.deaths[-1]:
            # The other half of the deaths falls between the act and its answer.
            life.deaths.pop()
            raise _Died

    # --- devices

    def _join_device(self, gpu: Gpu) -> None:
        device = Device(self.numbered, gpu)
        self.numbered += 1
        self.devices[device.number] = device
        opinion = None if not gpu.watched and device.number % 2 else self._opinion(gpu)
        self._tell(self.scheduler.seen, device.number, gpu.node, gpu.kind, opinion, gone=False)

    def _opinion(self, gpu: Gpu) -> Opinion:
        if not gpu.watched:
            return Opinion(Health.BLIND, "nobody can tell")
        if self.life.now_s >= gpu.fails_from_s and gpu.fails_as is Failure.GPU_LOST:
            return Opinion(Health.BROKEN, "it is lost")
        return (
            Opinion(Health.BUSY, "somebody has it") if within(gpu.busy, self.life.now_s) else GOOD
        )

    def _looked(self, device: Device) -> None:
        if not device.left:
            device.opinion = self._opinion(device.gpu)
            self._tell(self.scheduler.seen, device.number, "", "", device.opinion, gone=False)

    def look(self, device: int) -> None:
        self._at(0.5, self._looked, self.devices[device])

    def drop(self, ending: Ending) -> None:
        self.last_halt = ending.code
        if ending.device is not None:
            self.devices[ending.device].left = True

    def halt(self, ending: Ending) -> None:
        if ending.why == "bad rows":
            self.watchdog.too_many(ending)
        raise _Ended(ending.code, ending)

    def waits(
        self, device: int | None, delay_s: float, _waited_s: float, _verdict: Verdict
    ) -> None:
        until_s = self.life.now_s + delay_s
        if device is None:
            self.paused_until_s = max(self.paused_until_s, until_s)
        elif device in self.devices:
            paused = self.devices[device]
            paused.paused_until_s = max(paused.paused_until_s, until_s)

    def failed(
        self, _worker: int, _work: Work, verdict: Verdict, step: policy.Step | None, _under_way: Any
    ) -> None:
        if isinstance(step, policy.GiveUp):
            self.set_aside.append(verdict.outcome)

    def taken_apart(self, *_: Any) -> None:
        pass

    def learnt(self, kind: str, lesson: Lesson, *, lasting: bool) -> None:
        if lasting:
            self.disk.save_lesson(kind, lesson)

    def _gone_devices(self, node: str) -> None:
        gone = [device for device in self.devices.values() if device.gpu.node == node]
        for device in gone:
            device.left = True
        for device in gone:
            self._tell(self.scheduler.seen, device.number, "", "", None, gone=True)

    def _lose(self, node: str) -> None:
        """The machine is gone, which is heard of before or after the ends of its workers."""
        lost = [each for each in self.processes.values() if each.device.gpu.node == node]
        first = self.chance.random() < 0.5
        if first:
            self._gone_devices(node)
        for process in lost:
            if process.number in self.processes:
                self._gone(process, verdict(Failure.NODE))
        if not first:
            self._gone_devices(node)

    def _node_goes(self, out: Outage) -> None:
        self._lose(out.node)
        if out.back_s != NEVER:
            self._at(out.back_s - self.life.now_s, self._node_returns, out)

    def _node_returns(self, out: Outage) -> None:
        for gpu in self.world.gpus:
            if gpu.node == out.node and not self.scheduler.finished:
                self._join_device(gpu)

    def _engine_waits(self) -> None:
        """A cluster without a device to work on is waited for, but not for ever."""
        if not self.clustered or any(not device.left for device in self.devices.values()):
            self.without_s = None
            return
        now_s = self.life.now_s
        self.without_s = now_s if self.without_s is None else self.without_s
        coming = any(act == self._node_returns for _, _, act, _, _ in self.events)
        if not coming and self.last_halt is not None:
            raise _Ended(self.last_halt, self.last_halt)
        if now_s - self.without_s >= self.world.config.recovery.wait_timeout:
            raise _Ended(ExitCode.TRY_AGAIN)

    # --- workers

    def start(
        self, worker: int, number: int, work: Work, limits: Limits, canary: int | None
    ) -> None:
        device = self.devices[number]
        warm = self.world.warm and not work.fresh
        process = Process(worker, work, device, limits, self.life.now_s, warm, canary)
        device.started_turn = self.turns
        self.watchdog.starts(self, process)
        # What fails while the disk is full or the hub is down costs nothing, and ends with the wait, whose time counts.
        waits = [*self.world.disk_full, *self.world.hub_down]
        self.life.attempts += not within(waits, self.life.now_s)
        if self.life.attempts > self.life.attempts_max:
            raise Broken("ends", f"{self.life.attempts} attempts, and there is no end")
        failure = None
        if within(self.world.disk_full, self.life.now_s):
            failure = Verdict(Outcome.DISK_FULL, "no worker could be started: disk full")
        elif within(self.world.host_oom, self.life.now_s) or self.life.mishap("start fails"):
            failure = Verdict(Outcome.HOST_OOM, "no worker could be started", batch_rows=1)
        if failure is not None:
            self._maybe_die()
            self._hear(self.scheduler.ended, AttemptEnded(worker, failure))
            return
        self.processes[worker] = process
        device.processes.append(process)
        self._prepare(process)

    def _prepare(self, process: Process) -> None:
        took_s = self.chance.uniform(0.3, 3.0)
        process.phase = Phase.MODEL_LOAD
        if within(self.world.hub_down, self.life.now_s):
            self._fail(process, took_s, Failure.HUB)
        elif process.warm and self.life.mishap("refused"):
            self._at(took_s / 4, self._refuse, process)
        elif self.life.mishap("early"):
            process.phase = self.chance.choice(
                (Phase.START, Phase.IMPORT, Phase.MODEL_LOAD, Phase.TOKENIZE)
            )
            if process.phase is Phase.TOKENIZE and not self.watchdog.may_fail_by_chance(process):
                process.phase = Phase.START
            process.proven = process.phase is Phase.TOKENIZE and process.canary is not None
            self._fail(
                process,
                took_s,
                self.chance.choice((Failure.SEGFAULT, Failure.HOST_OOM, Failure.KILLED)),
            )
        else:
            self._at(took_s, self._ready, process)

    def _ready(self, process: Process) -> None:
        process.told_ready = True
        process.phase = Phase.READY
        self._tell(self.scheduler.called, process.number, freed=False)

    def _refuse(self, process: Process) -> None:
        self._forget(process)
        self._tell(self.scheduler.ended, AttemptEnded(process.number, None))

    def go(self, worker: int, limits: Limits) -> None:
        process = self.processes[worker]
        self.watchdog.goes(self, process)
        process.gone, process.limits, process.go_step = True, limits, self.life.steps
        gpu, now_s = process.device.gpu, self.life.now_s
        process.phase = Phase.CUDA_INIT
        fails = now_s >= gpu.fails_from_s
        process.alone = not within(gpu.neighbours, now_s) and not within(gpu.busy, now_s)
        if now_s >= gpu.hangs_from_s:
            self._hang(process)
        elif fails and (gpu.fails_at_start or gpu.fails_as is Failure.GPU_LOST):
            if gpu.fails_as is Failure.HANG:
                self._hang(process)
            else:
                self._fail(process, 0.5, gpu.fails_as)
        elif within(gpu.busy, now_s):
            self._fail(process, 0.5, Failure.NO_ROOM)
        elif self.life.mishap("early"):
            self._fail(process, 0.5, Failure.DOES_NOT_START)
        else:
            process.phase = Phase.FORWARD
            self._compute(process, gpu.fails_as if fails else Failure.NONE)

    def _compute(self, process: Process, fault: Failure) -> None:
        """What becomes of its batches, longest texts first."""
        work, limits = process.work, process.limits
        lengths, poison = self.world.lengths[work.output], self.world.poison[work.output]
        room = process.device.gpu.tokens // (1 if process.alone else 2)
        order = sorted(work.texts, key=lengths.__getitem__, reverse=True)
        first = None
        if process.canary is not None:
            first = (
                process.canary
                if process.canary >= 0
                else order.pop(max(0, len(order) + process.canary))
            )
        took_s, at, count = 0.2, 0, len(order)
        transient = self.watchdog.may_fail_by_chance(process) and self.life.mishap("transient")
        while at < count or first is not None:
            if first is not None:
                batch, rows, longest = [first], 1, lengths[first]
            else:
                longest = lengths[order[at]]
                rows, tokens = limits.rows, limits.tokens
                rows = min(rows, max(1, tokens // longest) if tokens else rows, count - at)
                batch = order[at : at + rows]
            process.batch, process.rows_done = (rows, rows * longest), at
            process.batches.append(batch)
            took_s += 0.1 + rows * longest / 4000
            process.batch_ends_s.append(self.life.now_s + took_s)
            if rows * longest > room:
                self._fail(process, took_s, Failure.OOM)
                return
            if fault is not Failure.NONE or (transient and (first is None or not order)):
                cause = fault if fault is not Failure.NONE else Failure.ILLEGAL
                if cause is Failure.HANG:
                    self._hang(process)
                else:
                    self._fail(process, took_s, cause)
                return
            for text in batch if poison else ():
                failure = poison.get(text, Failure.NAN)
                if failure is Failure.HANG:
                    self._hang(process)
                    return
                if failure is not Failure.NAN and failure is not Failure.DIMENSION:
                    self._fail(process, took_s, failure)
                    return
            at, first = at + (rows if first is None else 0), None
        process.result = self._result(process)
        if self.chance.random() < 0.7:
            self._at(took_s, self._frees, process)
            took_s += self.chance.uniform(0.1, 1.0)
        self._at(took_s, self._writes, process)

    def _result(self, process: Process) -> Verdict:
        work = process.work
        poison = self.world.poison[work.output]
        bad = [text for text in work.texts if text in poison] if poison else []
        known = process.canary is not None and process.canary >= 0
        process.proven = known or len(bad) < len(work.texts)
        if any(poison[text] is Failure.DIMENSION for text in bad):
            # As if another attempt had found the right dimension.
            alike = all(poison.get(text) is Failure.DIMENSION for text in work.texts) and not known
            return verdict(
                Failure.DIMENSION if alike else Failure.DIMENSIONS, limits=process.limits
            )
        if bad:
            return verdict(
                Failure.NAN,
                limits=process.limits,
                bad_rows=tuple(text - work.texts[0] for text in bad),
            )
        return verdict(Failure.NONE)

    def _frees(self, process: Process) -> None:
        process.told_freed = True
        process.phase = Phase.WRITE
        self._tell(self.scheduler.called, process.number, freed=True)

    def _writes(self, process: Process) -> None:
        result = process.result
        assert result is not None
        if within(self.world.disk_full, self.life.now_s):
            process.phase = Phase.WRITE
            self._gone(process, verdict(Failure.DISK, Phase.WRITE, process.limits))
            return
        if not process.told_freed and not self.life.mishap("late exit"):
            self._frees(process)
            if process.number not in self.processes:
                return
        self._gone(process, result)

    def _fail(self, process: Process, after_s: float, failure: Failure) -> None:
        rows, tokens = process.batch
        self._at(after_s, self._failed, process)
        process.result = verdict(
            failure, process.phase, process.limits, rows, tokens, rows_done=process.rows_done
        )

    def _failed(self, process: Process) -> None:
        assert process.result is not None
        self._gone(process, process.result)

    def _hang(self, process: Process) -> None:
        process.result = None
        self._at(STALL_S, self._overdue, process)

    def _overdue(self, process: Process) -> None:
        """The loop's own business: patience is over."""
        self._end_now(process, hang=True)

    def end(self, worker: int) -> None:
        if worker in self.processes:
            self._end_now(self.processes[worker], hang=False)

    def _end_now(self, process: Process, *, hang: bool) -> None:
        if process.ending:
            return
        process.ending = True
        process.plan += 1
        if process.gone and self.life.now_s >= process.device.gpu.hangs_from_s:
            self._at(40.0, self._stuck, process)
            return
        done = process.told_freed and process.result is not None and self.chance.random() < 0.5
        if hang:
            process.result = verdict(Failure.HANG, process.phase, process.limits, *process.batch)
        elif not done:
            process.result = verdict(Failure.STOPPED)
        self._at(0.3, self._failed, process)

    def leave(self, worker: int) -> None:
        """See Loop: it ends after the batch under way, unless it fails or is done before."""
        process = self.processes.get(worker)
        if process is None or process.ending:
            return
        self.watchdog.leaves(self, process)
        if process.result is None or not process.batch_ends_s:
            return  # it hangs, or fails before its first batch: the end of the time ends it
        now_s = self.life.now_s
        ends = [number for number, at_s in enumerate(process.batch_ends_s) if at_s > now_s]
        if not ends or ends[0] + 1 >= len(process.batches):
            return  # the batch under way is the last one, or the one that fails
        process.plan += 1
        process.left_after = ends[0] + 1
        process.result = verdict(Failure.STOPPED)
        self._at(process.batch_ends_s[ends[0]] - now_s, self._failed, process)

    def _stuck(self, _process: Process) -> None:
        """Even SIGKILL has not ended it."""
        raise _Ended(ExitCode.MACHINE)

    def _gone(self, process: Process, judged: Verdict) -> None:
        self._forget(process)
        self.ended[process.number] = process, judged
        self.watchdog.ends(process, judged)
        began_s = None if process.warm else process.started_s
        self._salvage(process, judged)
        company, saved, under_way = self._company(process, judged), process.saved, process.under_way
        end = AttemptEnded(
            process.number, judged, company, began_s, saved, under_way, process.proven
        )
        said = self._hear(self.scheduler.ended, end)
        self.watchdog.answered(process, judged, said, self.life.steps)
        self._obey()

    def _salvage(self, process: Process, judged: Verdict) -> None:
        """What it has left of batches that were finished: one that was ended from outside was at any of them."""
        batches, work = process.batches, process.work
        if not batches or judged.outcome in (Outcome.COMMITTED, Outcome.BAD_OUTPUT):
            return
        at = (
            self.chance.randrange(len(batches))
            if judged.asked_for or judged.outcome is Outcome.LOST
            else -1
        )
        at = process.left_after if process.left_after is not None and judged.asked_for else at
        poison = self.world.poison[work.output]
        if judged.phase is Phase.FORWARD and at < len(batches):
            process.under_way = frozenset(batches[at])
        done = [text for batch in batches[:at] for text in batch]
        if judged.outcome is not Outcome.LOST and not any(
            poison.get(text) is Failure.DIMENSION for text in done
        ):
            process.saved = frozenset(
                text for text in done if text not in poison and text != process.canary
            )
        process.proven = process.proven or any(text not in poison for text in done)

    def _company(self, process: Process, judged: Verdict) -> Company:
        """As the loop has it from torch's message and the last look; those of before the run are part of the GPU."""
        gpu, now_s = process.device.gpu, self.life.now_s
        if judged.outcome not in (Outcome.GPU_OOM, Outcome.GPU_BUSY):
            return Company.UNTOLD
        if any(each.gone for each in process.device.processes):
            return Company.OURS
        spells = [*gpu.busy, *gpu.neighbours]
        if any(start > self.began_s for start, stop in spells if start <= now_s < stop):
            return Company.CAME
        return Company.ALONE if process.alone and not within(spells, now_s) else Company.UNTOLD

    def _obey(self) -> None:
        todo = self.todo
        while todo:
            act = todo.popleft()
            if self.life.history is not None:
                self.life.note(f"    < {act.func.__name__} {act.args} {act.keywords}")
            self._maybe_die()
            act()
            self._maybe_die()

    def _forget(self, process: Process) -> None:
        process.plan += 1
        del self.processes[process.number]
        process.device.processes.remove(process)

    # --- the disk

    def keep(self, worker: int, work: Work) -> None:
        self.watchdog.keeps(self, worker, work)
        self._store(work, lambda: self.outputs[work.output].keep(work.chunk, work.texts))

    def quarantine(self, work: Work, _verdict: Verdict) -> None:
        self.watchdog.quarantines(work)
        self._store(work, lambda: self.outputs[work.output].quarantine(work.chunk, work.texts[0]))

    def _store(self, work: Work, write: Callable[[], None]) -> None:
        problem = None
        if within(self.world.disk_full, self.life.now_s):
            problem = Verdict(Outcome.DISK_FULL, "it could not be stored")
        else:
            write()
        self._maybe_die()
        self._hear(self.scheduler.stored, work, problem)

    # --- joins: the loop's own background work

    def _begin_joins(self) -> None:
        if self.draining and self.life.now_s >= self.scheduler.last_s:
            self.join_due.clear()
            return
        for number, output in enumerate(self.outputs):
            due = self.life.now_s >= self.join_due.get(number, 0)
            if output.complete and due and not output.published and number not in self.joining:
                self.watchdog.joins(number)
                self.joining.add(number)
                self.join_due.pop(number, None)
                self._at(self.chance.uniform(0.1, 3.0), self._joined, output)

    def _joined(self, output: Output) -> None:
        number, now_s = self.outputs.index(output), self.life.now_s
        self.joining.discard(number)
        if now_s >= self.scheduler.last_s:
            return
        if within(self.world.disk_full, now_s):
            since_s = self.join_since.setdefault(number, now_s)
            if now_s - since_s >= self.world.config.recovery.wait_timeout:
                raise _Ended(ExitCode.DISK, "no space to join")
            self.join_due[number] = now_s + 5
        elif self.life.mishap("damaged chunk") or (
            output.parts and self.life.mishap("damaged part")
        ):
            chunk = self.chance.randrange(output.chunks)
            self.damaged[number] += 1
            if output.parts and self.chance.random() < 0.5:
                chunk = self.chance.choice(sorted(output.parts))
                if not output.parts[chunk]:
                    return
                output.lose_part(chunk, self.chance.choice(output.parts[chunk]))
            else:
                output.discard(chunk)
            self.damaged_turn = self.turns
            if self.damaged[number] > 3:
                raise _Ended(ExitCode.DISK, "damaged again and again")
            self._tell(self.scheduler.lost, number, chunk)
        else:
            output.published = True

    # --- ends

    def leave_behind(self, *, adopt: bool) -> None:
        """The workers are gone; what some had finished is taken over by the next run, as the loop does."""
        finished = [
            (each, each.result)
            for each in self.processes.values()
            if each.told_freed and each.result is not None and self.chance.random() < 0.5
        ]
        finished += [each for each in self.ended.values() if self.chance.random() < 0.5]
        if not adopt or within(self.world.disk_full, self.life.now_s):
            return
        for process, judged in finished:
            work, output = process.work, self.outputs[process.work.output]
            fresh = all(output.state[text] == MISSING for text in work.texts)
            if judged.outcome is Outcome.COMMITTED and fresh:
                output.keep(work.chunk, work.texts)
            elif process.saved and fresh:
                output.keep(work.chunk, process.saved)


def _output(world: World, number: int) -> Output:
    texts = len(world.lengths[number])
    bounds = [
        (first, min(first + world.chunk_size, texts)) for first in range(0, texts, world.chunk_size)
    ]
    return Output(f"out{number}", world.limits, bounds, world.lengths[number])


def simulate(
    seed: int, size: str = "small", *, world: World | None = None, trace: bool = False
) -> Life:
    """Play the life of the seed to its end. Raises Broken where an invariant does not hold; its `life` tells how."""
    life = Life(world if world is not None else draw(seed, size), seed, trace=trace)
    try:
        return life.live()
    except Broken as broken:
        broken.life = life
        raise
    except Exception as bug:
        crash = Broken("no bug", f"{type(bug).__name__}: {bug}")
        crash.life = life
        raise crash from bug
