"""Histories: what happens, line by line, and what the loop is to do.

A line reads `what happens, and what then | what is done`. After each a turn of the real loop
passes; workers start, and vectors are stored, at once. Instructions that only tell people something
are left out of what is done.
"""

import errno
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

from chunkvisor.core import policy
from chunkvisor.core.instructions import (
    AskToStop,
    DropDevice,
    EndRun,
    EndWorker,
    Instruction,
    KeepVectors,
    LowerLimits,
    OpenGate,
    PlanOutput,
    QuarantineTexts,
    ReadDevice,
    ReportFailure,
    ReportWait,
    StartWorker,
    Task,
)
from chunkvisor.core.loop import Loop
from chunkvisor.core.policy import Canary, KnownText, OwnText
from chunkvisor.core.run import Run
from chunkvisor.core.store import ResultStore
from chunkvisor.devices.handles import Health
from chunkvisor.errors import Halt, StopReason
from chunkvisor.events import event
from chunkvisor.judge import Evidence
from chunkvisor.outputs.join import ChunkDamagedError
from chunkvisor.store.identity import Plan
from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.messages import Limits, Phase

from .disk import FACTS, Disk, MemoryFiles, Output, full
from .machine import Engine, Signals, Worker, gpu, reading
from .verdicts import Failure, asked, evidence

FAILURES = {
    "crashed": Failure.SEGFAULT, "fault": Failure.ILLEGAL, "raised": Failure.RAISES, "input": Failure.BAD_INPUT,
    "oom": Failure.OOM, "busy": Failure.NO_ROOM, "lost-gpu": Failure.GPU_LOST, "hub": Failure.HUB,
    "host-oom": Failure.HOST_OOM, "killed": Failure.KILLED, "disk": Failure.DISK, "hung": Failure.HANG,
    "dimension": Failure.DIMENSION, "lost": Failure.NODE, "stopped": Failure.STOPPED, "init": Failure.DOES_NOT_START,
    "sigterm": Failure.SIGTERM, "exclusive": Failure.EXCLUSIVE, "unread": Failure.UNREAD,
}  # fmt: skip
PHASES = {
    "busy": Phase.CUDA_INIT,
    "hub": Phase.MODEL_LOAD,
    "disk": Phase.WRITE,
    "init": Phase.CUDA_INIT,
}
LONGEST = 10  # tokens of the longest text of a batch, where a line does not say it


class _Loop(Loop):
    """The real loop; `play` notes each instruction."""

    play: "Play"

    def _do(self, instruction: Instruction) -> Any:
        self.play.note(instruction)
        return super()._do(instruction)


class Play:
    """The loop on a machine that does what the lines say; it is also the loop's store."""

    def __init__(
        self,
        *,
        chunks: int = 3,
        size: int = 8,
        outputs: int = 1,
        rows: int = 32,
        done: int = 0,
        templates: bool = False,
        waits: bool = False,
        **given: Any,
    ) -> None:
        """With `templates`, workers are forked from one if their work lets them be, and it is said
        which are not.

        `waits`: the second output is planned once the first is settled.
        """
        self._templates = templates
        self.now_s = 0.0
        self.disk_full = self.host_oom = self.halted = False
        self.workers: dict[int, Worker] = {}
        self._joins: list[Future[Any]] = []  # under way
        self._made: dict[Future[Any], Any] = {}  # what comes of them
        self._longest = LONGEST
        self._said: list[str] = []
        self._start: StartWorker | None = None
        plans = [Plan(chunks * size, size) for _ in range(outputs)]
        self.disk = Disk(plans, self._on_write)
        self.outputs = [self._open(files, Limits(rows)) for files in self.disk.files]
        self.disk.outputs = self.outputs
        if waits:
            planned = self._open(self.disk.files[1], Limits(rows))
            self.outputs[1].waits_for = frozenset({0})
            self.outputs[1].prepare = lambda _: (planned, [])
        for chunk in range(done):
            self.outputs[0].ledger.commit(
                chunk, cast("Any", {text: text for text in range(chunks * size)}), "", FACTS
            )
        self.outputs[0].find_known_good()
        self.signals = Signals(lambda: None)
        self.engine = Engine(lambda: None, lambda: None, self._started)
        nothing = cast("Any", None)
        run = Run(
            nothing,
            "",
            cast("Any", self.signals),
            self._emit,
            lambda: None,
            clock=lambda: self.now_s,
        )
        config = asked(**given)
        store = ResultStore(self.outputs, run, config.recovery.wait_timeout, pool=cast("Any", self))
        lessons = cast("Any", self.disk)
        self.loop = _Loop(self.outputs, config, lessons, self.engine, store, run, self.engine.look)
        self.loop.play = self
        self.engine.open(self.loop._handles, lambda: 0, 0)
        self.loop._opened = True

    def _open(self, files: MemoryFiles, limits: Limits) -> Output:
        output = Output(files, limits, [1] * files.plan.distinct)
        output.new_attempt = self._new_attempt
        return output

    def _on_write(self) -> None:
        if self.disk_full:
            raise full()

    def _emit(self, told: event.Event) -> None:
        if isinstance(told, event.Assembling):
            self._said.append(f"join {told.output.removeprefix('out')}")

    def line(self, line: str) -> list[str]:
        """Let a line happen; return what the loop does about it, in words."""
        self._said = []
        for each in line.split(", "):
            verb, *rest = each.split()
            if verb != "damaged":
                for future in self._joins:
                    future.set_result(self._made[future])
                self._joins.clear()
            self._happens(verb, rest)
            if not self.halted:
                try:
                    self.loop._turn()
                except Halt:
                    self.halted = True
        return self._said

    # --- what happens

    def _happens(self, verb: str, rest: list[str]) -> None:
        match verb, rest:
            case "join", [device, *marks]:
                marked = dict(zip(marks[::2], marks[1::2], strict=True))
                look = marked.get("look", "good")
                added = gpu(int(device), marked.get("kind", "a"), watched=look != "none")
                first = reading(Health(look) if look != "none" else Health.GOOD, [])
                self.engine.add(added, marked.get("node", ""), first)
            case "wait", [seconds]:
                self.now_s += float(seconds)
            case "disk", [("full" | "free") as state]:
                self.disk_full = state == "full"
            case "host", [state]:
                self.host_oom = state == "full"
            case "looked", [device, health]:
                ours = [
                    each.number for each in self.workers.values() if each.gone and each.left is None
                ]
                self.engine.looked(f"GPU-{device}", reading(Health(health), ours))
            case "leaves", [node]:
                self.engine.handles.drop_node(node, "it is gone")
            case "damaged", [_, chunk]:
                future = self._joins.pop()
                future.set_exception(ChunkDamagedError(int(chunk), "damaged"))
            case "part-damaged", [output, chunk]:
                self.disk.files[int(output)].damage_part(int(chunk))
            case "drain", seconds:
                self.signals.draining = True
                self.signals.until_s = self.now_s + float(seconds[0]) if seconds else None
            case "stop", []:
                self.signals.draining = self.signals.stopping = True
            case "ready", [worker]:
                self._of(worker).phase, self._of(worker).called = Phase.READY, True
            case "freed", [worker]:
                self._of(worker).freed = self._of(worker).called = True
            case _:
                self._end(self._of(rest[0]), verb, rest[1:])

    def _of(self, worker: str) -> Worker:
        return self.workers[int(worker)]

    def _end(self, worker: Worker, verb: str, rest: list[str]) -> None:
        texts = list(worker.task.texts)
        # A canary fails only where the line says so; "done 3,4" are texts whose vectors are
        # written.
        worker.canary_is_good = isinstance(worker.canary, KnownText) and "canary" not in rest
        match verb:
            case "refused":
                worker.warm, worker.left = True, Evidence(WorkerExit.TAINTED_TEMPLATE)
                return
            case "ok":
                worker.left = evidence(Failure.NONE)
                return
            case "nan":
                worker.left = evidence(Failure.NAN, bad_rows=tuple(map(int, rest[0].split(","))))
                return
            case "leaves-with":  # its first texts are encoded
                worker.saved, worker.left = (
                    frozenset(texts[: int(rest[0])]),
                    Evidence(WorkerExit.ORPHANED),
                )
                return
        rest = [each for each in rest if each != "canary"]
        others_gib = 10 if rest[-1:] == ["came"] else 0
        rest = rest[:-1] if others_gib else rest
        if "done" in rest:
            at = rest.index("done")
            worker.saved = frozenset(map(int, rest[at + 1].split(",")))
            rest = rest[:at] + rest[at + 2 :]
        phase = (
            Phase(rest.pop()) if rest and rest[-1][0].isalpha() else PHASES.get(verb, Phase.FORWARD)
        )
        # of the batch: its longest text
        rows, longest = map(int, rest[0].split("x")) if rest else (0, 0)
        self._longest = longest or LONGEST
        worker.left = evidence(FAILURES[verb], phase, rows, rows * longest, others_gib=others_gib)

    # --- the machine

    def _new_attempt(
        self, task: Task, handle: Any, limits: Limits, canary: Canary | None
    ) -> Worker:
        if self.disk_full:
            raise full()
        assert self._start is not None
        return Worker(self._start.worker, task, handle, limits, canary)

    def _started(self, worker: Worker, fresh: bool) -> None:
        if self.host_oom:
            raise OSError(errno.ENOMEM, "no memory")
        worker.warm = self._templates and not fresh
        self.workers[worker.number] = worker

    # --- the thread of the joins: see Executor

    def submit(self, join: Callable[..., Any], *_given: Any) -> Future[Any]:
        """Begin a join, which ends when something else happens, or is found to be `damaged`."""
        future = Future[Any]()
        self._joins.append(future)
        is_plan = any(each.prepare is join for each in self.outputs)
        made = join(None) if is_plan else {"rows": 1, "dimension": 1, "path": ""}
        self._made[future] = made
        return future

    # --- in words

    def note(self, instruction: Instruction) -> None:
        """Add an instruction to what is done."""
        self._start = instruction if isinstance(instruction, StartWorker) else self._start
        if (words := self._words(instruction)) is not None:
            self._said.append(words)

    def _words(self, instruction: Instruction) -> str | None:
        match instruction:
            case StartWorker(worker, device, task, _, canary):
                mark = " fresh" if self._templates and task.cold_start else ""
                match canary:
                    case KnownText(text):
                        mark += f" canary {text}"
                    case OwnText(rank):
                        mark += f" own {rank + 1}" if rank else " own first"
                mark += " alone" if task.singly and len(task.texts) > 1 else ""
                where = f"{task.output}/" if task.output else ""
                return (
                    f"start {worker} on {device}: "
                    f"{where}{task.texts[0]}..{task.texts[-1] + 1}{mark}"
                )
            case OpenGate(worker, limits):
                rows = (
                    limits.rows if limits.tokens is None else max(1, limits.tokens // self._longest)
                )
                return f"go {worker}: {min(limits.rows, rows)}"
            case EndWorker(worker):
                return f"end {worker}"
            case AskToStop(worker):
                return f"leave {worker}"
            case PlanOutput(output):
                return f"plan {output}"
            case ReadDevice(device):
                return f"look {device}"
            case KeepVectors(worker):
                return f"keep {worker}"
            case QuarantineTexts(task):
                return f"quarantine {' '.join(map(str, task.texts))}"
            case ReportFailure(task=task, step=policy.GiveUp()):
                return f"set aside {task.chunk}"
            case ReportWait(device_or_all):
                return "wait for all" if device_or_all is None else f"wait for {device_or_all}"
            case LowerLimits(kind, limit):
                most = limit.rows if limit.tokens is None else limit.tokens // self._longest
                return f"learn {kind.removesuffix(' 16 GiB')} {most}"
            case DropDevice(ending):
                return f"drop {ending.device} {int(ending.code)}"
            case EndRun(ending):
                return f"halt {int(ending.code)}{' bad rows' if ending.why is StopReason.BAD_ROWS else ''}"
        return None
