"""The loop: reports to the scheduler what happens, and does what it says.

It decides nothing. What happens is gathered once a turn; calls of workers are also answered before anything that takes
milliseconds, so that no device waits until another attempt's texts are written.
"""

import contextlib
import errno
import heapq
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chunkvisor.config.choices import Start as StartKind
from chunkvisor.devices.health import Opinion
from chunkvisor.devices.stations import Station, Stations
from chunkvisor.engine.engine import Demand, Engine
from chunkvisor.engine.process import keep_log_end
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import AttemptStarted, Draining, Go, Warned, WorkerEnded, WorkerLeaving
from chunkvisor.heart import messages
from chunkvisor.heart.conclude import adopt_all, conclude, forget_unsure
from chunkvisor.heart.joins import Joins
from chunkvisor.heart.output import OutputRun
from chunkvisor.heart.run import Run
from chunkvisor.heart.scheduler import RESERVE, RESERVE_S, GateState, Scheduler, Settings
from chunkvisor.heart.slot import Slot
from chunkvisor.heart.store import Keeper
from chunkvisor.heart.telling import Teller, names_of
from chunkvisor.judge import NODE_LOST, ONE_ROW, STATUS_LOST, EndedBy, Patience, Verdict, gap
from chunkvisor.store.attempt import write_attempt
from chunkvisor.store.disk import of_start, with_room, workdir_gone
from chunkvisor.store.layout import Layout
from chunkvisor.store.records import LessonFile
from chunkvisor.units import human_time
from chunkvisor.words import GivenUp
from chunkvisor_worker.contract.exits import Outcome, WorkerExit

_PAUSE_S = 0.25
"""The loop looks around so often, even if no worker calls."""


class Loop:
    """Runs the pending chunks of all outputs on all devices; it is the scheduler's `LoopView`."""

    def __init__(
        self,
        outputs: Sequence[OutputRun],
        settings: Settings,
        patience: Patience,
        lessons: LessonFile,
        engine: Engine,
        run: Run,
        need_bytes: int = 0,
    ) -> None:
        """`need_bytes` is the GPU memory that a worker needs before its first batch, by its files; 0 = not known.

        The caller closes the engine.
        """
        self._outputs, self._settings, self._patience, self._engine = outputs, settings, patience, engine
        self._lessons, self._signals, self._emit, self._tick = lessons, run.signals, run.emit, run.tick
        self._stations = Stations(self._seen, run.emit)
        self._stations.learn_need(need_bytes)
        self._store = Keeper(outputs, run.emit)
        self._joins = Joins(outputs, self._store, run.signals, settings.budget.wait_timeout_s, run.emit)
        self._teller = Teller(outputs, self._stations, self._store, lessons, settings, run.emit)
        self._scheduler = Scheduler(outputs, settings, lessons.get, self, time.monotonic)
        self._slots: dict[int, Slot] = {}
        """Running workers, by number."""
        self._news: list[messages.Event] = []
        """What has become of devices since the last turn."""
        self._todo: deque[messages.Command] = deque()
        self._looked_s = time.monotonic()
        """When a worker was looked at last."""
        self._round_s = -math.inf
        """When all of them were."""
        self._drains: tuple[str, float | None] | None = None
        """(why, until when) the run ends before its work is done, as was reported last."""
        self._joins_until_s = math.inf
        """Until when outputs may be joined."""

    def run(self) -> list[GivenUp]:
        """Work until nothing is pending, or the run is asked to stop; returns the chunks given up.

        Raises Halt if every further worker would fail; OSError. Whatever happens, no worker is left behind.
        """
        try:
            self._engine.open(self._stations)
            adopt_all(self._outputs, self._stations, self._store, self._lessons, self._settings.budget)
            if self._pending():
                self._engine.prepare(Demand(self._pending, self._settings.per_device + self._settings.standby))
            self._turn(frozenset())
            while not self._over():
                self._turn(self._sleep())
        finally:
            self._end_all()
            for output in self._outputs:
                with contextlib.suppress(OSError):
                    forget_unsure(output)
            self._joins.close()
        return self._teller.given_up

    def _pending(self) -> int:
        return sum(output.left for output in self._outputs)

    def _over(self) -> bool:
        joining = self._joins.working or (self._joins.waiting and not self._signals.draining)
        return self._scheduler.finished and not joining

    # --- what the scheduler asks

    def holding(self, device: int) -> bool:
        """See LoopView."""
        return self._engine.holding(self._stations[device])

    def has_room(self, device: int) -> bool:
        """See LoopView."""
        return self._engine.has_room(self._stations[device], [slot.worker for slot in self._slots.values()])

    def left_s(self, worker: int) -> float | None:
        """See LoopView."""
        slot = self._slots.get(worker)
        return slot.left_s(time.monotonic()) if slot is not None else None

    def _seen(self, station: Station, opinion: Opinion | None, gone: bool) -> None:
        node, kind = station.site.node, station.device.model
        self._news.append(messages.DeviceSeen(station.number, node, kind, opinion, gone))

    # --- turns

    def _turn(self, stirred: frozenset[int]) -> None:
        """Attend to workers of which there is news (`stirred` are descriptors), now and then to all of them."""
        self._heed_signals()
        self._engine.attend()
        self._stations.attend(self._pids)
        news, self._news = self._news, []
        for event in news:
            self._tell(event)
        now_s = time.monotonic()
        self._forgive(now_s)
        if all_of_them := now_s - self._round_s >= _PAUSE_S:
            self._round_s = now_s
        for slot in list(self._slots.values()):
            if all_of_them or slot.stirs(stirred):
                now_s = time.monotonic()
                self._forgive(now_s)
                self._attend(slot, now_s)
        if now_s >= self._joins_until_s or self._signals.stopping:
            self._joins.stop()
        for event in self._joins.attend():
            self._tell(event)
        self._tick()
        self._tell(messages.Tick())
        self._teller.forget()

    def _heed_signals(self) -> None:
        signals = self._signals
        if signals.draining and self._drains != (drains := (signals.why, signals.until_s)):
            self._drains = drains
            how = "finishing the chunks under way"
            if signals.until_s is not None:
                left_s = max(0.0, signals.until_s - time.monotonic())
                self._joins_until_s = signals.until_s - min(RESERVE * left_s, RESERVE_S)
                how = f"finishing what can be done within {human_time(left_s)}, and saving the rest as it is"
            self._emit(Draining(signals.why, how))
            self._tell(messages.StopBy(signals.until_s))
        if signals.stopping:
            self._tell(messages.StopBy(-math.inf))

    def _sleep(self) -> frozenset[int]:
        watched = (fd for slot in self._slots.values() for fd in slot.worker.watched())
        began_s = time.monotonic()
        stirred = self._signals.sleep(_PAUSE_S, [*self._engine.watched(), *watched])
        if gap_s := gap(_PAUSE_S, time.monotonic() - began_s):
            # A container that was frozen, a machine that was asleep.
            why = "the machine was suspended, or its container was frozen"
            self._emit(Warned(f"the run stood still for {gap_s:.0f} s: {why}"))
        return stirred

    def _forgive(self, now_s: float) -> None:
        """Charge no worker with time in which the loop did not look: it may have stood still as well."""
        gap_s, self._looked_s = gap(_PAUSE_S, now_s - self._looked_s), now_s
        for slot in self._slots.values() if gap_s else ():
            slot.pulse = slot.pulse.forgive(gap_s)

    def _tell(self, event: messages.Event) -> None:
        """Report it to the scheduler, and do what it says, to the end."""
        self._todo.extend(self._scheduler.handle(event))
        while self._todo:
            command = self._todo.popleft()
            if isinstance(command, messages.StartWorker | messages.StoreVectors):
                self._answer_calls()
            for answer in self._carry_out(command):
                self._todo.extend(self._scheduler.handle(answer))

    def _answer_calls(self) -> None:
        """Give devices that were given back meanwhile to the next worker."""
        now_s = time.monotonic()
        for slot in self._slots.values():
            if (gate := slot.heard(now_s)) is not None:
                for command in self._scheduler.handle(messages.Called(slot.number, freed=gate is GateState.PASSED)):
                    self._carry_out(command)  # `go`, or a look at the device: nothing that is answered at once

    def _pids(self) -> dict[int, frozenset[int]]:
        """Name the workers that have each device, or have just given it back."""
        found: dict[int, frozenset[int]] = {}
        for slot in self._slots.values():
            if slot.had_device:
                found[slot.station.number] = found.get(slot.station.number, frozenset()) | {slot.worker.pid}
        return found

    # --- commands

    def _carry_out(self, command: messages.Command) -> Sequence[messages.Event]:
        """Do it; returns what came of it, if that is known at once. Raises Halt; OSError."""
        match command:
            case messages.StartWorker():
                return self._start(command)
            case messages.StoreVectors(work=work, bad=bad):
                if bad is not None:
                    return self._store.quarantine(work, bad)
                slot = self._teller.ended(command.worker)
                return self._store.keep(work, slot.spec, slot.files, slot.without_result)
            case messages.OpenGate(limits=limits):
                slot = self._slots[command.worker]
                slot.go(limits)
                self._store.first_go_s = self._store.first_go_s or slot.go_s
                self._emit(Go(*names_of(slot), limits.rows, limits.tokens, limits.padding, limits.measured))
            case messages.End() if command.worker in self._slots:
                slot = self._slots[command.worker]
                if command.gently:
                    slot.leave(command.why)
                    self._emit(WorkerLeaving(*names_of(slot)))
                else:
                    slot.end(EndedBy.STOP, command.why, time.monotonic())
            case messages.Look():
                self._stations.ask(command.device)
            case messages.Tell():
                self._teller.tell(command.news)
        return ()

    def _start(self, start: messages.StartWorker) -> Sequence[messages.Event]:
        work, station, output = start.work, self._stations[start.device], self._outputs[start.work.output]
        first, last = work.texts[0], work.texts[-1] + 1
        wanted = work.texts if isinstance(work.texts, range) else frozenset(work.texts)
        try:
            number, files = output.ledger.new_attempt(work.chunk)
            canary, canary_row = _canary_of(start, output)
            job, site = output.job, station.site
            draft = replace(
                job,
                chunk=work.chunk,
                attempt=number,
                start=first,
                device=station.device.kind,
                # Another machine may have the model elsewhere, and other cores.
                model=job.model if site.model_path is None else replace(job.model, path=site.model_path),
                threads=site.threads or job.threads,
                skip=tuple(text - first for text in range(first, last) if text not in wanted),
                limits=start.limits,
                canary=canary,
                canary_row=canary_row,
            )
            spec = write_attempt(files, draft, output.texts_of(work.texts))
            worker = self._engine.start(station, files, spec, fresh=work.fresh, blocking_launches=work.blocking)
        except OSError as error:
            workdir = output.ledger.layout.workdir
            if error.errno == errno.ENOENT and (gone := workdir_gone(Layout(workdir))):
                raise gone from error
            return [messages.AttemptEnded(start.worker, _not_started(error, workdir))]
        slot = Slot(start.worker, work, station, number, files, spec, worker, start.limits)
        self._slots[start.worker] = slot
        kind = StartKind.WARM if worker.warm else StartKind.FRESH
        self._emit(AttemptStarted(*names_of(slot), worker.pid, station.number, str(kind)))
        return ()

    # --- workers

    def _attend(self, slot: Slot, now_s: float) -> None:
        returncode = slot.worker.poll()
        if returncode is not None:
            self._conclude(slot, returncode, now_s)
            return
        if (gate := slot.heard(now_s)) is not None:
            self._tell(messages.Called(slot.number, freed=gate is GateState.PASSED))
        slot.attend(now_s, self._patience)
        if slot.stuck(now_s):
            halt = Halt(
                ExitCode.MACHINE,
                f"worker {slot.worker.pid} of {slot.spec.output} chunk {slot.work.chunk} cannot be killed",
                why="it hangs inside the kernel (D state): the GPU driver or the disk is stuck",
                remedy="reboot the machine, then run the same command again",
                log=slot.files.log,
            )
            self._engine.abandon(slot.station, halt)

    def _conclude(self, slot: Slot, returncode: int, now_s: float) -> None:
        """Judge a worker that has ended."""
        del self._slots[slot.number]
        self._teller.add(slot)
        keep_log_end(slot.files.log)
        slot.freed(now_s)
        self._emit(WorkerEnded(slot.spec.output, slot.work.chunk, slot.attempt, returncode, **slot.figures(now_s)))
        if slot.unused and returncode in (WorkerExit.TAINTED_TEMPLATE, STATUS_LOST):
            self._tell(messages.AttemptEnded(slot.number, None))
            if returncode == WorkerExit.TAINTED_TEMPLATE:
                self._engine.mistrust(slot.worker)
            return
        if returncode == NODE_LOST:
            # That its device was dropped is how we heard of it, and not why it ended.
            slot.ended_by, slot.ended_why = EndedBy.ITSELF, f"{slot.station} was lost"
        elif returncode == WorkerExit.ORPHANED and slot.leave_why and slot.ended_by is EndedBy.ITSELF:
            slot.ended_by, slot.ended_why = EndedBy.STOP, slot.leave_why
        elif returncode == 0:
            # After any other end the verdict comes before the next `go`: it may have something to teach.
            self._tell(messages.Called(slot.number, freed=True))
        self._answer_calls()  # all of its vectors are read now
        others = (each for each in self._slots.values() if each.gate is GateState.OPEN and each.station is slot.station)
        siblings = frozenset(each.worker.pid for each in others)
        ended = conclude(slot, returncode, self._outputs[slot.work.output], siblings, self._emit)
        slot.verdict = verdict = ended.verdict
        if verdict is not None and verdict.figures is not None and verdict.weights_did_not_fit:
            self._stations.learn_need(verdict.figures.ours_bytes + verdict.figures.wanted_bytes)
        if slot.had_device:
            slot.station.worker_ended(now_s)
        self._tell(ended)

    def _end_all(self) -> None:
        """End the workers that are left after a halt: politely, then by force; gives up on one in the kernel."""
        slots = self._slots
        while slots and not all(slot.stuck(time.monotonic()) for slot in slots.values()):
            now_s = time.monotonic()
            for slot in list(slots.values()):
                if slot.worker.poll() is None:
                    slot.end(EndedBy.STOP, "the run has ended", now_s)
                else:
                    del slots[slot.number]  # if it got done after all, the next run finds its result
            if slots:
                self._sleep()
                with contextlib.suppress(Halt):
                    self._engine.attend()


def _canary_of(start: messages.StartWorker, output: OutputRun) -> tuple[str | None, int | None]:
    """Find the text that is encoded first: one that is known to be good, or the position of the shortest."""
    if start.canary is None:
        return None, None
    if start.canary > messages.OWN:
        return next(output.texts_of([start.canary])), None
    # Blank ones count as long: some models have no vector for them.
    sizes = ((not words.strip(), len(words), at) for at, words in enumerate(output.texts_of(start.work.texts)))
    return None, heapq.nsmallest(messages.OWN - start.canary + 1, sizes)[-1][2]


def _not_started(error: OSError, workdir: Path) -> Verdict:
    outcome, remedy = of_start(error)
    reason = f"no worker could be started: {error}"
    if outcome is Outcome.DISK_FULL:
        reason = with_room(reason, workdir)
    # A batch of one row, so that the policy does not take it for a matter of batches.
    return Verdict(outcome, reason, remedy, limits=ONE_ROW, batch_rows=1)
