"""A life: the scheduler, a driver on a virtual clock, and a world that does to it what its seed says.

The supervisor may die between any two instructions; it then begins again with what the modelled disk has kept.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chunkvisor.decide.history import Company
from chunkvisor.decide.outcome import EndedBy
from chunkvisor.decide.verdict import Verdict
from chunkvisor.devices.health import Health, Opinion
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.scheduler import Scheduler
from chunkvisor.supervise.task import Task
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, Phase

from .disk import MISSING, VECTOR, Disk, Output
from .terse import terse
from .verdicts import Failure, verdict
from .watchdog import Broken, Watchdog
from .world import MISHAPS_S, NEVER, Gpu, Outage, World, draw, within

STALL_S = 60.0
"""Without progress for so long, a worker is overdue."""

RESTART_S = 60.0
"""Until a run is begun again."""

IDLE_TURNS = 500
"""So many turns in which nothing happens are no wait any more; the longest lasts a minute, a turn up to 16 s."""

ATTEMPTS = 20
"""So many attempts for each text, and for each run twenty times as many, are no search any more: six times as many as
any of 5,000 lives has needed."""

MISHAPS = 40
"""So many small ones in a life, at most: without an end of mishaps no life has to end."""

GOOD = Opinion(Health.GOOD)


@dataclass(slots=True, eq=False)
class Process:
    """A worker."""

    number: int
    task: Task
    device: "Device"
    limits: Limits
    started_s: float = 0.0
    warm: bool = False
    plan: int = 0
    """Rises when what was to happen to it does not."""
    told_ready: bool = False
    gone: bool = False
    told_freed: bool = False
    ending: bool = False
    go_step: int = 0
    gone_s: float = 0.0
    """When it got its device."""
    alone: bool = True
    """Whether nobody else held memory of its device when it got its `go`."""
    phase: Phase = Phase.START
    batch: tuple[int, int] = (0, 0)
    """Rows and padded tokens of the batch that it is at."""
    rows_done: int = 0
    batches: list[list[int]] = field(default_factory=list)
    """Texts of each batch up to the one that it is at."""
    saved: frozenset[int] = frozenset()
    """Texts of batches that are written, however it ends."""
    under_way: frozenset[int] = frozenset()
    batch_ends_s: list[float] = field(default_factory=list)
    """When each of those is done."""
    left_after: int | None = None
    """Batches after which it has left, asked to."""
    result: Verdict | None = None
    """What it leaves if nobody ends it before it has written everything."""

    def left_s(self, now_s: float) -> float | None:
        """Seconds until its last batch is done, by the batches that are done; None before the first is."""
        done = sum(at_s <= now_s for at_s in self.batch_ends_s)
        return (self.batch_ends_s[done - 1] - self.gone_s) / done * (len(self.batches) - done) if done else None


@dataclass(slots=True, eq=False)
class Device:
    """A device under the number of this run."""

    number: int
    gpu: Gpu
    left: bool = False
    paused_until_s: float = 0.0
    opinion: Opinion = GOOD
    processes: list[Process] = field(default_factory=list)
    started_turn: int = 0
    """The turn in which a worker was to be started there last."""


class _Died(Exception):
    """The supervisor died."""


class _Ended(Exception):
    """The run halted."""

    def __init__(self, code: ExitCode, halt: Halt | None = None) -> None:
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
        self.steps = 0
        """Stimuli so far."""
        self.disk = Disk([_output(world, number) for number in range(len(world.lengths))])
        self.watchdog = Watchdog(world, self.disk)
        self.deaths = sorted(world.deaths, reverse=True)
        self.stops = sorted(world.stops, reverse=True)
        self.mishaps = MISHAPS if world.chances else 0
        self.codes: list[ExitCode] = []
        self.history: list[str] | None = [] if trace else None
        self.attempts = 0

    def live(self) -> "Life":
        """To the end. Raises Broken where an invariant does not hold."""
        barren = 0
        while True:
            progress = self.disk.progress
            began_calm = self.now_s >= self.world.calm_s
            code = self.run_once()
            self.codes.append(code)
            self.note(f"--- ended with {code.name}")
            if code in (ExitCode.COMPLETE, ExitCode.QUARANTINED, ExitCode.MACHINE, ExitCode.DISK, ExitCode.CONFIG):
                self.watchdog.at_the_end(code, self.codes, self.now_s)
                return self
            self.now_s += RESTART_S
            barren = barren + 1 if began_calm and self.disk.progress == progress and code is ExitCode.TRY_AGAIN else 0
            if barren >= 3:
                self.watchdog.given_up(self.codes)
                return self
            if len(self.codes) > 100:
                raise Broken("ends", f"after 100 runs there is no end: {Counter(self.codes)}")

    def run_once(self) -> ExitCode:
        """One run: to its exit code, or to the death of the supervisor (TERMINATED)."""
        run = _Run(self)
        try:
            return run.play()
        except _Ended as end:
            if self.history is not None and end.halt is not None:
                self.note(str(end.halt))
            run.leave_behind(adopt=True)
            return end.code
        except _Died:
            self.note("--- the supervisor dies")
            self.disk.die(self.chance)
            run.leave_behind(adopt="adopted" in self.world.chances)
            return ExitCode.TERMINATED

    def note(self, line: str) -> None:
        """Keep the line for whoever reads the history."""
        if self.history is not None:
            self.history.append(f"{self.now_s:9.2f}  {line}")

    def mishap(self, name: str) -> bool:
        """Whether this one happens now."""
        if not self.mishaps or self.now_s > MISHAPS_S or self.chance.random() >= self.world.chances.get(name, 0.0):
            return False
        self.mishaps -= 1
        return True


class _Run:
    """One run of the supervisor; also what the scheduler asks of the engine (`Capacity`)."""

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
        self.todo: deque[do.Instruction] = deque()
        self.set_aside: list[Outcome] = []
        self.draining = self.stopping = self.joins_stopped = False
        self.damaged_turn = 0
        """The turn in which a part turned out damaged last: its texts are due from the next on."""
        self.over_s = NEVER
        """When all has to be over."""
        self.paused_until_s = 0.0
        self.last_halt: Halt | None = None
        self.without_s: float | None = None
        self.aside: set[str] = set()
        self.clustered = bool(self.world.nodes)
        self.began_s = life.now_s
        self.watchdog.begin()
        self.scheduler = Scheduler(self.outputs, self.world.settings, self.disk.lessons, self, lambda: self.life.now_s)
        self._acts: dict[type, Any] = {
            do.Start: self._start, do.Go: self._go, do.End: self._end, do.Look: self._look, do.Keep: self._keep,
            do.Quarantine: self._quarantine, do.Compose: self._compose, do.Cut: self._cut, do.Join: self._join,
            do.SaveLessons: self._save_lessons, do.DropDevice: self._drop, do.DropNode: self._drop_node,
            do.HaltRun: self._halt, do.HaltByBadRows: self._halt_by_bad_rows, do.TellWaiting: self._waiting,
            do.SetAside: self._aside, do.Leave: self._leave_soon, do.StopJoins: self._stop_joins,
        }  # fmt: skip

    # --- Capacity

    def holding(self, device: int) -> bool:
        """See Capacity."""
        return False

    def has_room(self, device: int) -> bool:
        """See Capacity."""
        return True

    def left_s(self, worker: int) -> float | None:
        """See Forecast: as a rate so far would tell it, rightly or not."""
        process = self.processes.get(worker)
        return process.left_s(self.life.now_s) if process is not None else None

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
        time_passed = on.TimePassed()
        while not scheduler.finished:
            self.turns += 1
            busy = self._happen()
            self._engine_waits()
            self._tell(time_passed)
            self.watchdog.after_turn(self)
            self.ended.clear()
            step_s = 0.25 if busy or self.over_s != NEVER else min(step_s * 4, 16.0)
            idle = 0 if busy else idle + 1
            if idle > IDLE_TURNS:
                raise Broken("ends", f"nothing has happened for {idle} turns, and the run has not ended")
            if scheduler.finished:
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
        return ExitCode.QUARANTINED if any(output.bad_count for output in self.outputs) else ExitCode.COMPLETE

    def _happen(self) -> bool:
        """All that has happened since the last turn."""
        life, events, busy = self.life, self.events, False
        while life.stops and life.stops[-1][0] <= life.now_s:
            _, grace_s = life.stops.pop()
            self.draining, self.stopping = True, self.stopping or grace_s == 0
            if grace_s:
                self.over_s = min(self.over_s, life.now_s + grace_s)
            self._tell(on.Drain(self.over_s if self.over_s != NEVER else None) if grace_s else on.Stop())
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

    def _tell(self, stimulus: on.Stimulus) -> None:
        self._hear(stimulus)
        if self.todo:
            self._obey()

    def _hear(self, stimulus: on.Stimulus) -> list[do.Instruction]:
        self.life.steps += 1
        if self.life.history is not None and type(stimulus) is not on.TimePassed:
            self.life.note(f"> {terse(stimulus)}")
        said = self.scheduler.handle(stimulus)
        self.todo.extend(said)
        return said

    def _maybe_die(self) -> None:
        life = self.life
        life.instructions += 1
        if life.deaths and life.instructions >= life.deaths[-1]:
            # The other half of the deaths falls between the act and its answer.
            life.deaths.pop()
            raise _Died

    def _act(self, instruction: do.Instruction) -> on.Stimulus | None:
        if self.life.history is not None:
            self.life.note(f"    < {terse(instruction)}")
        act: Callable[[Any], on.Stimulus | None] | None = self._acts.get(type(instruction))
        return act(instruction) if act is not None else None

    # --- devices

    def _join_device(self, gpu: Gpu) -> None:
        device = Device(self.numbered, gpu)
        self.numbered += 1
        self.devices[device.number] = device
        opinion = None if not gpu.watched and device.number % 2 else self._opinion(gpu)
        name = f"gpu {device.number}"
        self._tell(on.DeviceJoined(device.number, name, gpu.node, gpu.kind, opinion))

    def _opinion(self, gpu: Gpu) -> Opinion:
        if not gpu.watched:
            return Opinion(Health.BLIND, "nobody can tell")
        if self.life.now_s >= gpu.fails_from_s and gpu.fails_as is Failure.GPU_LOST:
            return Opinion(Health.BROKEN, "it is lost")
        return Opinion(Health.BUSY, "somebody has it") if within(gpu.busy, self.life.now_s) else GOOD

    def _look(self, look: do.Look) -> None:
        self._at(0.5, self._looked, self.devices[look.device])

    def _looked(self, device: Device) -> None:
        if not device.left:
            device.opinion = self._opinion(device.gpu)
            self._tell(on.Looked(device.number, device.opinion))

    def _drop(self, drop: do.DropDevice) -> None:
        self.devices[drop.device].left = True
        self.last_halt = drop.halt

    def _drop_node(self, drop: do.DropNode) -> on.NodeLeft:
        self.last_halt = drop.halt
        self.aside.add(drop.node)
        self._leave(drop.node)
        return on.NodeLeft(drop.node)

    def _leave(self, node: str) -> None:
        for device in self.devices.values():
            if device.gpu.node == node:
                device.left = True

    def _lose(self, node: str) -> None:
        """The machine is gone, which is heard of before or after the ends of its workers."""
        lost = [each for each in self.processes.values() if each.device.gpu.node == node]
        first = self.chance.random() < 0.5
        if first:
            self._leave(node)
            self._tell(on.NodeLeft(node))
        for process in lost:
            if process.number in self.processes:
                self._gone(process, verdict(Failure.NODE))
        if not first:
            self._leave(node)
            self._tell(on.NodeLeft(node))

    def _node_goes(self, out: Outage) -> None:
        if out.node in self.aside:
            return
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
            raise _Ended(self.last_halt.code, self.last_halt)
        if now_s - self.without_s >= self.world.settings.budget.wait_timeout_s:
            raise _Ended(ExitCode.TRY_AGAIN)

    # --- workers

    def _start(self, start: do.Start) -> on.Started | on.NotStarted:
        device = self.devices[start.device]
        warm = self.world.warm and not start.task.fresh
        process = Process(start.worker, start.task, device, start.limits, self.life.now_s, warm)
        device.started_turn = self.turns
        self.watchdog.starts(self, process)
        self.life.attempts += 1
        if self.life.attempts > ATTEMPTS * (sum(map(len, self.world.lengths)) + 20 * (1 + len(self.life.codes))):
            raise Broken("ends", f"after {self.life.attempts:,} attempts: something is tried again that nothing counts")
        if within(self.world.disk_full, self.life.now_s):
            return on.NotStarted(start.worker, Verdict(Outcome.DISK_FULL, "no worker could be started: disk full"))
        if within(self.world.host_oom, self.life.now_s) or self.life.mishap("start fails"):
            limits = Limits(rows=1)
            return on.NotStarted(
                start.worker, Verdict(Outcome.HOST_OOM, "no worker could be started", limits=limits, batch_rows=1)
            )
        self.processes[start.worker] = process
        device.processes.append(process)
        self._prepare(process)
        return on.Started(start.worker, warm)

    def _prepare(self, process: Process) -> None:
        took_s = self.chance.uniform(0.3, 3.0)
        process.phase = Phase.MODEL_LOAD
        if within(self.world.hub_down, self.life.now_s):
            self._fail(process, took_s, Failure.HUB)
        elif process.warm and self.life.mishap("refused"):
            self._at(took_s / 4, self._refuse, process)
        elif self.watchdog.may_fail_early(process) and self.life.mishap("early"):
            process.phase = self.chance.choice((Phase.START, Phase.IMPORT, Phase.MODEL_LOAD, Phase.TOKENIZE))
            if process.phase is Phase.TOKENIZE and not self.watchdog.may_fail_by_chance(process):
                process.phase = Phase.START
            self._fail(process, took_s, self.chance.choice((Failure.SEGFAULT, Failure.HOST_OOM, Failure.KILLED)))
        else:
            self._at(took_s, self._ready, process)

    def _ready(self, process: Process) -> None:
        process.told_ready = True
        process.phase = Phase.READY
        self._tell(on.Ready(process.number))

    def _refuse(self, process: Process) -> None:
        self._forget(process)
        self._tell(on.Refused(process.number))

    def _go(self, go: do.Go) -> None:
        process = self.processes[go.worker]
        self.watchdog.goes(self, process)
        process.gone, process.limits, process.go_step = True, go.limits, self.life.steps
        process.gone_s = self.life.now_s
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
        elif self.watchdog.may_fail_early(process) and self.life.mishap("early"):
            self._fail(process, 0.5, Failure.DOES_NOT_START)
        else:
            process.phase = Phase.FORWARD
            self._compute(process, gpu.fails_as if fails else Failure.NONE)

    def _compute(self, process: Process, fault: Failure) -> None:
        """What becomes of its batches, longest texts first."""
        task, limits = process.task, process.limits
        lengths, poison = self.world.lengths[task.output], self.world.poison[task.output]
        room = process.device.gpu.tokens // (1 if process.alone else 2)
        order = sorted(task.wanted, key=lengths.__getitem__, reverse=True)
        took_s, at, count = 0.2, 0, len(order)
        transient = self.watchdog.may_fail_by_chance(process) and self.life.mishap("transient")
        while at < count:
            longest = lengths[order[at]]
            rows, tokens = limits.of_length(longest)
            rows = min(rows, max(1, tokens // longest) if tokens else rows, count - at)
            process.batch, process.rows_done = (rows, rows * longest), at
            process.batches.append(order[at : at + rows])
            took_s += 0.1 + rows * longest / 4000
            process.batch_ends_s.append(self.life.now_s + took_s)
            if rows * longest > room:
                self._fail(process, took_s, Failure.OOM)
                return
            if fault is not Failure.NONE or transient:
                cause = fault if fault is not Failure.NONE else Failure.ILLEGAL
                if cause is Failure.HANG:
                    self._hang(process)
                else:
                    self._fail(process, took_s, cause)
                return
            if poison:
                for text in order[at : at + rows]:
                    failure = poison.get(text, Failure.NAN)
                    if failure is Failure.HANG:
                        self._hang(process)
                        return
                    if failure is not Failure.NAN and failure is not Failure.DIMENSION:
                        self._fail(process, took_s, failure)
                        return
            at += rows
        process.result = self._result(process)
        if self.chance.random() < 0.7:
            self._at(took_s, self._frees, process)
            took_s += self.chance.uniform(0.1, 1.0)
        self._at(took_s, self._writes, process)

    def _result(self, process: Process) -> Verdict:
        task = process.task
        poison = self.world.poison[task.output]
        bad = [text for text in task.wanted if text in poison] if poison else []
        if any(poison[text] is Failure.DIMENSION for text in bad):
            # As if another attempt had told the right dimension before.
            alike = all(poison.get(text) is Failure.DIMENSION for text in task.wanted)
            return verdict(Failure.DIMENSION if alike else Failure.DIMENSIONS, limits=process.limits)
        if bad:
            return verdict(Failure.NAN, limits=process.limits, bad_rows=tuple(text - task.start for text in bad))
        return verdict(Failure.NONE)

    def _frees(self, process: Process) -> None:
        process.told_freed = True
        process.phase = Phase.WRITE
        self._tell(on.Freed(process.number))

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
        process.result = verdict(failure, process.phase, process.limits, rows, tokens, rows_done=process.rows_done)

    def _failed(self, process: Process) -> None:
        assert process.result is not None
        self._gone(process, process.result)

    def _hang(self, process: Process) -> None:
        process.result = None
        self._at(STALL_S, self._overdue, process)

    def _overdue(self, process: Process) -> None:
        self._tell(on.Overdue(process.number, "no progress"))

    def _end(self, end: do.End) -> None:
        process = self.processes.get(end.worker)
        if process is None or process.ending:
            return
        process.ending = True
        process.plan += 1
        if process.gone and self.life.now_s >= process.device.gpu.hangs_from_s:
            self._at(40.0, self._stuck, process)
            return
        done = process.told_freed and process.result is not None and self.chance.random() < 0.5
        if end.by is EndedBy.HANG:
            process.result = verdict(Failure.HANG, process.phase, process.limits, *process.batch)
        elif not done:
            process.result = verdict(Failure.STOPPED)
        self._at(0.3, self._failed, process)

    def _leave_soon(self, leave: do.Leave) -> None:
        """It ends after the batch under way, unless it fails or is done before."""
        process = self.processes[leave.worker]
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

    def _stop_joins(self, _stop: do.StopJoins) -> None:
        self.joins_stopped = True

    def _stuck(self, process: Process) -> None:
        """Even SIGKILL has not ended it: its machine is done without."""
        halt = Halt(ExitCode.MACHINE, "a worker cannot be killed")
        node = process.device.gpu.node
        if not node:
            raise _Ended(halt.code, halt)
        self.last_halt = halt
        self.aside.add(node)
        self._lose(node)

    def _gone(self, process: Process, judged: Verdict) -> None:
        self._forget(process)
        self.ended[process.number] = process, judged
        self.watchdog.ends(self, process, judged)
        began_s = None if process.warm else process.started_s
        self._salvage(process, judged)
        company, saved, under_way = self._company(process, judged), process.saved, process.under_way
        said = self._hear(on.Ended(process.number, judged, company, began_s, saved, under_way))
        self.watchdog.answered(process, judged, said, self.life.steps)
        self._obey()

    def _salvage(self, process: Process, judged: Verdict) -> None:
        """What it has left of batches that were finished: one that was ended from outside was at any of them."""
        batches, task = process.batches, process.task
        if not batches or task.control or judged.outcome in (Outcome.COMMITTED, Outcome.BAD_OUTPUT):
            return
        at = self.chance.randrange(len(batches)) if judged.asked_for or judged.outcome is Outcome.LOST else -1
        at = process.left_after if process.left_after is not None and judged.asked_for else at
        poison = self.world.poison[task.output]
        if judged.phase is Phase.FORWARD and at < len(batches):
            process.under_way = frozenset(batches[at])
        done = [text for batch in batches[:at] for text in batch]
        if judged.outcome is not Outcome.LOST and not any(poison.get(text) is Failure.DIMENSION for text in done):
            process.saved = frozenset(text for text in done if text not in poison)

    def _company(self, process: Process, judged: Verdict) -> Company:
        """As the driver has it from torch's message and the last look; those of before the run are part of the GPU."""
        gpu, now_s = process.device.gpu, self.life.now_s
        if judged.outcome not in (Outcome.GPU_OOM, Outcome.GPU_BUSY):
            return Company.UNTOLD
        if any(each.gone for each in process.device.processes):
            return Company.OURS
        if not gpu.watched:
            return Company.BLIND
        spells = [*gpu.busy, *gpu.neighbours]
        if any(start > self.began_s for start, stop in spells if start <= now_s < stop):
            return Company.CAME
        return Company.ALONE if process.alone and not within(spells, now_s) else Company.UNTOLD

    def _obey(self) -> None:
        todo = self.todo
        while todo:
            instruction = todo.popleft()
            self._maybe_die()
            answer = self._act(instruction)
            self._maybe_die()
            if answer is not None:
                self._hear(answer)

    def _forget(self, process: Process) -> None:
        process.plan += 1
        del self.processes[process.number]
        process.device.processes.remove(process)

    # --- the disk

    def _disk_full(self, what: str) -> Verdict | None:
        if within(self.world.disk_full, self.life.now_s):
            return Verdict(Outcome.DISK_FULL, f"{what} could not be stored")
        return None

    def _keep(self, keep: do.Keep) -> on.Stored | on.NotStored:
        task = keep.task
        self.watchdog.keeps(self, keep)
        if (full := self._disk_full("vectors")) is not None:
            return on.NotStored(task, full)
        output = self.outputs[task.output]
        holes = [task.start + row for row in keep.holes] + list(task.skip)
        output.keep(task.chunk, task.start, task.stop, holes, failed=keep.failed)
        return on.Stored(task, whole=output.committed(task.chunk))

    def _quarantine(self, quarantine: do.Quarantine) -> on.Quarantined | on.NotStored:
        task = quarantine.task
        self.watchdog.quarantines(task)
        if (full := self._disk_full("a verdict")) is not None:
            return on.NotStored(task, full)
        self.outputs[task.output].quarantine(task.chunk, task.start)
        return on.Quarantined(task)

    def _compose(self, compose: do.Compose) -> on.Stored | on.NotStored | on.PartsDamaged:
        task = compose.task
        output = self.outputs[task.output]
        self.watchdog.composes(task)
        if (full := self._disk_full("a chunk")) is not None:
            return on.NotStored(task, full)
        if output.parts.get(task.chunk) and self.life.mishap("damaged part"):
            output.lose_part(task.chunk, self.chance.choice(output.parts[task.chunk]))
            self.damaged_turn = self.turns
            return on.PartsDamaged(task.output, task.chunk)
        output.compose(task.chunk)
        return on.Stored(task, whole=True)

    def _cut(self, cut: do.Cut) -> None:
        self.outputs[cut.task.output].cut(cut.task.chunk, cut.at)

    def _save_lessons(self, save: do.SaveLessons) -> None:
        self.watchdog.saves(save)
        self.disk.save_lessons(save.kind, save.lessons)

    def _join(self, join: do.Join) -> None:
        self.watchdog.joins(join.output)
        self._at(self.chance.uniform(0.1, 3.0), self._joined, self.outputs[join.output])

    def _joined(self, output: Output) -> None:
        number = self.outputs.index(output)
        if self.stopping or self.joins_stopped:
            self._tell(on.JoinStopped(number))
        elif within(self.world.disk_full, self.life.now_s):
            self._tell(on.JoinWaits(number, Halt(ExitCode.DISK, "no space to join")))
        elif self.life.mishap("damaged chunk"):
            chunk = self.chance.randrange(output.chunks)
            output.discard(chunk)
            self._tell(on.ChunkDamaged(number, chunk))
        else:
            output.published = True
            self._tell(on.Joined(number))

    # --- ends

    def _halt(self, halt: do.HaltRun) -> None:
        raise _Ended(halt.halt.code, halt.halt)

    def _halt_by_bad_rows(self, halt: do.HaltByBadRows) -> None:
        self.watchdog.too_many(halt)
        raise _Ended(ExitCode.CONFIG)

    def _waiting(self, tell: do.TellWaiting) -> None:
        until_s = self.life.now_s + tell.delay_s
        if tell.device is None:
            self.paused_until_s = max(self.paused_until_s, until_s)
        elif tell.device in self.devices:
            device = self.devices[tell.device]
            device.paused_until_s = max(device.paused_until_s, until_s)

    def _aside(self, aside: do.SetAside) -> None:
        self.set_aside.append(aside.verdict.outcome)

    def leave_behind(self, *, adopt: bool) -> None:
        """The workers are gone; what some had finished is taken over by the next run, as the driver does."""
        finished = [
            (each, each.result)
            for each in self.processes.values()
            if each.told_freed and each.result is not None and self.chance.random() < 0.5
        ]
        finished += [each for each in self.ended.values() if self.chance.random() < 0.5]
        if not adopt or within(self.world.disk_full, self.life.now_s):
            return
        for process, judged in finished:
            task, output = process.task, self.outputs[process.task.output]
            fresh = all(output.state[text] == MISSING for text in task.wanted)
            if judged.outcome is Outcome.COMMITTED and fresh and task.texts:
                output.keep(task.chunk, task.start, task.stop, task.skip)
            elif process.saved and fresh:
                without = frozenset(range(task.start, task.stop)).difference(process.saved)
                output.keep(task.chunk, task.start, task.stop, without, failed=True)


def _output(world: World, number: int) -> Output:
    texts = len(world.lengths[number])
    bounds = [(first, min(first + world.chunk_size, texts)) for first in range(0, texts, world.chunk_size)]
    return Output(f"out{number}", world.limits, bounds, world.lengths[number])


def simulate(seed: int, size: str = "small", *, world: World | None = None, trace: bool = False) -> Life:
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


__all__ = ["GOOD", "VECTOR", "Life", "simulate"]
