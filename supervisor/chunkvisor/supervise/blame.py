"""Which texts are quarantined.

Pure. A text that fails alone is blamed only once another text has been encoded after it on the same device: until then
it may be the device or the model. Such texts are undecided. Where nothing else is left to try, a text that is known to
be good is encoded once more, alone and on that device, as a control: if that fails as well, it is not the texts. Where
none is known yet, a short text is tried in its place, a probe: the longest come first in each chunk, so that all that
was tried may be too long.

A text that lacks the GPU's memory is compared with shorter ones of its own chunk: if the shortest of them lacks it too,
no length is the cause, and the chunk is set aside as soon as the device has shown that it can encode others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from chunkvisor.decide import lastwords
from chunkvisor.decide.policy import BARREN_CHUNKS
from chunkvisor.decide.steps import EndRun
from chunkvisor.decide.verdict import Verdict
from chunkvisor.errors import ExitCode
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise.backlog import Backlog
from chunkvisor.supervise.fleet import Device, Fleet
from chunkvisor.supervise.leaving import Leaving
from chunkvisor.supervise.progress import Progress
from chunkvisor.supervise.runhistory import RunHistory
from chunkvisor.supervise.task import NOW, Control, Task
from chunkvisor_worker.contract.exits import Outcome

UNDECIDED_MAX = 8
"""So many texts that fail alone, and none that does not: no further one is tried before a control."""
PROBES_MAX = 3
"""Where no text has ever been encoded, so many short ones that fail alone as well end the work on a device."""


@dataclass(frozen=True, slots=True)
class Accused:
    """A text that failed alone."""

    task: Task
    verdict: Verdict
    worker: int
    device: int
    since_s: float
    """When it failed."""

    @property
    def place(self) -> "_Place":
        """See `_Place`."""
        return self.device, self.task.output, self.task.chunk

    @property
    def lacks_memory(self) -> bool:
        """Whether the GPU had not enough memory for it."""
        return self.verdict.outcome is Outcome.GPU_OOM


_Place: TypeAlias = tuple[int, int, int]
"""Device, output and chunk."""


class Blame:
    """Texts that fail alone."""

    def __init__(
        self,
        outputs: Sequence[Progress],
        limit: lastwords.BadRows,
        backlog: Backlog,
        fleet: Fleet,
        say: Callable[[do.Instruction], None],
        leaving: Leaving,
        history: RunHistory,
    ) -> None:
        self._outputs = outputs
        self._limit = limit
        self._backlog = backlog
        self._fleet = fleet
        self._say = say
        self._leaving = leaving
        self._history = history
        self._undecided: list[Accused] = []
        self._control: Task | None = None
        self._probed: list[Task] = []
        """Probes that failed, since a text was encoded."""
        self._fits: dict[_Place, bool] = {}
        """Whether a text of the chunk was encoded there, or else its shortest one lacked memory, too."""
        self._told: list[int] = []
        """Rows of each text whose quarantine the driver has not confirmed yet."""

    @property
    def undecided(self) -> bool:
        """Whether there are texts that fail alone, and nothing to compare them with."""
        return bool(self._undecided)

    @property
    def looks_afar(self) -> bool:
        """Whether texts are to be taken far from those that failed; for what lacks memory its own chunk tells more."""
        return any(not self._awaits_shorter(each) for each in self._undecided)

    def encoded(self, device: int, go_s: float, task: Task) -> None:
        """A text of the task got its vector on the device, by a worker that was given it at that time.

        Texts that had failed alone there by then did so by themselves. An earlier worker may have had the device while
        it was still sound, and only written its vectors since.
        """
        self._probed.clear()
        self._fits[device, task.output, task.chunk] = True
        known = [
            each
            for each in self._undecided
            if each.device == device and each.since_s <= go_s and not self._awaits_shorter(each)
        ]
        if known:
            self._undecided = [each for each in self._undecided if each not in known]
        for each in known:
            if each.lacks_memory and not self._fits.get(each.place, True):
                self._set_aside(each)
            else:
                self._quarantine(each)

    def _awaits_shorter(self, accused: Accused) -> bool:
        """Whether a shorter text of the chunk is to show first whether it is for its length that memory did not do."""
        if not accused.lacks_memory or accused.place in self._fits:
            return False
        output, chunk = accused.task.output, accused.task.chunk
        tried = {each.task.start for each in self._undecided if each.task.output == output}
        missing = self._outputs[output].missing(chunk)
        return any(text not in tried for gap in missing for text in range(*gap))

    def _set_aside(self, accused: Accused) -> None:
        """Give up its chunk: there long texts and short ones lack memory, though the device has it for others."""
        task, verdict, worker = accused.task, accused.verdict, accused.worker
        if self._backlog.gave_up(task):
            return
        self._backlog.give_up(task)
        self._undecided = [each for each in self._undecided if each.place[1:] != accused.place[1:]]
        self._say(do.SetAside(worker, task, verdict))
        if self._history.set_aside() >= BARREN_CHUNKS:
            name = self._outputs[task.output].name
            halt = lastwords.halt_of(EndRun(ExitCode.MACHINE), verdict, name, task.chunk)
            self._say(do.HaltRun(halt, worker))

    def accuse(self, accused: Accused) -> None:
        """The text fails alone."""
        if self._backlog.gave_up(accused.task):  # its worker was at it when the chunk was set aside
            return
        # Of a hole the others in the same batches had their vectors: it is no control more.
        hole = accused.task.hole and accused.verdict.bad_rows
        if accused.verdict.outcome is Outcome.BAD_INPUT or hole:
            self._quarantine(accused)
        else:
            self._undecided.append(accused)

    def settle(self, *, nothing_else: bool) -> None:
        """Find out about texts that are undecided, where nothing else is under way or there are too many of them.

        Where chunks were set aside and the run has no control, it leaves those texts to the next.
        """
        self._acquit_on_lost_devices()
        self._reconsider_probe()
        if not self._undecided or self._control is not None:
            return
        last = self._undecided[-1]
        many = nothing_else or len(self._undecided) >= UNDECIDED_MAX
        # The next text that hangs would cost more than a control, and a chunk without memory is to be set aside.
        lacking = last.lacks_memory and not self._fits.get(last.place, True)
        if not many and last.verdict.outcome is not Outcome.HUNG and not lacking:
            return
        shorter = self._shorter(last)
        good = self._known_good() if shorter is None else None
        if (text := shorter or good or self._short_text(last)) is not None:
            kind = Control.KNOWN_GOOD if good else Control.PROBE
            part = kind is Control.PROBE  # its chunk has no vector yet
            self._control = Task(NOW, *text, text[-1] + 1, fresh=True, control=kind, only=last.device, part=part)
            self._backlog.put_back(self._control)
        elif many or self._probes_on(last.device) >= PROBES_MAX:
            self._end(last, nothing_else=nothing_else)

    def _shorter(self, last: Accused) -> tuple[int, int, int] | None:
        """(output, chunk, text) that is to show whether it is for its length that memory did not do."""
        if not self._awaits_shorter(last):
            return None
        number, chunk = last.task.output, last.task.chunk
        tried = {each.task.start for each in self._undecided if each.task.output == number}
        text = self._outputs[number].shortest(chunk, tried)
        return (number, chunk, text) if text is not None else None

    def _known_good(self) -> tuple[int, int, int] | None:
        """(output, chunk, text)."""
        found = ((number, output.known_good()) for number, output in enumerate(self._outputs))
        return next(((number, *good) for number, good in found if good is not None), None)

    def _reconsider_probe(self) -> None:
        """One that has not begun gives way to a text that is known to be good, and goes if its text has its verdict."""
        probe = self._control
        if probe is None or probe.control is not Control.PROBE or not self._backlog.holds(probe):
            return
        missing = self._outputs[probe.output].missing(probe.chunk)
        of_length = any(
            self._awaits_shorter(each) and each.place == (probe.only, probe.output, probe.chunk)
            for each in self._undecided
        )
        needed = of_length or self._known_good() is None
        if not needed or not any(first <= probe.start < stop for first, stop in missing):
            self._withdraw(probe)

    def _withdraw(self, control: Task) -> None:
        if self._backlog.withdraw(control):
            self._control = None

    def _short_text(self, last: Accused) -> tuple[int, int, int] | None:
        """(output, chunk, text) of the next probe; None = no more, or a neighbour holds the memory that long ones lack.

        The first is from a chunk whose texts have failed, the others from far away: one chunk may be all bad.
        """
        number, output = last.task.output, self._outputs[last.task.output]
        probes = self._probes_on(last.device)
        if probes >= PROBES_MAX or any(each.verdict.others_hold_memory for each in self._undecided):
            return None
        tried = [*self._probed, *(each.task for each in self._undecided)]
        known = {task.start for task in tried if task.output == number}
        far = output.next_pending(probes * (output.chunks - 1) // (PROBES_MAX - 1)) if probes else None
        near = sorted({task.chunk for task in tried if task.output == number})
        for chunk in [*([far] if far is not None else []), *near]:
            if (text := output.shortest(chunk, known)) is not None:
                return number, chunk, text
        return None

    def _probes_on(self, device: int) -> int:
        """How many have failed there."""
        return sum(task.only == device for task in self._probed)

    def _end(self, last: Accused, *, nothing_else: bool) -> None:
        """No text was ever encoded, and none is left that could show whose fault it is."""
        output = self._outputs[last.task.output]
        bad = output.bad_count + sum(each.task.output == last.task.output for each in self._undecided)
        refused = all(each.verdict.refused_by_encoder for each in self._undecided)
        if refused and bad >= output.texts:
            undecided, self._undecided = self._undecided, []
            self._probed.clear()
            for each in undecided:
                self._quarantine(each)
        elif self._history.gave_up and nothing_else:
            self._undecided = []
        else:
            tried = len(self._undecided) + len(self._probed)
            halt = lastwords.nothing_encoded(output.name, output.texts, tried, last.task.chunk, last.verdict)
            self._say(do.HaltRun(halt, last.worker))

    def _acquit_on_lost_devices(self) -> None:
        """A device that the run does without can show nothing any more: its texts are tried on another."""
        alive = {device.number for device in self._fleet.alive}
        lost = [each for each in self._undecided if each.device not in alive]
        if lost:
            self._undecided = [each for each in self._undecided if each.device in alive]
        for each in lost:
            self._backlog.put_back(replace(each.task, due_s=NOW))
        if self._control is not None and self._control.only not in alive:
            self._withdraw(self._control)

    def control_waits(self, task: Task) -> None:
        """The control could not be made: it is to be made again."""
        self._control = replace(task, due_s=NOW)
        self._backlog.put_back(self._control)

    def control_ended(self, worker: int, task: Task, verdict: Verdict) -> None:
        """A text that is known to be good was encoded once more, or was not."""
        self._control = None
        device = self._fleet.devices.get(task.only) if task.only is not None else None
        good = verdict.outcome is Outcome.COMMITTED
        if device is not None and not device.left and not good and not verdict.blameless:
            if task.control is Control.PROBE:
                self._probe_failed(worker, task, verdict, device)
            else:
                self._control_failed(worker, task, verdict, device)
            return
        self._say(do.Discard(worker, task, verdict))
        if device is None or device.left:
            return
        if good:
            self.encoded(device.number, math.inf, task)  # it was asked for after all of them
        else:
            self.control_waits(task)

    def _control_failed(self, worker: int, task: Task, verdict: Verdict, device: Device) -> None:
        """Do without the device, or the run ends; the control's log is what a person reads then."""
        self._say(do.Record(worker, task, verdict, "it has its vector already: no text is the cause"))
        if len(self._fleet.alive) > 1:
            self._leaving.drop(device, lastwords.failing_control(device.name, verdict), worker)
            return
        name = self._outputs[task.output].name
        self._say(do.HaltRun(lastwords.control_failed(name, task.chunk, verdict), worker))

    def _probe_failed(self, worker: int, task: Task, verdict: Verdict, device: Device) -> None:
        """Where there are other devices, they are to tell whether it is this one."""
        self._probed.append(task)
        # What fails in another way had the memory that it needs.
        self._fits.setdefault((device.number, task.output, task.chunk), verdict.outcome is not Outcome.GPU_OOM)
        self._say(do.Record(worker, task, verdict, "a short text fails alone as well"))
        if self._probes_on(device.number) >= PROBES_MAX and len(self._fleet.alive) > 1:
            self._leaving.drop(device, lastwords.failing_probe(device.name, verdict), worker)

    def confirmed(self) -> None:
        """The driver has noted a quarantine, or could not: the progress counts it from now on."""
        if self._told:
            self._told.pop(0)

    def _quarantine(self, accused: Accused) -> None:
        task, verdict, worker = accused.task, accused.verdict, accused.worker
        rows = self._outputs[task.output].rows_of(task.start)
        count = rows + sum(self._told) + sum(output.bad_rows() for output in self._outputs)
        if self._limit.fail or count > self._limit.limit:
            self._say(do.HaltByBadRows(worker, task, verdict, count))
            return
        self._told.append(rows)
        self._say(do.Quarantine(task, verdict))
