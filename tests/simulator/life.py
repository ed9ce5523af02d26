"""A life: runs of the real loop on a virtual clock, in a world that was drawn from a seed.

The parent may die between any two instructions; it then begins again with what the modelled disk
has kept.
"""

import errno
import heapq
import random
import signal
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, cast

from chunkvisor.core.instructions import (
    AskToStop,
    AttemptEnded,
    DropDevice,
    EndRun,
    Instruction,
    KeepVectors,
    OpenGate,
    QuarantineTexts,
    ReportFailure,
    ReportWait,
    StartWorker,
    Task,
)
from chunkvisor.core.loop import Loop
from chunkvisor.core.policy import Canary, KnownText, OwnText
from chunkvisor.core.run import Run
from chunkvisor.core.scheduler import Scheduler
from chunkvisor.core.store import ResultStore
from chunkvisor.devices.handles import Health
from chunkvisor.errors import ExitCode, Halt, StopReason
from chunkvisor.judge import Evidence, Verdict
from chunkvisor.outputs.join import ChunkDamagedError
from chunkvisor.store.identity import Plan
from chunkvisor_worker.contract.exits import Outcome, WorkerExit
from chunkvisor_worker.contract.messages import Beat, Limits, Phase

from .disk import DIMENSION, VECTOR, Disk, Output, full
from .machine import GPU_BYTES, Engine, Signals, Worker, gpu, reading
from .verdicts import Failure, evidence
from .watchdog import Broken, Watchdog
from .world import MISHAPS_S, NEVER, Gpu, Outage, World, draw, within

RESTART_S = 60.0  # from the end of a run to the next
# After this many turns without an event a run hangs: a turn lasts up to 16 s, the longest wait a
# minute.
IDLE_TURNS = 500
MOST_TURNS = 20_000  # of a run; the longest that end take some thousands
MISHAPS = 40  # of a life, at most: while mishaps go on, no life has to end


@dataclass(slots=True, eq=False)
class Process(Worker):
    """A worker; when it is given its device, it is settled what becomes of it."""

    run: Any = None
    device: Any = None
    ending: bool = False  # it was told to end
    asked: bool = False  # it was asked to stop after its batch
    clings: bool = False  # nothing but SIGKILL ends it
    told_ready: bool = False  # the loop has seen that it is ready
    plan: int = 0  # raised to call off the events that wait for it
    go_step: int = 0
    alone: bool = True  # whether no other process held memory of the device at its `go`
    batch: tuple[int, int] = (0, 0)  # rows and padded tokens of the batch in progress
    rows_done: int = 0
    batches: list[list[int]] = field(default_factory=list)
    """Texts of each batch that will begin."""
    batch_ends_s: list[float] = field(default_factory=list)
    """When each batch that will end ends."""
    fate: Evidence | None = None  # what it leaves unless it is ended before

    def beat(self) -> Beat | None:
        self.told_ready = self.told_ready or self.phase is Phase.READY
        done = bisect_right(self.batch_ends_s, self.run.life.now_s)
        seq = 100 * (self.phase is Phase.READY) + 200 * self.gone + done + 10_000 * self.freed
        return Beat(seq, self.number, self.phase, freed=self.freed)

    def open_gate(self, limits: Limits) -> None:
        self.gone, self.limits = True, limits
        self.run.goes(self)

    def ask_to_stop(self) -> None:
        self.run.leaves(self)

    def signal(self, number: signal.Signals) -> None:
        if number is signal.SIGKILL or not self.clings:
            self.run.signalled(self)


@dataclass(slots=True, eq=False)
class Device:
    """A device, under the number that it has in this run."""

    number: int
    gpu: Gpu
    uuid: str
    left: bool = False
    paused_until_s: float = 0.0
    health: Health = Health.GOOD  # at the last look
    processes: list[Process] = field(default_factory=list)
    started_turn: int = 0  # the last turn in which a worker was to be started on it


@dataclass(slots=True, eq=False)
class Join:
    """An output that is joined in the background."""

    name: str
    join: Callable[..., Any]
    given: tuple[Any, ...]
    future: Future[Any] = field(default_factory=Future)


class _Died(Exception):
    """The parent dies here."""


class _Loop(Loop):
    """The real loop; `watched` sees each instruction before it is carried out."""

    watched: "_Run"

    def _do(self, instruction: Instruction) -> Any:
        self.watched.before(instruction)
        follows = super()._do(instruction)
        self.watched.life.maybe_die()
        return follows

    def _end_all(self) -> None:
        self.watched.over = True
        # A parent that is dead ends nobody: its workers see that themselves.
        if isinstance(sys.exception(), Halt | type(None)):
            super()._end_all()


class Life:
    """A job from its first run to its last, with all that happens meanwhile."""

    def __init__(self, world: World, seed: int, *, trace: bool = False) -> None:
        # Planning the second output numbers its texts anew.
        world = replace(world, lengths=[*world.lengths], poison=[*world.poison])
        self.world = world
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.instructions = 0
        self.steps = 0  # events so far
        plans = [Plan(len(lengths), world.chunk_size) for lengths in world.lengths]
        self.disk = Disk(plans, self.on_write)
        self.run: _Run | None = None
        self.left_behind: list[Process] = []  # attempts that the last run did not judge
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
        """More than this means that something is tried again without being counted."""

    def live(self) -> "Life":
        """Play run after run until the job has ended. Raises Broken if an invariant does not hold."""
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
        """Play one run; return its exit code, or TERMINATED if the parent died."""
        self.run = None
        try:
            self.run = _Run(self)
            return self.run.play()
        except Halt as end:
            self.note(str(end))
            self.leave(adopt=True)
            return ExitCode(end.code)
        except _Died:
            self.note("--- the parent dies")
            self.disk.die(self.chance)
            self.leave(adopt="adopted" in self.world.chances)
            return ExitCode.TERMINATED

    def plan_shared(self) -> None:
        """Fix which texts the second output encodes: those for which the first has no vector."""
        world = self.world
        first = self.disk.files[0].state
        lengths, poison = world.lengths[1], world.poison[1]
        kept = [
            text for text in range(len(lengths)) if text >= world.shared or first[text] != VECTOR
        ]
        self.disk.plan_shared(len(kept), world.chunk_size)
        world.lengths[1] = [lengths[text] for text in kept]
        bad = ((number, text) for number, text in enumerate(kept) if text in poison)
        world.poison[1] = {number: poison[text] for number, text in bad}

    def leave(self, *, adopt: bool) -> None:
        """End all workers; keep what some had finished for the next run to find."""
        run = self.run
        self.left_behind = []
        if run is None or not adopt:
            return
        found = [each for each in run.processes.values() if each.freed and each.fate is not None]
        found += [each for each, _ in run.ended.values()]
        for process in found:
            process.left = process.left or process.fate
            if process.left is not None and self.chance.random() < 0.5:
                self.left_behind.append(process)

    def on_write(self) -> None:
        """Called before each write: raise if the disk is full, or if the parent dies here."""
        if self.run is not None and within(self.world.disk_full, self.now_s):
            raise full()
        self.maybe_die()

    def maybe_die(self) -> None:
        """Raise _Died if it is the turn of a death."""
        self.instructions += 1
        if self.deaths and self.instructions >= self.deaths[-1]:
            self.deaths.pop()
            raise _Died

    def note(self, line: str) -> None:
        """Add a line to the history, if one is kept."""
        if self.history is not None:
            self.history.append(f"{self.now_s:9.2f}  {line}")

    def mishap(self, name: str) -> bool:
        """Draw whether this mishap happens now."""
        if (
            not self.mishaps
            or self.now_s > MISHAPS_S
            or self.chance.random() >= self.world.chances.get(name, 0.0)
        ):
            return False
        self.mishaps -= 1
        return True


class _Run:
    """One run: the real loop, and in the place of threads its engine, signals and joins."""

    def __init__(self, life: Life) -> None:
        self.life, self.world, self.chance = life, life.world, life.chance
        self.disk, self.watchdog = life.disk, life.watchdog
        self.outputs = self.disk.outputs = [
            self._open(number) for number in range(len(life.disk.files))
        ]
        self.devices: dict[int, Device] = {}
        self.turns = self.idle = 0
        self.step_s, self.busy = 0.25, False
        self.processes: dict[int, Process] = {}
        self.ended: dict[int, tuple[Process, Verdict]] = {}
        self.events: list[tuple[float, int, Callable[..., None], Any, int]] = []
        self.sequence = 0
        self.over = False
        # The last turn in which a part was damaged: its texts are due from the next turn on.
        self.damaged_turn = 0
        self.over_s = NEVER  # when all workers have to have ended
        self.paused_until_s = 0.0
        self.without_s: float | None = None
        self.start: StartWorker | None = None
        self.watchdog.begin()
        self.signals = Signals(self.sleep)
        self.engine = Engine(self._opened, self.attend_engine, self.started)
        self.engine.asked = lambda uuid: self._at(0.5, self._looked, uuid)  # type: ignore[method-assign]
        clock = lambda: life.now_s  # noqa: E731
        run = Run(
            cast("Any", None), "", cast("Any", self.signals), self._emit, lambda: None, clock=clock
        )
        config = life.world.config
        self.store = ResultStore(self.outputs, run, config.recovery.wait_timeout, cast("Any", self))
        lessons = cast("Any", self.disk)
        self.loop = _Loop(
            self.outputs, config, lessons, self.engine, self.store, run, self.engine.look
        )
        self.loop.watched = self
        self.scheduler: Scheduler = self.loop._scheduler
        self._really_ended = self.scheduler.attempt_finished
        self.scheduler.attempt_finished = self.judged  # type: ignore[method-assign]

    @property
    def draining(self) -> bool:
        """Whether the run was told to end."""
        return self.signals.draining

    def play(self) -> ExitCode:
        """Play the run to its end; return its exit code."""
        self.life.note("--- a run begins")
        given_up = self.loop.run()
        if self.draining:
            return ExitCode.INTERRUPTED
        if given_up:
            lacks_memory = all(each.verdict.outcome is Outcome.GPU_OOM for each in given_up)
            return ExitCode.MACHINE if lacks_memory else ExitCode.TRY_AGAIN
        self.watchdog.finished()
        return (
            ExitCode.QUARANTINED
            if any(output.bad_count for output in self.outputs)
            else ExitCode.COMPLETE
        )

    def _emit(self, _event: Any) -> None:
        pass

    # --- time

    def sleep(self) -> None:
        """End a turn of the loop: check it, and move the clock to the next event."""
        life = self.life
        self.turns += 1
        if not self.over:
            self.watchdog.after_turn(self)
            for number in self.ended.keys() - self.scheduler.unstored:
                del self.ended[number]
        self.step_s = 0.25 if self.busy or self.over_s != NEVER else min(self.step_s * 4, 16.0)
        self.idle = 0 if self.busy else self.idle + 1
        if self.turns > MOST_TURNS:
            raise Broken("ends", f"after {self.turns} turns the run has not ended")
        if self.idle > IDLE_TURNS:
            raise Broken(
                "ends", f"nothing has happened for {self.idle} turns, and the run has not ended"
            )
        next_s = life.now_s + self.step_s
        if self.events and self.events[0][0] < next_s:
            next_s = self.events[0][0] + 0.1
        life.now_s = max(life.now_s, next_s)
        self._stops()

    def _stops(self) -> None:
        life, signals = self.life, self.signals
        while life.stops and life.stops[-1][0] <= life.now_s:
            _, grace_s = life.stops.pop()
            signals.draining, signals.stopping = True, signals.stopping or grace_s == 0
            if not grace_s:
                self.over_s = min(self.over_s, life.now_s)  # all workers end at once
            elif grace_s != NEVER:
                self.over_s = min(self.over_s, life.now_s + grace_s)
                signals.until_s = self.over_s

    def attend_engine(self) -> None:
        """Carry out the events whose time has come."""
        life, events = self.life, self.events
        self.busy = False
        while events and events[0][0] <= life.now_s:
            _, _, act, subject, plan = heapq.heappop(events)
            if isinstance(subject, Process) and subject.plan != plan:
                continue
            self.busy = True
            life.steps += 1
            if life.history is not None:
                life.note(
                    f"> {act.__name__} "
                    f"{getattr(subject, 'number', None) or getattr(subject, 'name', subject)}"
                )
            act(subject)
        self._wait_for_devices()

    def _at(self, delay_s: float, act: Callable[..., None], subject: Any) -> None:
        self.sequence += 1
        plan = subject.plan if isinstance(subject, Process) else 0
        heapq.heappush(self.events, (self.life.now_s + delay_s, self.sequence, act, subject, plan))

    # --- instructions

    def before(self, instruction: Instruction) -> None:
        """Check an instruction that is about to be carried out, and note what follows."""
        life, watchdog = self.life, self.watchdog
        life.steps += 1
        if life.history is not None:
            life.note(f"    < {instruction}")
        self.life.maybe_die()
        match instruction:
            case StartWorker():
                self.start = instruction
                watchdog.starts(self, instruction, self.devices[instruction.device])
                self.devices[instruction.device].started_turn = self.turns + 1
                # What fails while the disk is full or the hub is down ends with the wait, whose
                # time counts.
                life.attempts += not within(
                    [*self.world.disk_full, *self.world.hub_down, *self.world.server_down],
                    life.now_s,
                )
                if life.attempts > life.attempts_max:
                    raise Broken("ends", f"{life.attempts} attempts, and there is no end")
            case OpenGate(worker):
                watchdog.goes(self, self.processes[worker])
            case AskToStop(worker) if worker in self.processes:
                watchdog.leaves(self, self.processes[worker])
            case KeepVectors(worker, task):
                watchdog.keeps(self, worker, task)
                files = self.disk.files[task.output]
                if files.read_index(task.chunk).parts and life.mishap("damaged part"):
                    files.damage_part(task.chunk)
            case QuarantineTexts(task):
                watchdog.quarantines(task)
            case DropDevice(ending) if ending.device is not None:
                self.devices[ending.device].left = True
            case EndRun(ending) if ending.why is StopReason.BAD_ROWS:
                watchdog.too_many(ending)
            case ReportFailure(worker) if worker in self.ended:
                watchdog.fails(self.ended[worker][0].device.number, instruction)
            case ReportWait(device, delay_s, _, verdict):
                watchdog.waits(device, verdict)
                if device is None:
                    self.paused_until_s = max(self.paused_until_s, life.now_s + delay_s)
                elif device in self.devices:
                    paused = self.devices[device]
                    paused.paused_until_s = max(paused.paused_until_s, life.now_s + delay_s)

    def judged(self, end: AttemptEnded) -> Any:
        """Check an attempt's verdict, pass it on to the scheduler, and check the answer."""
        # A gate that is opened from this step on can know the verdict.
        self.life.steps += 1
        process, step = self.processes.pop(end.worker, None), self.life.steps
        if process is not None:
            process.plan += 1
            process.device.processes.remove(process)
        if process is None or end.verdict is None:
            return self._really_ended(end)
        self.ended[process.number] = process, end.verdict
        self.watchdog.ends(process, end.verdict)
        said = self._really_ended(end)
        self.watchdog.answered(process, end.verdict, said, step)
        return said

    # --- devices

    def _opened(self) -> None:
        away = {
            out.node: out for out in self.world.outages if out.at_s <= self.life.now_s < out.back_s
        }
        for each in self.world.gpus:
            if each.node not in away:
                self._join_device(each)
        for out in self.world.outages:
            if out.node in away:
                self._at(out.back_s - self.life.now_s, self._node_returns, out)
            elif out.at_s > self.life.now_s:
                self._at(out.at_s - self.life.now_s, self._node_goes, out)

    def _join_device(self, each: Gpu) -> None:
        number = len(self.devices)
        device = gpu(number, each.kind, watched=each.watched or number % 2 == 0)
        self.devices[number] = Device(number, each, device.uuid)
        self.engine.add(device, each.node, self._reading(self.devices[number]))
        self.devices[number].health = Health.GOOD  # a neighbor from before the run is part of it

    def _reading(self, device: Device) -> Any:
        each, now_s = device.gpu, self.life.now_s
        device.health = Health.BUSY if within(each.busy, now_s) else Health.GOOD
        if not each.watched:
            device.health = Health.BLIND
        elif now_s >= each.fails_from_s and each.fails_as is Failure.GPU_LOST:
            device.health = Health.BROKEN
        ours = [process.pid for process in device.processes if process.gone]
        return reading(device.health, ours, GPU_BYTES // 2 if within(each.neighbours, now_s) else 0)

    def _looked(self, uuid: str) -> None:
        device = next(each for each in self.devices.values() if each.uuid == uuid)
        self.watchdog.suspected.discard(device.number)
        self.engine.looked(uuid, self._reading(device))

    def _node_goes(self, out: Outage) -> None:
        for device in self.devices.values():
            if device.gpu.node == out.node:
                device.left = True
                for process in device.processes:
                    self._leave(process, evidence(Failure.NODE))
        self.engine.handles.drop_node(out.node, "it is gone")
        if out.back_s != NEVER:
            self._at(out.back_s - self.life.now_s, self._node_returns, out)

    def _node_returns(self, out: Outage) -> None:
        for each in self.world.gpus:
            if each.node == out.node:
                self._join_device(each)

    def _wait_for_devices(self) -> None:
        """Raise Halt if no machine of the cluster has come back within wait_timeout."""
        if (
            not self.world.nodes
            or not self.devices
            or any(not device.left for device in self.devices.values())
        ):
            self.without_s = None
            return
        now_s, last = self.life.now_s, self.engine.handles.last_halt
        self.without_s = now_s if self.without_s is None else self.without_s
        coming = any(act == self._node_returns for _, _, act, _, _ in self.events)
        if not coming and last is not None:
            raise last
        if now_s - self.without_s >= self.world.config.recovery.wait_timeout:
            raise Halt(ExitCode.TRY_AGAIN, "no machine is left")

    # --- workers

    def new_attempt(
        self, task: Task, handle: Any, limits: Limits, canary: Canary | None
    ) -> Process:
        """See OutputRun."""
        if within(self.world.disk_full, self.life.now_s):
            raise full()
        assert self.start is not None
        return Process(
            self.start.worker,
            task,
            handle,
            limits,
            canary,
            run=self,
            device=self.devices[handle.number],
        )

    def started(self, process: Process, fresh: bool) -> None:
        """See Engine."""
        if within(self.world.host_oom, self.life.now_s) or self.life.mishap("start fails"):
            raise OSError(errno.ENOMEM, "no memory")
        process.warm = self.world.warm and not fresh
        process.clings = self.chance.random() < 0.1
        self.processes[process.number] = process
        process.device.processes.append(process)
        took_s = self.chance.uniform(0.3, 3.0)
        process.phase = Phase.MODEL_LOAD
        if within(self.world.hub_down, self.life.now_s):
            self._fail(process, took_s, Failure.HUB)
        elif process.warm and self.life.mishap("refused"):
            process.fate = Evidence(WorkerExit.TAINTED_TEMPLATE)
            self._at(took_s / 4, self._exits, process)
        elif self.life.mishap("early"):
            process.phase = self.chance.choice(
                (Phase.START, Phase.IMPORT, Phase.MODEL_LOAD, Phase.TOKENIZE)
            )
            if process.phase is Phase.TOKENIZE and not self.watchdog.may_fail_by_chance(process):
                process.phase = Phase.START
            process.canary_is_good = process.phase is Phase.TOKENIZE and process.canary is not None
            self._fail(
                process,
                took_s,
                self.chance.choice((Failure.SEGFAULT, Failure.HOST_OOM, Failure.KILLED)),
            )
        else:
            self._at(took_s, self._ready, process)

    def _ready(self, process: Process) -> None:
        process.phase, process.called = Phase.READY, True

    def goes(self, process: Process) -> None:
        """The process has its device: settle what becomes of it."""
        if process.left is not None:
            return  # it has just died
        process.plan += 1
        process.go_step = self.life.steps
        each, now_s = process.device.gpu, self.life.now_s
        process.phase = Phase.CUDA_INIT
        fails = now_s >= each.fails_from_s
        process.alone = not within(each.neighbours, now_s) and not within(each.busy, now_s)
        if now_s >= each.hangs_from_s:
            pass  # for ever
        elif fails and (each.fails_at_start or each.fails_as is Failure.GPU_LOST):
            if each.fails_as is not Failure.HANG:
                self._fail(process, 0.5, each.fails_as)
        elif within(each.busy, now_s):
            self._fail(process, 0.5, Failure.NO_ROOM)
        elif self.life.mishap("early"):
            self._fail(process, 0.5, Failure.DOES_NOT_START)
        else:
            process.phase = Phase.FORWARD
            self._compute(process, each.fails_as if fails else Failure.NONE)

    def _compute(self, process: Process, fault: Failure) -> None:
        """Settle the ends of its batches, longest texts first, up to the first that fails."""
        task, limits, canary = process.task, process.limits, process.canary
        lengths, poison = self.world.lengths[task.output], self.world.poison[task.output]
        room = process.device.gpu.tokens // (1 if process.alone else 2)
        order = sorted(task.texts, key=lengths.__getitem__, reverse=True)
        first = None
        match canary:
            case KnownText(text):
                first = text
                lengths = [*lengths, 1]  # one whose vector is taken over has the number after them
            case OwnText(rank):
                first = order.pop(max(0, len(order) - 1 - rank))
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
            cause = Failure.NONE
            if rows * longest > room:
                cause = Failure.OOM
            elif fault is not Failure.NONE:
                cause = fault
            elif within(self.world.server_down, self.life.now_s + took_s):
                cause = Failure.SERVER
            elif transient and (first is None or not order):
                cause = Failure.ILLEGAL
            else:
                bad = [poison[text] for text in batch if text in poison] if poison else []
                bad = [each for each in bad if each not in (Failure.NAN, Failure.DIMENSION)]
                if bad:
                    cause = bad[0]
                elif first is not None and poison.get(first) is Failure.NAN:
                    cause = Failure.CANARY
            if cause is Failure.HANG:
                return
            if cause is not Failure.NONE:
                self._fail(process, took_s, cause)
                return
            process.batch_ends_s.append(self.life.now_s + took_s)
            at, first = at + (rows if first is None else 0), None
        process.fate = self._result(process)
        if self.chance.random() < 0.7:
            self._at(took_s, self._frees, process)
            took_s += self.chance.uniform(0.1, 1.0)
        self._at(took_s, self._writes, process)

    def _result(self, process: Process) -> Evidence:
        task, poison = process.task, self.world.poison[process.task.output]
        bad = [text for text in task.texts if text in poison] if poison else []
        if any(poison[text] is Failure.DIMENSION for text in bad):
            # As if another attempt had found the right dimension.
            known = isinstance(process.canary, KnownText)
            alike = all(poison.get(text) is Failure.DIMENSION for text in task.texts) and not known
            return evidence(Failure.DIMENSION if alike else Failure.DIMENSIONS, rows=1)
        if bad:
            return evidence(Failure.NAN, bad_rows=tuple(text - task.texts[0] for text in bad))
        return evidence(Failure.NONE)

    def _frees(self, process: Process) -> None:
        process.freed = process.called = True
        process.phase = Phase.WRITE
        waiting = [
            each for each in process.device.processes if each.phase is Phase.READY and not each.gone
        ]
        if waiting and self.life.mishap("early"):  # at the gate, just now
            self._leave(waiting[0], evidence(Failure.KILLED, Phase.READY))

    def _writes(self, process: Process) -> None:
        if within(self.world.disk_full, self.life.now_s):
            process.phase = Phase.WRITE
            self._leave(process, evidence(Failure.DISK, Phase.WRITE))
        elif not process.freed and not self.life.mishap("late exit"):
            self._frees(process)
            self._at(0.0, self._exits, process)
        else:
            self._exits(process)

    def _fail(self, process: Process, after_s: float, failure: Failure) -> None:
        rows, tokens = process.batch
        gpu, now_s = process.device.gpu, self.life.now_s
        others_gib = 14 if within(gpu.busy, now_s) else 8 if within(gpu.neighbours, now_s) else 0
        left = evidence(failure, process.phase, rows, tokens, (), process.rows_done, others_gib)
        process.fate = left
        self._at(after_s, self._exits, process)

    def _exits(self, process: Process) -> None:
        assert process.fate is not None
        self._leave(process, process.fate)

    def _leave(self, process: Process, left: Evidence) -> None:
        """End the process: it leaves that evidence, and the vectors of its finished batches."""
        if process.left is not None:
            return
        process.plan += 1
        process.left = left
        batches, poison = process.batches, self.world.poison[process.task.output]
        done = min(bisect_right(process.batch_ends_s, self.life.now_s), len(batches))
        known = process.canary is not None
        process.canary_is_good = process.canary_is_good or (known and done > 0)
        if left.result is not None or left.returncode == evidence(Failure.NODE).returncode:
            return
        if done < len(batches):
            process.under_way = frozenset(batches[done]) & frozenset(process.task.texts)
        texts = [text for batch in batches[:done] for text in batch]
        if not any(poison.get(text) is Failure.DIMENSION for text in texts):
            own = frozenset(process.task.texts)
            process.saved = frozenset(text for text in texts if text not in poison) & own

    def signalled(self, process: Process) -> None:
        """A signal tells the process to end."""
        if process.ending or process.left is not None:
            return
        process.ending = True
        process.plan += 1
        if process.gone and self.life.now_s >= process.device.gpu.hangs_from_s:
            return  # not even SIGKILL ends it
        if not (process.freed and process.fate is not None and self.chance.random() < 0.5):
            rows, tokens = process.batch
            process.fate = Evidence(
                -15, beat=Beat(3, 1, process.phase, batch_rows=rows, batch_tokens=tokens)
            )
        self._at(0.3, self._exits, process)

    def leaves(self, process: Process) -> None:
        """Stop the process after the batch in progress, unless it fails or is done before."""
        process.asked = True
        if process.fate is None or not process.batch_ends_s or process.left is not None:
            return  # it hangs, or fails before its first batch: the end of the time ends it
        now_s = self.life.now_s
        ends = [number for number, at_s in enumerate(process.batch_ends_s) if at_s > now_s]
        if not ends or ends[0] + 1 >= len(process.batches):
            return  # the batch under way is the last one, or the one that fails
        process.plan += 1
        process.fate = Evidence(WorkerExit.ORPHANED)
        self._at(process.batch_ends_s[ends[0]] - now_s, self._exits, process)

    # --- outputs, and the thread that joins them: see Executor

    def _open(self, number: int) -> Output:
        waits = number == 1 and self.world.shared and not self.disk.shared_is_planned
        if waits and 0 in self.disk.published:
            self.life.plan_shared()
            waits = False
        files = self.disk.files[number]
        output = Output(files, self.world.limits, self.world.lengths[number])
        output.new_attempt = self.new_attempt
        output.joined = number in self.disk.published
        left = [each for each in self.life.left_behind if each.task.output == number]
        output.attempts_left = lambda: left
        output.join = lambda on_wait: self._join(number, on_wait)
        if waits:
            output.waits_for = frozenset({0})
            output.prepare = self._plan
        return output

    def _plan(self, on_wait: Callable[[], None]) -> tuple[Output, list[Any]]:
        """Plan the second output, which has texts of the first."""
        self.watchdog.plans(self)
        on_wait()
        self.life.plan_shared()
        planned = self._open(1)
        planned.find_known_good()
        return planned, []

    def submit(self, join: Callable[..., Any], *given: Any) -> Future[Any]:
        """Join an output in the background: some time later."""
        job = Join(join.__name__, join, given)
        self._at(self.chance.uniform(0.1, 3.0), self._joined, job)
        return job.future

    def shutdown(self, **_how: bool) -> None:
        pass

    def _joined(self, job: Join) -> None:
        try:
            job.future.set_result(job.join(*job.given))
        except (OSError, ChunkDamagedError) as error:
            job.future.set_exception(error)

    def _join(self, number: int, on_wait: Callable[[], None]) -> dict[str, Any]:
        output = self.outputs[number]
        self.watchdog.joins(number)
        on_wait()
        if within(self.world.disk_full, self.life.now_s):
            raise full()
        chunks = output.ledger.plan.count  # 0 if another output has all of its texts
        if chunks and self.life.mishap("damaged chunk"):
            self.damaged_turn = self.turns + 1
            raise ChunkDamagedError(self.chance.randrange(chunks), "damaged")
        self.disk.published.add(number)
        return {"rows": 1, "dimension": DIMENSION, "path": ""}


def simulate(
    seed: int, size: str = "small", *, world: World | None = None, trace: bool = False
) -> Life:
    """Play the life of the seed to its end. Raises Broken where an invariant does not hold; its
    `life` tells how.
    """
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
