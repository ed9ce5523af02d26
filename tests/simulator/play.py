"""Histories: what happens, line by line, and what the loop is to do.

A line reads `what happens, and what then | what is done`. After each a turn of the real loop passes; workers start, and
vectors are stored, at once. Instructions that only tell people something are left out of what is done.
"""

import errno
from typing import Any, cast

from chunkvisor.devices.stations import Health
from chunkvisor.errors import Halt
from chunkvisor.heart import policy
from chunkvisor.heart.instructions import (
    AskToLeave,
    DropDevice,
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
    TellWait,
    Work,
)
from chunkvisor.heart.loop import Loop
from chunkvisor.heart.run import Run
from chunkvisor.judge import Evidence, Verdict
from chunkvisor_worker.contract.exits import Outcome, WorkerExit
from chunkvisor_worker.contract.messages import Limits, Phase

from .disk import Disk, Output
from .machine import Engine, Signals, Worker, gpu, reading
from .verdicts import Failure, asked, evidence

FULL = Verdict(Outcome.DISK_FULL, "no space")

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
    """The real one, and somebody who listens."""

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
        **given: Any,
    ) -> None:
        """With `templates`, workers are forked from one if their work lets them be, and it is said which are not."""
        self._templates = templates
        bounds = [(first, first + size) for first in range(0, chunks * size, size)]
        self.outputs = [Output(f"out{number}", Limits(rows), bounds) for number in range(outputs)]
        for output in self.outputs:
            output.new_attempt = self._new_attempt
        for chunk in range(done):
            self.outputs[0].keep(chunk, range(*bounds[chunk]))
        self.now_s = 0.0
        self.disk_full = self.host_oom = self.halted = False
        self.workers: dict[int, Worker] = {}
        self.joined = set[int]()  # outputs that are joined, or are being so
        self.lost: list[tuple[int, int]] = []
        self._longest = LONGEST
        self._said: list[str] = []
        self._start: StartWorker | None = None
        self.signals = Signals(lambda: None)
        self.engine = Engine(lambda: None, lambda: None, self._started)
        run = Run(
            cast("Any", None),
            "",
            cast("Any", self.signals),
            lambda _: None,
            lambda: None,
            clock=lambda: self.now_s,
        )
        fakes = (
            cast("Any", self.outputs),
            asked(**given),
            cast("Any", Disk(self.outputs)),
            self.engine,
        )
        self.loop = _Loop(*fakes, cast("Any", self), run, self.engine.look)
        self.loop.play = self
        self.engine.open(self.loop._stations, lambda: 0, 0)
        self.loop._opened = True

    def line(self, line: str) -> list[str]:
        """What is done about the line, in words."""
        self._said = []
        for each in line.split(", "):
            verb, *rest = each.split()
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
                self.engine.stations.lose(node, "it is gone")
            case (("damaged" | "part-damaged"), [output, chunk]):
                self.joined.discard(int(output))
                progress = self.outputs[int(output)]
                if verb == "damaged":
                    progress.discard(int(chunk))
                else:
                    progress.lose_part(int(chunk), progress.parts[int(chunk)][0])
                self.lost.append((int(output), int(chunk)))
            case "drain", seconds:
                self.signals.draining = True
                self.signals.until_s = self.now_s + float(seconds[0]) if seconds else None
            case "stop", []:
                self.signals.draining = self.signals.stopping = True
            case "ready", [worker]:
                self._of(worker).phase, self._of(worker).called = Phase.READY, True
            case "freed", [worker]:
                self._of(worker).freed = self._of(worker).called = True
            case "both", ends:  # in one turn: `both crashed:2 freed:1`
                for each in ends:
                    self._happens(each.partition(":")[0], each.partition(":")[2].split(":"))
            case _:
                self._end(self._of(rest[0]), verb, rest[1:])

    def _of(self, worker: str) -> Worker:
        """One that was not started may be waited for."""
        if int(worker) not in self.workers:
            nobody = Work(0, 0, (0,))
            return Worker(int(worker), nobody, cast("Any", None), Limits(1))
        return self.workers[int(worker)]

    def _end(self, worker: Worker, verb: str, rest: list[str]) -> None:
        texts = list(worker.work.texts)
        # A canary fails only where the line says so; "done 3,4" are texts whose vectors are written.
        worker.canary_is_good = (
            worker.canary is not None and worker.canary >= 0 and "canary" not in rest
        )
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
        rows, longest = (
            map(int, rest[0].split("x")) if rest else (0, 0)
        )  # of the batch: its longest text
        self._longest = longest or LONGEST
        worker.left = evidence(FAILURES[verb], phase, rows, rows * longest, others_gib=others_gib)

    # --- the machine

    def _new_attempt(self, work: Work, station: Any, limits: Limits, canary: int | None) -> Worker:
        if self.disk_full:
            raise OSError(errno.ENOSPC, "no space")
        assert self._start is not None
        return Worker(self._start.worker, work, station, limits, canary)

    def _started(self, worker: Worker, fresh: bool) -> None:
        if self.host_oom:
            raise OSError(errno.ENOMEM, "no memory")
        worker.warm = self._templates and not fresh
        self.workers[worker.number] = worker

    # --- the store: see Store

    first_go_s = None
    joining = False

    def adopt(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def keep(self, work: Work, _attempt: Any, *, salvaged: bool) -> Verdict | None:
        if not self.disk_full:
            self.outputs[work.output].keep(work.chunk, work.texts)
        return FULL if self.disk_full else None

    def quarantine(self, work: Work, _verdict: Verdict) -> Verdict | None:
        if not self.disk_full:
            self.outputs[work.output].quarantine(work.chunk, work.texts)
        return FULL if self.disk_full else None

    def compose(self, _output: int, _chunk: int) -> bool:
        return True

    def attend(self) -> list[tuple[int, int]]:
        for number, output in enumerate(self.outputs):
            joinable = (
                output.complete and output.bad_count < output.texts and not self.signals.stopping
            )
            if joinable and number not in self.joined:
                self.joined.add(number)
                self._said.append(f"join {number}")
        lost, self.lost = self.lost, []
        return lost

    # --- in words

    def note(self, instruction: Instruction) -> None:
        """Say what is done."""
        self._start = instruction if isinstance(instruction, StartWorker) else self._start
        if (words := self._words(instruction)) is not None:
            self._said.append(words)

    def _words(self, instruction: Instruction) -> str | None:
        match instruction:
            case StartWorker(worker, device, work, _, canary):
                mark = " fresh" if self._templates and work.fresh else ""
                if canary is not None:
                    mark += (
                        f" canary {canary}"
                        if canary >= 0
                        else " own first"
                        if canary == -1
                        else f" own {-canary}"
                    )
                mark += " alone" if work.one_by_one and len(work.texts) > 1 else ""
                where = f"{work.output}/" if work.output else ""
                return f"start {worker} on {device}: {where}{work.texts[0]}..{work.texts[-1] + 1}{mark}"
            case OpenGate(worker, limits):
                rows = (
                    limits.rows if limits.tokens is None else max(1, limits.tokens // self._longest)
                )
                return f"go {worker}: {min(limits.rows, rows)}"
            case EndWorker(worker):
                return f"end {worker}"
            case AskToLeave(worker):
                return f"leave {worker}"
            case LookAtDevice(device):
                return f"look {device}"
            case KeepVectors(worker):
                return f"keep {worker}"
            case QuarantineTexts(work):
                return f"quarantine {' '.join(map(str, work.texts))}"
            case TellFailure(work=work, step=policy.GiveUp()):
                return f"set aside {work.chunk}"
            case TellWait(device_or_all):
                return "wait for all" if device_or_all is None else f"wait for {device_or_all}"
            case LowerLimits(kind, lesson):
                most = lesson.rows if lesson.tokens is None else lesson.tokens // self._longest
                return f"learn {kind.removesuffix(' 16 GiB')} {most}"
            case DropDevice(ending):
                return f"drop {ending.device} {int(ending.code)}"
            case EndRun(ending):
                return f"halt {int(ending.code)}{' bad rows' * (ending.why == 'bad rows')}"
        return None
