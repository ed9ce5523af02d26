"""Histories: what happens, line by line, and what the scheduler is to say to it.

A line reads `what happens | what is said`. After each line a turn of the loop passes, unless it ends with `&`; workers
start, and vectors are stored, at once, and outputs are joined as the loop joins them. What is only reported of attempts
(`Failed`, `TakenApart`) is left out of what is said.
"""

import math
import re

from chunkvisor.devices.health import Health, Opinion
from chunkvisor.heart import messages, policy
from chunkvisor.heart.scheduler import Scheduler, Settings
from chunkvisor.judge import Budget, Company, Verdict
from chunkvisor.words import BadRows
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
    "sigterm": Failure.SIGTERM, "exclusive": Failure.EXCLUSIVE, "unread": Failure.UNREAD,
}  # fmt: skip
COMPANIES = {str(each.value) for each in Company}
PHASES = {"busy": Phase.CUDA_INIT, "hub": Phase.MODEL_LOAD, "disk": Phase.WRITE, "init": Phase.CUDA_INIT}
LONGEST = 10
"""Tokens of the longest text of a batch, where a line does not say it."""


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
        """With `templates`, workers are forked from one where their work lets them be, and it is said which are not."""
        self._templates = templates
        bounds = [(first, first + size) for first in range(0, chunks * size, size)]
        self.outputs = [Output(f"out{number}", Limits(rows), bounds) for number in range(outputs)]
        for chunk in range(done):
            self.outputs[0].keep(chunk, range(*bounds[chunk]))
        budget = Budget(attempts, min_batch, wait_timeout)
        settings = Settings(per_device, standby, budget, BadRows(fail=fail, limit=max_bad_rows))
        self.now_s = 0.0
        self.disk_full = self.host_oom = self.halted = self.stopping = False
        self.limits: dict[int, Limits] = {}
        self.canaries: dict[int, int | None] = {}
        self.began_s: dict[int, float] = {}
        self.left: dict[int, float] = {}
        self.joined = set[int]()
        """Outputs that are joined, or are being so."""
        self.devices: dict[str, list[int]] = {}
        """Of each machine."""
        self._longest = LONGEST
        self.scheduler = Scheduler(self.outputs, settings, lambda _: None, self, lambda: self.now_s)

    def holding(self, _device: int) -> bool:
        """See View."""
        return False

    def has_room(self, _device: int) -> bool:
        """See View."""
        return True

    def left_s(self, worker: int) -> float | None:
        """See View: as a line `left WORKER SECONDS` said, less the time since."""
        return self.left[worker] - self.now_s if worker in self.left else None

    def line(self, line: str) -> list[str]:
        """What is said to the line, in words."""
        verb, *rest = line.removesuffix("&").split()
        said: list[str] = []
        for event in self._events(verb, rest):
            self._tell(event, said)
        if not line.endswith("&"):
            self._tell(messages.Tick(), said)
        self._join(said)
        return said

    def _tell(self, event: messages.Event, said: list[str]) -> None:
        todo = [] if self.halted else self.scheduler.handle(event)
        while todo and not self.halted:
            command = todo.pop(0)
            if (words := self._words(command)) is not None:
                said.append(words)
            if (answer := self._answer(command)) is not None:
                todo += self.scheduler.handle(answer)
                self._join(said)

    def _join(self, said: list[str]) -> None:
        """The loop joins what is complete by itself."""
        for number, output in enumerate(self.outputs):
            joinable = output.complete and output.bad_count < output.texts and not self.stopping
            if joinable and number not in self.joined:
                self.joined.add(number)
                said.append(f"join {number}")

    def _events(self, verb: str, rest: list[str]) -> list[messages.Event]:
        match verb, rest:
            case "join", [device, *marks]:
                marked = dict(zip(marks[::2], marks[1::2], strict=True))
                look, node = marked.get("look", "good"), marked.get("node", "")
                self.devices.setdefault(node, []).append(int(device))
                opinion = None if look == "none" else Opinion(Health(look))
                return [messages.DeviceSeen(int(device), node, marked.get("kind", "a"), opinion)]
            case "wait", [seconds]:
                self.now_s += float(seconds)
            case "disk", [("full" | "free") as state]:
                self.disk_full = state == "full"
            case "host", [state]:
                self.host_oom = state == "full"
            case "looked", [device, health]:
                return [messages.DeviceSeen(int(device), opinion=Opinion(Health(health), "so it looks"))]
            case "leaves", [node]:
                return [messages.DeviceSeen(each, gone=True) for each in self.devices.pop(node, [])]
            case "damaged", [output, chunk]:
                self.joined.discard(int(output))
                self.outputs[int(output)].discard(int(chunk))
                return [messages.Lost(int(output), int(chunk))]
            case "part-damaged", [output, chunk]:
                self.joined.discard(int(output))
                progress = self.outputs[int(output)]
                progress.lose_part(int(chunk), progress.parts[int(chunk)][0])
                return [messages.Lost(int(output), int(chunk))]
            case "drain", []:
                return [messages.StopBy()]
            case "drain", [seconds]:
                return [messages.StopBy(self.now_s + float(seconds))]
            case "left", [worker, seconds]:
                self.left[int(worker)] = self.now_s + float(seconds)
            case "stop", []:
                self.stopping = True
                return [messages.StopBy(-math.inf)]
            case _:
                return self._of_worker(verb, int(rest[0]), rest[1:])
        return []

    def _of_worker(self, verb: str, worker: int, rest: list[str]) -> list[messages.Event]:
        limits = self.limits.get(worker, Limits(1))
        known = self.scheduler.workers.get(worker)
        texts = list(known.work.texts) if known is not None else []
        canary = self.canaries.get(worker)
        good_canary = canary is not None and canary >= 0
        match verb:
            case "ready":
                return [messages.Called(worker)]
            case "freed":
                return [messages.Called(worker, freed=True)]
            case "refused":
                return [messages.AttemptEnded(worker, None)]
            case "ok":
                done = messages.AttemptEnded(worker, verdict(Failure.NONE), proven=True)
                return [messages.Called(worker, freed=True), done]
            case "nan":
                bad = tuple(map(int, rest[0].split(",")))
                judged = verdict(Failure.NAN, limits=limits, bad_rows=bad)
                proven = good_canary or len(bad) < len(texts)
                return [messages.Called(worker, freed=True), messages.AttemptEnded(worker, judged, proven=proven)]
            case "leaves-with":  # its first texts are encoded
                saved = frozenset(texts[: int(rest[0])])
                return [messages.AttemptEnded(worker, verdict(Failure.STOPPED), done=saved, proven=True)]
        company = Company(rest.pop()) if rest and rest[-1] in COMPANIES else Company.UNTOLD
        # A canary fails only where the line says so; "done 3,4" are texts whose vectors are written.
        canary_failed = "canary" in rest
        rest = [each for each in rest if each != "canary"]
        saved = frozenset[int]()
        if "done" in rest:
            at = rest.index("done")
            saved = frozenset(map(int, rest[at + 1].split(",")))
            rest = rest[:at] + rest[at + 2 :]
        phase = Phase(rest.pop()) if rest and rest[-1][0].isalpha() else PHASES.get(verb, Phase.FORWARD)
        # "8x10": rows and longest text of the batch; "8x10+8": eight texts were done before it.
        rows, longest, before = map(int, re.split("[x+]", f"{rest[0]}+0")[:3]) if rest else (0, 0, 0)
        self._longest = longest or LONGEST
        judged = verdict(FAILURES[verb], phase, limits, rows, rows * longest, rows_done=before)
        proven = bool(before or saved) or (good_canary and not canary_failed)
        began_s = self.began_s.get(worker)
        return [messages.AttemptEnded(worker, judged, company, began_s, done=saved, proven=proven)]

    def _answer(self, command: messages.Command) -> messages.Event | None:
        match command:
            case messages.StartWorker(worker=worker, work=work):
                self.canaries[worker] = command.canary
                if self.host_oom:
                    return messages.AttemptEnded(worker, Verdict(Outcome.HOST_OOM, "no memory", batch_rows=1))
                if work.fresh or not self._templates:
                    self.began_s[worker] = self.now_s
                return messages.AttemptEnded(worker, FULL) if self.disk_full else None
            case messages.OpenGate(worker=worker, limits=limits):
                self.limits[worker] = limits
            case messages.StoreVectors(work=work) if self.disk_full:
                return messages.Stored(work, FULL)
            case messages.StoreVectors(work=work, bad=bad):
                if bad is not None:
                    self.outputs[work.output].quarantine(work.chunk, work.texts[0])
                else:
                    self.outputs[work.output].keep(work.chunk, work.texts)
                return messages.Stored(work)
            case messages.Tell(news=messages.RunHalts()):
                self.halted = True
        return None

    def _words(self, command: messages.Command) -> str | None:
        match command:
            case messages.StartWorker(worker=worker, device=device, work=work, canary=canary):
                mark = " fresh" if self._templates and work.fresh else ""
                if canary is not None:
                    mark += f" canary {canary}" if canary >= 0 else " own first" if canary == -1 else f" own {-canary}"
                where = f"{work.output}/" if work.output else ""
                return f"start {worker} on {device}: {where}{work.texts[0]}..{work.texts[-1] + 1}{mark}"
            case messages.OpenGate(worker=worker, limits=limits):
                rows = limits.rows if limits.tokens is None else max(1, limits.tokens // self._longest)
                return f"go {worker}: {min(limits.rows, rows)}"
            case messages.End(worker=worker, gently=gently):
                return f"leave {worker}" if gently else f"end {worker}"
            case messages.Look(device=device):
                return f"look {device}"
            case messages.StoreVectors(worker=worker, bad=None):
                return f"keep {worker}"
            case messages.StoreVectors(work=work):
                return f"quarantine {work.texts[0]}"
            case messages.Tell(news=news):
                return self._of_news(news)
        return None

    def _of_news(self, news: messages.News) -> str | None:
        match news:
            case messages.Failed(verdict=None, worker=worker):
                return f"refuse {worker}"
            case messages.Failed(step=policy.GiveUp(), work=work):
                return f"set aside {work.chunk}"
            case messages.Learnt(kind=kind, rows=rows, tokens=tokens):
                return f"learn {kind} {rows if tokens is None else tokens // self._longest}"
            case messages.RunWaits(device=device):
                return "wait for all" if device is None else f"wait for {device}"
            case messages.Dropped(place=place, code=code):
                return f"drop {place} {int(code)}"
            case messages.RunHalts(code=code, why="bad rows"):
                return f"halt {int(code)} bad rows"
            case messages.RunHalts(code=code):
                return f"halt {int(code)}"
        return None
