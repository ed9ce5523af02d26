"""Histories: what happens, line by line, and what the scheduler is to say to it.

A line reads `what happens | what is said`. After each line a turn of the loop passes, unless it ends with `&`; workers
start, and vectors are stored, at once. Reports (`Record`, `TellSplit`, `Discard`) are left out of what is said.
"""

import re

from chunkvisor.decide.history import Budget, Company
from chunkvisor.decide.lastwords import BadRows
from chunkvisor.decide.outcome import EndedBy
from chunkvisor.decide.verdict import Verdict
from chunkvisor.devices.health import Health, Opinion
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.scheduler import Scheduler, Settings
from chunkvisor.supervise.task import Task
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, Phase

from .disk import Output
from .verdicts import Failure, verdict

FULL = Verdict(Outcome.DISK_FULL, "no space")

FAILURES = {
    "crashed": Failure.SEGFAULT, "fault": Failure.ILLEGAL, "raised": Failure.RAISES, "input": Failure.BAD_INPUT,
    "oom": Failure.OOM, "busy": Failure.NO_ROOM, "lost-gpu": Failure.GPU_LOST, "hub": Failure.HUB,
    "host-oom": Failure.HOST_OOM, "killed": Failure.KILLED, "disk": Failure.DISK, "hung": Failure.HANG,
    "dimension": Failure.DIMENSION, "lost": Failure.NODE, "stopped": Failure.STOPPED, "init": Failure.DOES_NOT_START,
    "sigterm": Failure.SIGTERM, "exclusive": Failure.EXCLUSIVE,
    "unread": Failure.UNREAD,
}  # fmt: skip
COMPANIES = {str(each.value) for each in Company}
PHASES = {"busy": Phase.CUDA_INIT, "hub": Phase.MODEL_LOAD, "disk": Phase.WRITE, "init": Phase.CUDA_INIT}


class Play:
    """A scheduler, a clock and a disk."""

    def __init__(
        self,
        *,
        chunks: int = 3,
        size: int = 8,
        outputs: int = 1,
        rows: int = 32,
        per_device: int = 1,
        standby: int = 0,
        attempts: int = 3,
        wait_timeout: float = 60,
        max_bad_rows: int = 100,
        fail: bool = False,
        min_batch: int = 1,
        done: int = 0,
        templates: bool = False,
    ) -> None:
        """With `templates`, workers are forked from one where their task lets them be, and it is told which are not."""
        self._templates = templates
        bounds = [(first, first + size) for first in range(0, chunks * size, size)]
        self.outputs = [Output(f"out{number}", Limits(rows), bounds) for number in range(outputs)]
        for chunk in range(done):
            self.outputs[0].keep(chunk, *bounds[chunk], ())
        budget = Budget(attempts, min_batch, wait_timeout)
        settings = Settings(per_device, standby, budget, BadRows(fail=fail, limit=max_bad_rows))
        self.now_s = 0.0
        self.disk_full = self.host_oom = self.halted = False
        self.limits: dict[int, Limits] = {}
        self.began_s: dict[int, float] = {}
        self.left: dict[int, float] = {}
        self.scheduler = Scheduler(self.outputs, settings, {}, self, lambda: self.now_s)

    def holding(self, device: int) -> bool:
        """See Capacity."""
        return False

    def has_room(self, device: int) -> bool:
        """See Capacity."""
        return True

    def left_s(self, worker: int) -> float | None:
        """See Forecast: as a line `left WORKER SECONDS` said, less the time since."""
        return self.left[worker] - self.now_s if worker in self.left else None

    def line(self, line: str) -> list[str]:
        """What is said to the line, in words."""
        verb, *rest = line.removesuffix("&").split()
        said: list[str] = []
        for stimulus in self._stimuli(verb, rest):
            self._tell(stimulus, said)
        if not line.endswith("&"):
            self._tell(on.TimePassed(), said)
        return said

    def _tell(self, stimulus: on.Stimulus, said: list[str]) -> None:
        todo = [] if self.halted else self.scheduler.handle(stimulus)
        while todo and not self.halted:
            instruction = todo.pop(0)
            if (words := self._words(instruction)) is not None:
                said.append(words)
            if (answer := self._answer(instruction)) is not None:
                todo += self.scheduler.handle(answer)

    def _stimuli(self, verb: str, rest: list[str]) -> list[on.Stimulus]:
        match verb, rest:
            case "join", [device, *marks]:
                marked = dict(zip(marks[::2], marks[1::2], strict=True))
                look = marked.get("look", "good")
                opinion = None if look == "none" else Opinion(Health(look))
                return [
                    on.DeviceJoined(
                        int(device), f"gpu {device}", marked.get("node", ""), marked.get("kind", "a"), opinion
                    )
                ]
            case "wait", [seconds]:
                self.now_s += float(seconds)
                return []
            case "disk", [("full" | "free") as state]:
                self.disk_full = state == "full"
                return []
            case "host", [state]:
                self.host_oom = state == "full"
                return []
            case "looked", [device, health]:
                return [on.Looked(int(device), Opinion(Health(health), "so it looks"))]
            case "leaves", [node]:
                return [on.NodeLeft(node)]
            case "joined", [output]:
                return [on.Joined(int(output))]
            case "damaged", [output, chunk]:
                self.outputs[int(output)].discard(int(chunk))
                return [on.ChunkDamaged(int(output), int(chunk))]
            case "join-waits", [output]:
                return [on.JoinWaits(int(output), Halt(ExitCode.DISK, "no space"))]
            case "join-stopped", [output]:
                return [on.JoinStopped(int(output))]
            case "part-damaged", [output, chunk]:
                progress = self.outputs[int(output)]
                progress.lose_part(int(chunk), progress.parts[int(chunk)][0])
                return [on.PartsDamaged(int(output), int(chunk))]
            case "drain", []:
                return [on.Drain()]
            case "drain", [seconds]:
                return [on.Drain(self.now_s + float(seconds))]
            case "left", [worker, seconds]:
                self.left[int(worker)] = self.now_s + float(seconds)
                return []
            case "stop", []:
                return [on.Stop()]
            case _:
                return self._of_worker(verb, int(rest[0]), rest[1:])

    def _of_worker(self, verb: str, worker: int, rest: list[str]) -> list[on.Stimulus]:
        limits = self.limits.get(worker, Limits(1))
        match verb:
            case "ready":
                return [on.Ready(worker)]
            case "freed":
                return [on.Freed(worker)]
            case "refused":
                return [on.Refused(worker)]
            case "overdue":
                return [on.Overdue(worker, "no progress")]
            case "ok":
                return [on.Freed(worker), on.Ended(worker, verdict(Failure.NONE))]
            case "nan":
                bad = tuple(map(int, rest[0].split(",")))
                return [on.Freed(worker), on.Ended(worker, verdict(Failure.NAN, limits=limits, bad_rows=bad))]
        company = Company(rest.pop()) if rest and rest[-1] in COMPANIES else Company.UNTOLD
        phase = Phase(rest.pop()) if rest and rest[-1][0].isalpha() else PHASES.get(verb, Phase.FORWARD)
        if verb == "leaves-with":  # its first texts are encoded
            task = self.scheduler.fleet.workers[worker].task
            saved = frozenset(task.wanted[: int(rest[0])])
            return [on.Ended(worker, verdict(Failure.STOPPED), saved=saved)]
        # "8x10": rows and longest text of the batch; "8x10+8": eight texts were done before it.
        rows, longest, done = map(int, re.split("[x+]", f"{rest[0]}+0")[:3]) if rest else (0, 0, 0)
        judged = verdict(FAILURES[verb], phase, limits, rows, rows * longest, rows_done=done)
        return [on.Ended(worker, judged, company, self.began_s.get(worker))]

    def _answer(self, instruction: do.Instruction) -> on.Stimulus | None:
        match instruction:
            case do.Start(worker=worker):
                if self.host_oom:
                    return on.NotStarted(worker, Verdict(Outcome.HOST_OOM, "no memory", batch_rows=1))
                if not self._from_template(instruction.task):
                    self.began_s[worker] = self.now_s
                return on.NotStarted(worker, FULL) if self.disk_full else on.Started(worker)
            case do.Go(worker=worker, limits=limits):
                self.limits[worker] = limits
            case do.Keep(task=task) | do.Quarantine(task=task) | do.Compose(task=task) if self.disk_full:
                return on.NotStored(task, FULL)
            case do.Keep(task=task, holes=holes, failed=failed):
                output = self.outputs[task.output]
                without = [task.start + row for row in holes] + list(task.skip)
                output.keep(task.chunk, task.start, task.stop, without, failed=failed)
                return on.Stored(task, whole=output.committed(task.chunk))
            case do.Quarantine(task=task):
                self.outputs[task.output].quarantine(task.chunk, task.start)
                return on.Quarantined(task)
            case do.Compose(task=task):
                self.outputs[task.output].compose(task.chunk)
                return on.Stored(task, whole=True)
            case do.Cut(task=task, at=at):
                self.outputs[task.output].cut(task.chunk, at)
            case do.DropNode(node=node):
                return on.NodeLeft(node)
            case do.HaltRun() | do.HaltByBadRows():
                self.halted = True
        return None

    def _from_template(self, task: Task) -> bool:
        return self._templates and not task.fresh

    def _words(self, instruction: do.Instruction) -> str | None:
        match instruction:
            case do.Start(worker=worker, device=device, task=task):
                control = " control" if task.control else ""
                control += " fresh" if self._templates and task.fresh else ""
                where = f"{task.output}/" if task.output else ""
                return f"start {worker} on {device}: {where}{task.start}..{task.stop}{control}"
            case do.Go(worker=worker, limits=limits):
                return f"go {worker}: {limits.of_length(10**6)[0]}"
            case do.End(worker=worker, by=by):
                return f"end {worker}" + (" hung" if by is EndedBy.HANG else "")
            case do.Leave(worker=worker):
                return f"leave {worker}"
            case do.StopJoins():
                return "stop joins"
            case do.Look(device=device):
                return f"look {device}"
            case do.Refuse(worker=worker):
                return f"refuse {worker}"
            case do.Keep(worker=worker, holes=holes):
                return f"keep {worker}" + (f" but {','.join(map(str, holes))}" if holes else "")
            case do.Cut(at=at):
                return f"cut at {at}"
            case do.Quarantine(task=task):
                return f"quarantine {task.start}"
            case do.Compose(task=task):
                return f"compose {task.chunk}"
            case do.Join(output=output):
                return f"join {output}"
            case do.SaveLessons(changed=None):
                return "forget"
            case do.SaveLessons(kind=kind, changed=tier, doubted=doubted):
                return f"{'widen' if doubted else 'learn'} {kind} {tier.rows}" if tier else None
            case do.TellWaiting(device=device):
                return "wait for all" if device is None else f"wait for {device}"
            case do.SetAside(task=task):
                return f"set aside {task.chunk}"
            case do.DropDevice(device=device, halt=halt):
                return f"drop {device} {int(halt.code)}"
            case do.DropNode(node=node, halt=halt):
                return f"drop {node} {int(halt.code)}"
            case do.HaltByBadRows():
                return "halt 78 bad rows"
            case do.HaltRun(halt=halt):
                return f"halt {int(halt.code)}"
        return None
