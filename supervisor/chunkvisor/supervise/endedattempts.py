"""Attempts that have ended: what is written down and told of them, and which log says why the run ends."""

import contextlib
from collections.abc import Sequence

from chunkvisor.decide.lastwords import BadRows, too_bad
from chunkvisor.devices.stations import Stations
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.attempt import AttemptFailed, AttemptInterrupted, PartFailed
from chunkvisor.events.event import Emit
from chunkvisor.store.attempt import drop_bulk
from chunkvisor.store.attemptlogs import last_log
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.slot import Slot
from chunkvisor.supervise.storage import Storage
from chunkvisor.supervise.task import Task
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.wire import write_message


class EndedAttempts:
    """By the numbers of their workers."""

    def __init__(
        self, outputs: Sequence[OutputRun], stations: Stations, storage: Storage, bad_rows: BadRows, emit: Emit
    ) -> None:
        self._outputs = outputs
        self._stations = stations
        self._storage = storage
        self._bad_rows = bad_rows
        self._emit = emit
        self._slots: dict[int, Slot] = {}
        """Those whose ends are being dealt with."""
        self._recorded: dict[int, AttemptFiles] = {}
        """Of failed attempts at one text, which may end the run later."""

    def add(self, slot: Slot) -> None:
        """One that has just ended."""
        self._slots[slot.number] = slot

    def forget(self) -> None:
        """All that follows from their ends is done: of a failed one, record and log are what is left to read."""
        for slot in self._slots.values():
            if slot.files.verdict.exists():
                drop_bulk(slot.files)
        self._slots.clear()

    def record(self, record: do.Record) -> None:
        """Write down how an attempt failed, and tell of it."""
        task, verdict, files = record.task, record.verdict, self.files_of(record.worker, record.task)
        if task.texts == 1 and record.worker:
            self._recorded[record.worker] = files
        if verdict.asked_for:
            remove_folder(files.folder)
        else:
            with contextlib.suppress(OSError):  # on a full disk the journal may still have it
                write_message(files.verdict, verdict, durable=False)
        kind = AttemptInterrupted if verdict.asked_for else PartFailed if task.part else AttemptFailed
        output, chunk, attempt = self.named(record.worker, task)
        told = kind(
            output,
            chunk,
            attempt,
            verdict.outcome,
            verdict.reason,
            start=task.start,
            stop=task.stop,
            rule=verdict.rule,
            phase=str(verdict.phase or ""),
            log=str(last_log(files) or ""),
            then=record.then,
            rows=self._storage.which_rows(task, record.under_way),
        )
        self._emit(told)

    def named(self, worker: int, task: Task) -> tuple[str, int, int]:
        """(output, chunk, attempt), for the journal; attempt 0 where there was no worker."""
        if worker in self._slots:
            return names_of(self._slots[worker])
        return self._outputs[task.output].name, task.chunk, 0

    def files_of(self, worker: int, task: Task) -> AttemptFiles:
        """Of the ended worker; of none, the folder of the chunk's attempts."""
        if worker in self._slots:
            return self._slots[worker].files
        if worker in self._recorded:
            return self._recorded[worker]
        return AttemptFiles(self._outputs[task.output].ledger.layout.attempts_of(task.chunk))

    def remove(self, worker: int) -> None:
        """Leave nothing of it."""
        if worker in self._slots:
            remove_folder(self._slots[worker].files.folder)

    def halt(self, instruction: do.HaltRun) -> Halt:
        """What the run ends with, and the log to open."""
        halt = self._stations.with_others(instruction.halt) if instruction.of_device else instruction.halt
        if halt.code is ExitCode.DISK:
            halt.why = self._storage.with_need(halt.why)
        slot = self._slots.get(instruction.worker)
        files = slot.files if slot is not None else self._recorded.get(instruction.worker)
        if halt.log is None and files is not None:
            return Halt(halt.code, halt.what, why=halt.why, remedy=halt.remedy, log=last_log(files), see=halt.see)
        return halt

    def too_bad(self, instruction: do.HaltByBadRows) -> Halt:
        """What the run ends with over rows that cannot be encoded."""
        task, files = instruction.task, self.files_of(instruction.worker, instruction.task)
        _, place = self._storage.place_of(task)
        name = self._outputs[task.output].name
        return too_bad(name, place, instruction.count, instruction.verdict, last_log(files), self._bad_rows)


def names_of(slot: Slot) -> tuple[str, int, int]:
    """(output, chunk, attempt), for the journal."""
    return slot.spec.output, slot.task.chunk, slot.attempt
