"""What the run remembers of its attempts, as far as the policy asks for it.

Pure: it judges nothing and starts nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chunkvisor.decide.history import Budget, Company, History
from chunkvisor.decide.policy import is_fruitless
from chunkvisor.decide.steps import SetAside, Step
from chunkvisor.decide.suspicion import Charge
from chunkvisor.decide.verdict import Verdict
from chunkvisor.decide.waits import Cause, Waits
from chunkvisor.supervise.fleet import Device, Fleet
from chunkvisor.supervise.progress import Progress
from chunkvisor.supervise.suspects import Guilty, Suspects, of_installation
from chunkvisor.supervise.task import Seat, Task, TaskKey
from chunkvisor_worker.contract.exits import Outcome


@dataclass(slots=True)
class AttemptEnd:
    """An attempt that has ended, or a part of it that could not be stored."""

    task: Task
    verdict: Verdict
    now_s: float
    worker: int = 0
    """0 where none could be started, or what failed was to store."""
    device: Device | None = None
    company: Company = Company.UNTOLD
    began_s: float | None = None
    """When its worker was started, or got its device; None where a failure of its start is to prove nothing."""
    go_s: float = 0.0
    """When its worker got its device."""
    avoid: Seat | None = None
    """Where its texts are not tried next, if there is a choice."""
    saved: frozenset[int] = frozenset()
    """Texts whose vectors it has left all the same."""
    under_way: frozenset[int] = frozenset()
    """Texts of the batches that it was at."""
    begun: Task | None = None
    """The task as the worker had it, where that was more."""

    @property
    def suspects(self) -> list[int]:
        """Texts of the task, one of which may be what ended it."""
        return [text for text in self.task.wanted if text in self.under_way] if self.under_way else []

    @property
    def life_s(self) -> tuple[float, float] | None:
        """When its worker began, and when it ended."""
        return (self.began_s, self.now_s) if self.began_s is not None and self.device is not None else None


class RunHistory:
    """Of one run, since it began."""

    def __init__(self, outputs: Sequence[Progress], budget: Budget, fleet: Fleet) -> None:
        self._outputs = outputs
        self._budget = budget
        self._fleet = fleet
        self.host_ooms = 0
        """Attempts that ran out of host memory: each is a reason to prepare one worker less ahead."""
        self.gave_up = False
        """Whether a chunk was set aside."""
        self._tries: dict[TaskKey, Counter[Outcome]] = {}
        self._suspects = Suspects()
        self._waits = Waits()
        self._barren_chunks = 0
        self._fruitless = self._other_dimension = 0
        self._sound: set[int] = set()
        """Devices on which a worker has done all it was to do."""
        self._worked: set[int] = set()
        """Outputs of which this run has kept vectors."""

    def before(self, end: AttemptEnd) -> History:
        """What the policy is to know beside the verdict."""
        cause, task = self.cause(end), end.task
        failed_starts, failing_s, worked_before = 0, 0.0, task.output in self._worked
        if end.verdict.before_first_batch and end.device is not None:
            place = self._fleet.on_node(end.device.node) if of_installation(end.verdict) else [end.device]
            worked_before = any(device.number in self._sound for device in place)
            if end.life_s is not None:
                failed_starts, failing_s = self._suspects.starts_before(end.device.seat, end.verdict, end.life_s)
        return History(
            tries=self._tries.setdefault(task.key, Counter()),
            worked_before=worked_before,
            waited_s=self._waits.without_success_s(cause, end.now_s),
            spell_s=self._waits.spell_s(cause, end.now_s),
            company=end.company,
            failed_starts=failed_starts,
            failing_s=failing_s,
            barren_chunks=self._barren_chunks,
            # Every device may fail with its first chunk as often as that is tried, without a success in between.
            fruitless=max(0, self._fruitless - self._budget.attempts * (len(self._fleet.alive) - 1)),
            other_dimension=self._other_dimension,
            texts=task.texts,
            under_way=len(end.suspects),
            taken_apart=task.part,
        )

    def is_part(self, task: Task) -> bool:
        """Whether it is less than a whole chunk."""
        return bool(task.skip) or (task.start, task.stop) != self._outputs[task.output].bounds(task.chunk)

    # --- failures

    def failed(self, end: AttemptEnd, step: Step) -> None:
        """The attempt has failed, and this follows."""
        self.host_ooms += end.verdict.outcome is Outcome.HOST_OOM
        self._other_dimension += end.verdict.other_dimension
        self._fruitless += is_fruitless(step, end.verdict, end.task.texts)
        if isinstance(step, SetAside):
            self.set_aside()
        if end.device is not None and end.verdict.past_its_start:
            self._suspects.started(end.device.seat)
            # What is waited for may show in a batch as well: that is the same wait, not a way through it.
            if end.verdict.outcome is not Outcome.GPU_BUSY:
                self._waits.got_through((Outcome.GPU_BUSY, end.device.number))

    def set_aside(self) -> int:
        """A chunk is given up; returns how many that makes since the last success."""
        self._barren_chunks += 1
        self.gave_up = True
        return self._barren_chunks

    def charge(self, end: AttemptEnd) -> None:
        """It counts as a try of its texts, and, where they are a whole chunk, against its device."""
        outcome = end.verdict.outcome
        self._tries.setdefault(end.task.key, Counter())[outcome] += 1
        if end.device is not None and not end.verdict.blameless and not self.is_part(end.begun or end.task):
            self._suspects.failed(end.device.seat, Charge(end.task.key, outcome))

    def did_not_start(self, end: AttemptEnd) -> None:
        """Its worker failed before its first batch."""
        if end.device is not None and end.life_s is not None:
            self._suspects.did_not_start(end.device.seat, end.verdict, end.life_s)

    def guilty(self) -> Iterator[Guilty]:
        """Devices and machines on which all fails that succeeds on others; what that cost the chunks is given back."""
        for guilty in self._suspects.guilty():
            for charge in guilty.charges:
                if self._tries.get(charge.task, Counter())[charge.outcome] > 0:
                    self._tries[charge.task][charge.outcome] -= 1
            yield guilty

    # --- waits

    def cause(self, end: AttemptEnd) -> Cause:
        """What would be waited for: a device's own memory, a node's own disk, or the world that all share."""
        outcome, device = end.verdict.outcome, end.device
        own = outcome in (Outcome.GPU_BUSY, Outcome.GPU_OOM)
        own = own or (outcome is Outcome.DISK_FULL and device is not None and bool(device.node))
        return outcome, device.number if device is not None and own else None

    def waits(self, end: AttemptEnd) -> float:
        """The run waits for what the attempt has met; returns for how many seconds by now."""
        self._waits.wait(self.cause(end), end.now_s)
        return self._waits.spell_s(self.cause(end), end.now_s)

    def waited_in_vain(self, end: AttemptEnd) -> None:
        """The wait has not helped: the next attempt that meets it does not wait again."""
        self._waits.in_vain(self.cause(end))

    # --- successes

    def encoded(self, device: Device) -> None:
        """A worker has done all it was to do on the device."""
        self._sound.add(device.number)
        self._waits.free(device.number)
        self._suspects.succeeded(device.seat)

    def stored(self, task: Task, now_s: float) -> None:
        """Something was done and stored."""
        self._barren_chunks = self._fruitless = self._other_dimension = 0
        self._waits.succeeded(now_s)
        self._fleet.success_s = now_s
        self._tries.pop(task.key, None)

    def worked(self, output: int) -> None:
        """Vectors of the output were made and kept."""
        self._worked.add(output)
