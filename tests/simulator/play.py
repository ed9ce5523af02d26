"""Histories: what happens, line by line, and what the scheduler is to say to it.

A line reads `what happens, and what then | what is said`. After each a turn of the loop passes; workers start, and
vectors are stored, at once, and outputs are joined as the loop joins them. What is only reported of attempts (`failed`,
`taken_apart`) is left out of what is said.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from chunkvisor.devices.stations import Health, Opinion
from chunkvisor.heart import policy
from chunkvisor.heart.policy import Lesson
from chunkvisor.heart.scheduler import AttemptEnded, Ending, Scheduler, Work
from chunkvisor.judge import Company, Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, Phase

from .disk import Output
from .verdicts import Failure, asked, verdict

FULL = Verdict(Outcome.DISK_FULL, "no space")

FAILURES = {
    "crashed": Failure.SEGFAULT, "fault": Failure.ILLEGAL, "raised": Failure.RAISES, "input": Failure.BAD_INPUT,
    "oom": Failure.OOM, "busy": Failure.NO_ROOM, "lost-gpu": Failure.GPU_LOST, "hub": Failure.HUB,
    "host-oom": Failure.HOST_OOM, "killed": Failure.KILLED, "disk": Failure.DISK, "hung": Failure.HANG,
    "dimension": Failure.DIMENSION, "lost": Failure.NODE, "stopped": Failure.STOPPED, "init": Failure.DOES_NOT_START,
    "sigterm": Failure.SIGTERM, "exclusive": Failure.EXCLUSIVE, "unread": Failure.UNREAD,
}  # fmt: skip
COMPANIES = {str(each.value) for each in Company}
PHASES = {
    "busy": Phase.CUDA_INIT,
    "hub": Phase.MODEL_LOAD,
    "disk": Phase.WRITE,
    "init": Phase.CUDA_INIT,
}
LONGEST = 10  # tokens of the longest text of a batch, where a line does not say it


class Play:
    """A scheduler, a clock and a disk; it is the scheduler's hands."""

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
        for chunk in range(done):
            self.outputs[0].keep(chunk, range(*bounds[chunk]))
        self.now_s = 0.0
        self.disk_full = self.host_oom = self.halted = self.stopping = False
        self.limits: dict[int, Limits] = {}
        self.canaries: dict[int, int | None] = {}
        self.began_s: dict[int, float] = {}
        self.joined = set[int]()  # outputs that are joined, or are being so
        self.devices: dict[str, list[int]] = {}  # of each machine
        self._longest = LONGEST
        self._said: list[str] = []
        hands, progress = cast("Any", self), cast("Any", self.outputs)
        self.scheduler = Scheduler(
            progress, asked(**given), lambda _: None, hands, lambda: self.now_s
        )

    def line(self, line: str) -> list[str]:
        """What is said to the line, in words."""
        self._said = []
        for each in line.split(", "):
            verb, *rest = each.split()
            for happens in self._happens(verb, rest):
                self._tell(happens)
            self._tell(self.scheduler.tick)
            self._join()
        return self._said

    def _tell(self, happens: Callable[[], None]) -> None:
        if self.halted:
            return
        happens()
        todo = self.scheduler.take()
        while todo and not self.halted:
            todo.pop(0)()
            todo += self.scheduler.take()
            self._join()

    def _join(self) -> None:
        """The loop joins what is complete by itself."""
        for number, output in enumerate(self.outputs):
            joinable = output.complete and output.bad_count < output.texts and not self.stopping
            if joinable and number not in self.joined:
                self.joined.add(number)
                self._said.append(f"join {number}")

    # --- what happens

    def _happens(self, verb: str, rest: list[str]) -> list[Callable[[], None]]:
        scheduler = self.scheduler
        match verb, rest:
            case "join", [device, *marks]:
                marked = dict(zip(marks[::2], marks[1::2], strict=True))
                look, node = marked.get("look", "good"), marked.get("node", "")
                self.devices.setdefault(node, []).append(int(device))
                opinion = None if look == "none" else Opinion(Health(look))
                kind = marked.get("kind", "a")
                return [lambda: scheduler.seen(int(device), node, kind, opinion, gone=False)]
            case "wait", [seconds]:
                self.now_s += float(seconds)
            case "disk", [("full" | "free") as state]:
                self.disk_full = state == "full"
            case "host", [state]:
                self.host_oom = state == "full"
            case "looked", [device, health]:
                shown = Opinion(Health(health), "so it looks")
                return [lambda: scheduler.seen(int(device), "", "", shown, gone=False)]
            case "leaves", [node]:
                return [
                    partial(scheduler.seen, each, node, "", None, gone=True)
                    for each in self.devices.pop(node, [])
                ]
            case (("damaged" | "part-damaged"), [output, chunk]):
                self.joined.discard(int(output))
                progress = self.outputs[int(output)]
                if verb == "damaged":
                    progress.discard(int(chunk))
                else:
                    progress.lose_part(int(chunk), progress.parts[int(chunk)][0])
                return [lambda: scheduler.lost(int(output), int(chunk))]
            case "drain", seconds:
                return [lambda: scheduler.stop(self.now_s + float(seconds[0]) if seconds else None)]
            case "stop", []:
                self.stopping = True
                return [lambda: scheduler.stop(-math.inf)]
            case (("ready" | "freed"), [worker]):
                return [lambda: scheduler.called(int(worker), freed=verb == "freed")]
            case _:
                end = self._end_of(verb, int(rest[0]), rest[1:])
                freed = (
                    [lambda: scheduler.called(end.worker, freed=True)]
                    if verb in ("ok", "nan")
                    else []
                )
                return [*freed, lambda: scheduler.ended(end)]
        return []

    def _end_of(self, verb: str, worker: int, rest: list[str]) -> AttemptEnded:
        limits = self.limits.get(worker, Limits(1))
        known = self.scheduler.workers.get(worker)
        texts = list(known.work.texts) if known is not None else []
        canary = self.canaries.get(worker)
        good_canary = canary is not None and canary >= 0
        match verb:
            case "refused":
                return AttemptEnded(worker, None)
            case "ok":
                return AttemptEnded(worker, verdict(Failure.NONE), proven=True)
            case "nan":
                bad = tuple(map(int, rest[0].split(",")))
                judged = verdict(Failure.NAN, limits=limits, bad_rows=bad)
                return AttemptEnded(worker, judged, proven=good_canary or len(bad) < len(texts))
            case "leaves-with":  # its first texts are encoded
                saved = frozenset(texts[: int(rest[0])])
                return AttemptEnded(worker, verdict(Failure.STOPPED), done=saved, proven=True)
        company = Company(rest.pop()) if rest and rest[-1] in COMPANIES else Company.UNTOLD
        # A canary fails only where the line says so; "done 3,4" are texts whose vectors are written.
        canary_failed = "canary" in rest
        rest = [each for each in rest if each != "canary"]
        saved = frozenset[int]()
        if "done" in rest:
            at = rest.index("done")
            saved = frozenset(map(int, rest[at + 1].split(",")))
            rest = rest[:at] + rest[at + 2 :]
        phase = (
            Phase(rest.pop()) if rest and rest[-1][0].isalpha() else PHASES.get(verb, Phase.FORWARD)
        )
        # "8x10": rows and longest text of the batch; "8x10+8": eight texts were done before it.
        rows, longest, before = (
            map(int, re.split("[x+]", f"{rest[0]}+0")[:3]) if rest else (0, 0, 0)
        )
        self._longest = longest or LONGEST
        judged = verdict(FAILURES[verb], phase, limits, rows, rows * longest, rows_done=before)
        proven = bool(before or saved) or (good_canary and not canary_failed)
        return AttemptEnded(
            worker, judged, company, self.began_s.get(worker), done=saved, proven=proven
        )

    # --- the hands: see Loop

    def holding(self, _device: int) -> bool:
        return False

    def start(
        self, worker: int, device: int, work: Work, limits: Limits, canary: int | None
    ) -> None:
        mark = " fresh" if self._templates and work.fresh else ""
        if canary is not None:
            mark += (
                f" canary {canary}"
                if canary >= 0
                else " own first"
                if canary == -1
                else f" own {-canary}"
            )
        where = f"{work.output}/" if work.output else ""
        self._said.append(
            f"start {worker} on {device}: {where}{work.texts[0]}..{work.texts[-1] + 1}{mark}"
        )
        self.canaries[worker] = canary
        if not self.host_oom and (work.fresh or not self._templates):
            self.began_s[worker] = self.now_s
        if self.host_oom:
            self.scheduler.ended(
                AttemptEnded(worker, Verdict(Outcome.HOST_OOM, "no memory", batch_rows=1))
            )
        elif self.disk_full:
            self.scheduler.ended(AttemptEnded(worker, FULL))

    def go(self, worker: int, limits: Limits) -> None:
        self.limits[worker] = limits
        rows = limits.rows if limits.tokens is None else max(1, limits.tokens // self._longest)
        self._said.append(f"go {worker}: {min(limits.rows, rows)}")

    def end(self, worker: int) -> None:
        self._said.append(f"end {worker}")

    def leave(self, worker: int) -> None:
        self._said.append(f"leave {worker}")

    def look(self, device: int) -> None:
        self._said.append(f"look {device}")

    def keep(self, worker: int, work: Work) -> None:
        self._said.append(f"keep {worker}")
        if not self.disk_full:
            self.outputs[work.output].keep(work.chunk, work.texts)
        self.scheduler.stored(work, FULL if self.disk_full else None)

    def quarantine(self, work: Work, _verdict: Verdict) -> None:
        self._said.append(f"quarantine {work.texts[0]}")
        if not self.disk_full:
            self.outputs[work.output].quarantine(work.chunk, work.texts[0])
        self.scheduler.stored(work, FULL if self.disk_full else None)

    def failed(
        self, _worker: int, work: Work, _verdict: Verdict, step: policy.Step | None, *_: Any
    ) -> None:
        if isinstance(step, policy.GiveUp):
            self._said.append(f"set aside {work.chunk}")

    def taken_apart(self, *_: Any) -> None:
        pass

    def waits(self, device: int | None, *_: Any) -> None:
        self._said.append("wait for all" if device is None else f"wait for {device}")

    def learnt(self, kind: str, lesson: Lesson, **_: Any) -> None:
        self._said.append(
            f"learn {kind} {lesson.rows if lesson.tokens is None else lesson.tokens // self._longest}"
        )

    def drop(self, ending: Ending) -> None:
        self._said.append(f"drop {ending.device} {int(ending.code)}")

    def halt(self, ending: Ending) -> None:
        self._said.append(f"halt {int(ending.code)}{' bad rows' * (ending.why == 'bad rows')}")
        self.halted = True
