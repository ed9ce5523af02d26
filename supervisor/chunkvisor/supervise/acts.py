"""What the scheduler's instructions do to the world: workers, devices, files, and what is told of them.

It decides nothing; what came of an instruction is handed back as a stimulus.
"""

import contextlib
import errno
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from chunkvisor.config.choices import Start as StartKind
from chunkvisor.decide.lastwords import BadRows
from chunkvisor.decide.outcome import EndedBy
from chunkvisor.decide.verdict import ONE_ROW, Verdict
from chunkvisor.decide.watch import Pulse
from chunkvisor.devices.stations import Stations
from chunkvisor.engine.engine import Engine
from chunkvisor.errors import Halt
from chunkvisor.events.attempt import (
    AttemptRefused,
    AttemptStarted,
    ChunkSetAside,
    ChunkSplit,
    Go,
    WorkerLeaving,
)
from chunkvisor.events.event import Emit
from chunkvisor.events.run import LimitsLowered, LimitsWidened
from chunkvisor.store.attempt import Place, write_attempt
from chunkvisor.store.disk import with_room
from chunkvisor.store.layout import Layout
from chunkvisor.store.lessons import LessonFile
from chunkvisor.store.refusal import of_start, workdir_gone
from chunkvisor.store.seal import DamagedError
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.endedattempts import EndedAttempts, names_of
from chunkvisor.supervise.endings import GivenUp, texts_damaged
from chunkvisor.supervise.joiner import Joiner
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.slot import Slot
from chunkvisor.supervise.storage import Storage
from chunkvisor.supervise.task import Task
from chunkvisor.supervise.waitteller import WaitTeller
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits


class Acts:
    """Does what the scheduler says."""

    def __init__(
        self,
        outputs: Sequence[OutputRun],
        engine: Engine,
        stations: Stations,
        storage: Storage,
        joiner: Joiner,
        lessons: LessonFile,
        bad_rows: BadRows,
        waits: WaitTeller,
        emit: Emit,
    ) -> None:
        self._outputs = outputs
        self._engine = engine
        self._stations = stations
        self._storage = storage
        self._joiner = joiner
        self._lessons = lessons
        self._waits = waits
        self._emit = emit
        self.running: dict[int, Slot] = {}
        """Workers, by number."""
        self.ended = EndedAttempts(outputs, stations, storage, bad_rows, emit)
        self.given_up: list[GivenUp] = []

    def pids(self) -> dict[int, frozenset[int]]:
        """Of the workers that have each device, or have just given it back."""
        found: dict[int, set[int]] = {}
        for slot in self.running.values():
            if slot.had_device:
                found.setdefault(slot.station.number, set()).add(slot.worker.pid)
        return {number: frozenset(pids) for number, pids in found.items()}

    def end_all(self, sleep: Callable[[], object]) -> None:
        """End the workers that are left after a halt: politely, then by force; gives up on one in the kernel.

        `sleep` waits until one of them stirs.
        """
        running = self.running
        while running and not all(slot.stuck(time.monotonic()) for slot in running.values()):
            now_s = time.monotonic()
            for slot in list(running.values()):
                if slot.worker.poll() is None:
                    slot.end(EndedBy.STOP, "the run has ended", now_s)
                else:
                    del running[slot.number]  # if it got done after all, the next run finds its result
            if running:
                sleep()
                with contextlib.suppress(Halt):
                    self._engine.attend()

    def carry_out(self, instruction: do.Instruction) -> on.Stimulus | None:
        """Do it; returns what came of it, where that is known at once. Raises Halt; OSError."""
        match instruction:
            case do.Start():
                return self._start(instruction)
            case do.Keep():
                files, failed = self.ended.files_of(instruction.worker, instruction.task), instruction.failed
                stopped = instruction.interrupted
                return self._storage.keep(
                    instruction.task, files, instruction.holes, failed=failed, interrupted=stopped
                )
            case do.Quarantine():
                return self._storage.quarantine(instruction.task, instruction.verdict)
            case do.Compose():
                return self._storage.compose(instruction.task)
            case do.HaltRun():
                raise self.ended.halt(instruction)
            case do.HaltByBadRows():
                raise self.ended.too_bad(instruction)
            case _:
                self._change(instruction)
        return None

    def _change(self, instruction: do.Instruction) -> None:
        """What needs no answer, or is answered later."""
        match instruction:
            case do.Go():
                self._go(self.running[instruction.worker], instruction.limits)
            case do.End() if instruction.worker in self.running:
                self.running[instruction.worker].end(instruction.by, instruction.why, time.monotonic())
            case do.Leave() if instruction.worker in self.running:
                slot = self.running[instruction.worker]
                slot.leave(instruction.why)
                self._emit(WorkerLeaving(*names_of(slot)))
            case do.Look():
                self._stations.ask(instruction.device)
            case do.GetUsedTo():
                self._stations[instruction.device].gate.get_used_to(instruction.others_bytes)
            case do.Join():
                self._joiner.begin(instruction.output)
            case do.StopJoins():
                self._joiner.stop()
            case do.DropDevice():
                self._stations.leave(instruction.device, instruction.halt)
            case do.DropNode():
                self._stations.drop_node(instruction.node, instruction.halt)
            case do.Cut():
                self._storage.cut(instruction.task, instruction.at)
            case _:
                self._note(instruction)

    def _note(self, instruction: do.Instruction) -> None:
        """What is only written down, and told."""
        match instruction:
            case do.Record():
                self.ended.record(instruction)
            case do.Refuse():
                self.ended.remove(instruction.worker)
                self._emit(AttemptRefused(*self.ended.named(instruction.worker, instruction.task)))
            case do.Discard():
                self.ended.remove(instruction.worker)
            case do.SaveLessons():
                self._save_lessons(instruction)
            case do.TellWaiting():
                verdict, waited_s = instruction.verdict, instruction.waited_s
                self._waits.tell(instruction.delay_s, waited_s, verdict.reason, verdict.outcome, instruction.device)
            case do.TellSplit():
                task, name = instruction.task, self._outputs[instruction.task.output].name
                alone = instruction.alone
                rows = self._storage.which_rows(task, alone or task.wanted)
                of = self._outputs[task.output].ledger.plan.size(task.chunk)
                told = ChunkSplit(name, task.chunk, instruction.texts, instruction.parts, of, len(alone), rows)
                self._emit(told)
            case do.SetAside():
                task, verdict = instruction.task, instruction.verdict
                name = self._outputs[task.output].name
                self.given_up.append(GivenUp(name, task.chunk, verdict, self.ended.files_of(instruction.worker, task)))
                self._emit(ChunkSetAside(name, task.chunk, verdict.reason))

    def _start(self, start: do.Start) -> on.Started | on.NotStarted:
        task, station, output = start.task, self._stations[start.device], self._outputs[start.task.output]
        try:
            number, files = output.ledger.new_attempt(task.chunk)
            site = station.site
            place = Place(
                task.chunk,
                number,
                task.start,
                station.device.kind,
                site.threads,
                site.model_path,
                tuple(text - task.start for text in task.skip),
            )
            spec = write_attempt(files, output.job, place, _texts_of(task, output), start.limits)
            fresh, blocking = task.fresh, task.blocking_launches
            worker = self._engine.start(station, files, spec, fresh=fresh, blocking_launches=blocking)
        except DamagedError as error:
            raise texts_damaged(error) from error
        except OSError as error:
            if error.errno == errno.ENOENT and (gone := workdir_gone(Layout(output.ledger.layout.workdir))):
                raise gone from error
            return on.NotStarted(start.worker, _not_started(error, output.ledger.layout.workdir))
        pulse = Pulse.begin(time.monotonic())
        slot = Slot(start.worker, task, station, number, files, spec, worker, pulse, start.limits)
        self.running[start.worker] = slot
        kind = StartKind.WARM if worker.warm else StartKind.FRESH
        self._emit(AttemptStarted(*names_of(slot), worker.pid, station.number, str(kind)))
        return on.Started(start.worker, worker.warm)

    def _go(self, slot: Slot, limits: Limits) -> None:
        slot.go(limits)
        self._storage.gone(slot.go_s)
        self._emit(Go(*names_of(slot), limits.rows, limits.tokens, limits.tiers, limits.padding, limits.measured))

    def _save_lessons(self, instruction: do.SaveLessons) -> None:
        self._lessons.save(instruction.kind, instruction.lessons)
        if (tier := instruction.changed) is None:
            return
        of_length = f" of {tier.min_length:,} tokens and more" if tier.min_length else ""
        if len({station.device.model for station in self._stations.alive}) > 1:
            of_length += f" on {instruction.kind}"
        kind = LimitsWidened if instruction.doubted else LimitsLowered
        self._emit(kind(tier.rows, tier.tokens, tier.min_length, of_length))


def _texts_of(task: Task, output: OutputRun) -> Iterator[str]:
    """The texts themselves, as they come."""
    every = output.table.each_text(task.start, task.stop)
    if not task.skip:
        return every
    skip = frozenset(task.skip)
    return (text for number, text in enumerate(every, task.start) if number not in skip)


def _not_started(error: OSError, workdir: Path) -> Verdict:
    outcome, remedy = of_start(error)
    reason = f"no worker could be started: {error}"
    if outcome is Outcome.DISK_FULL:
        reason = with_room(reason, workdir)
    # A batch of one row, so that the policy does not take it for a matter of batches.
    return Verdict(outcome, reason, remedy, limits=ONE_ROW, batch_rows=1)
