"""Writes down and reports what the scheduler tells: failed attempts, waits, lessons, devices left out, the end.

Attempts that have ended are held until all that follows from their ends is done, by the numbers of their workers.
"""

import contextlib
from collections.abc import Sequence

from chunkvisor import words
from chunkvisor.devices.stations import Stations
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptRefused,
    ChunkSetAside,
    ChunkSplit,
    Emit,
    LimitsLowered,
    PartFailed,
)
from chunkvisor.heart import messages, policy
from chunkvisor.heart.output import OutputRun
from chunkvisor.heart.run import WaitTeller
from chunkvisor.heart.scheduler import Settings
from chunkvisor.heart.slot import Slot
from chunkvisor.heart.store import Keeper
from chunkvisor.heart.work import Work
from chunkvisor.judge import Verdict
from chunkvisor.store.attempt import drop_bulk, last_log
from chunkvisor.store.records import LessonFile
from chunkvisor.units import counted, human_time
from chunkvisor.words import GivenUp
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.wire import write_message


class Teller:
    """Of one run."""

    def __init__(
        self,
        outputs: Sequence[OutputRun],
        stations: Stations,
        store: Keeper,
        lessons: LessonFile,
        settings: Settings,
        emit: Emit,
    ) -> None:
        self._outputs, self._stations, self._store, self._emit = outputs, stations, store, emit
        self._lessons, self._bad_rows = lessons, settings.bad_rows
        self._waits = WaitTeller(emit, settings.budget.wait_timeout_s)
        self._slots: dict[int, Slot] = {}
        """Attempts whose ends are being dealt with."""
        self.given_up: list[GivenUp] = []

    def add(self, slot: Slot) -> None:
        """Hold an attempt that has just ended."""
        self._slots[slot.number] = slot

    def ended(self, worker: int) -> Slot:
        """Give the attempt of a worker that has just ended."""
        return self._slots[worker]

    def forget(self) -> None:
        """Let go of ended attempts: of a failed one, record and log are what is left to read."""
        for slot in self._slots.values():
            if slot.files.verdict.exists():
                drop_bulk(slot.files)
        self._slots.clear()

    def tell(self, news: messages.News) -> None:
        """Report it. Raises Halt where it is the end of the run."""
        match news:
            case messages.Failed(verdict=None):
                remove_folder(self._slots[news.worker].files.folder)
                self._emit(AttemptRefused(*self._named(news.worker, news.work)))
            case messages.Failed():
                self._failed(news)
            case messages.TakenApart():
                self._taken_apart(news)
            case messages.RunWaits(verdict=verdict):
                self._waits.tell(news.delay_s, news.waited_s, verdict.reason, verdict.outcome, news.device)
            case messages.Learnt():
                if news.lasting:
                    self._lessons.save(news.kind, news.rows, news.tokens)
                # With one kind of GPU, its name would only be noise.
                several = len({station.device.model for station in self._stations.alive}) > 1
                self._emit(LimitsLowered(news.rows, news.tokens, f" on {news.kind}" if several else ""))
            case messages.Dropped(place=str() as node):
                self._stations.drop_node(node, self._end_of(news))
            case messages.Dropped(place=int() as device):
                self._stations.leave(device, self._end_of(news))
            case messages.RunHalts():
                halt = self._end_of(news)
                if halt.log is None and news.worker in self._slots:
                    halt.log = last_log(self._slots[news.worker].files)
                raise halt

    def _failed(self, news: messages.Failed) -> None:
        work, verdict, files = news.work, news.verdict, self._files_of(news.worker, news.work)
        assert verdict is not None
        if verdict.asked_for:
            remove_folder(files.folder)
        elif news.worker in self._slots:  # else the disk would not take vectors that were good: there is no attempt
            with contextlib.suppress(OSError):  # on a full disk the journal may still have it
                write_message(files.verdict, verdict, durable=False)
        kind = AttemptInterrupted if verdict.asked_for else PartFailed if work.part else AttemptFailed
        output, chunk, attempt = self._named(news.worker, work)
        failed = kind(
            output,
            chunk,
            attempt,
            verdict.outcome,
            verdict.reason,
            start=work.texts[0],
            stop=work.texts[-1] + 1,
            rule=verdict.rule,
            phase=str(verdict.phase or ""),
            log=str(last_log(files) or ""),
            then=what_follows(news.step, verdict) if news.step is not None else "",
            rows=self._store.which_rows(work, news.under_way),
        )
        self._emit(failed)
        if isinstance(news.step, policy.GiveUp):
            self.given_up.append(GivenUp(output, chunk, verdict, files))
            self._emit(ChunkSetAside(output, chunk, verdict.reason))
        # Who held the memory all through the wait stays: the next batch does not wait for them again.
        in_vain = verdict.outcome is Outcome.GPU_OOM and not isinstance(news.step, policy.Wait)
        if in_vain and verdict.figures is not None and news.worker in self._slots:
            self._slots[news.worker].station.get_used_to(verdict.figures.others_bytes)

    def _taken_apart(self, news: messages.TakenApart) -> None:
        output = self._outputs[news.of.output]
        left = sorted(text for piece in news.pieces for text in piece.texts)
        alone = {policy.How.BAD: left, policy.How.SUSPECTS: list(news.pieces[0].texts)}.get(news.how, [])
        rows = self._store.which_rows(news.of, alone or left)
        size = output.ledger.plan.size(news.of.chunk)
        split = ChunkSplit(output.name, news.of.chunk, len(left), len(news.pieces), size, len(alone), rows)
        self._emit(split)

    # --- who, and which files

    def _named(self, worker: int, work: Work) -> tuple[str, int, int]:
        """Name output, chunk and attempt, for the journal; attempt 0 where there was no worker."""
        if worker in self._slots:
            return names_of(self._slots[worker])
        return self._outputs[work.output].name, work.chunk, 0

    def _files_of(self, worker: int, work: Work) -> AttemptFiles:
        """Find those of the ended worker; without one, the folder of the chunk's attempts."""
        if worker in self._slots:
            return self._slots[worker].files
        return AttemptFiles(self._outputs[work.output].ledger.layout.attempts_of(work.chunk))

    # --- the end

    def _end_of(self, news: messages.RunHalts | messages.Dropped) -> Halt:
        """Put the end of the run, or of a device or a machine, into words."""
        work, verdict, halted = news.work, news.verdict, isinstance(news, messages.RunHalts)
        output = self._outputs[work.output if work is not None else 0]
        if isinstance(news, messages.RunHalts) and news.why == "all bad":
            return words.all_bad(output.name, output.last_bad)
        assert verdict is not None, news
        if isinstance(news, messages.RunHalts) and news.why == "bad rows" and work is not None:
            log, (_, where) = last_log(self._files_of(news.worker, work)), self._store.place_of(work)
            return words.too_bad(output.name, where, news.count, verdict, log, self._bad_rows)
        device = str(self._stations[news.place]) if isinstance(news.place, int) else "this machine"
        at = (output.name, work.chunk if work is not None else 0, output.texts)
        halt = words.end_in_words(news.why, news.code, verdict, at, device, dropped=not halted, waited_s=news.waited_s)
        if halted and isinstance(news.place, int):
            halt = self._stations.with_others(halt)
        if halt.code is ExitCode.DISK:
            halt.why = self._store.with_need(halt.why)
        return halt


def names_of(slot: Slot) -> tuple[str, int, int]:
    """Name output, chunk and attempt, for the journal."""
    return slot.spec.output, slot.work.chunk, slot.attempt


def what_follows(step: policy.Step, verdict: Verdict) -> str:
    """Say what the run does next, in a few words; empty where the next event says it better."""
    match step:
        case policy.Retry(lesson=lesson) if lesson is not None:
            most = counted(lesson.rows, "row") if lesson.tokens is None else counted(lesson.tokens, "token")
            return f"retrying with batches of at most {most}"
        case policy.Retry(note="start", delay_s=delay_s):
            return f"starting another worker{_soon(delay_s)}"
        case policy.Retry(delay_s=delay_s, charge=True) if verdict.outcome is Outcome.DEVICE_FAULT:
            return f"retrying{_soon(delay_s)}, with CUDA_LAUNCH_BLOCKING=1 so that the log names the place"
        case policy.Retry(delay_s=delay_s):
            return f"retrying{_soon(delay_s)}"
        case policy.Split(how=policy.How.SUSPECTS):
            return "trying the texts of that batch one by one"
        case policy.Split(how=policy.How.BAD):
            bad = len(verdict.bad_rows)
            return f"keeping the others, and trying {f'the {bad:,} bad texts' if bad > 1 else 'the bad text'} alone"
        case policy.Split():
            return "trying it in two halves"
        case policy.Wait():
            return "waiting, then retrying"
        case policy.Stop():
            return "retrying would not help"
    return ""


def _soon(delay_s: float) -> str:
    return f" in {human_time(delay_s)}" if delay_s >= 1 else ""
