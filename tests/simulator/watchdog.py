"""Checks what has to hold in every life: safety at each instruction, progress at each turn and at
the end.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any

from chunkvisor.config.choices import OnBadRow
from chunkvisor.core import policy
from chunkvisor.core.instructions import (
    Ending,
    Instruction,
    KeepVectors,
    ReportFailure,
    ReportWait,
    StartWorker,
    Task,
)
from chunkvisor.core.policy import KnownText
from chunkvisor.devices.handles import Health
from chunkvisor.errors import ExitCode
from chunkvisor.judge import NODE_LOST, Verdict
from chunkvisor_worker.contract.exits import Outcome, WorkerExit
from chunkvisor_worker.contract.messages import Phase

from .disk import BAD, MISSING, VECTOR, Disk
from .verdicts import Failure
from .world import NEVER, World

if TYPE_CHECKING:
    from .life import Device, Process, _Run


class Broken(AssertionError):
    """An invariant that did not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.life: Any = None


class Watchdog:
    """Checks each step of a life. All methods raise Broken if an invariant does not hold."""

    def __init__(self, world: World, disk: Disk) -> None:
        self._world = world
        self._disk = disk
        self._unlucky: set[tuple[int, int]] = set()
        """Chunks that had a fault by chance: each has one at most, for two look like a bad text."""
        self._early: set[tuple[int, int]] = set()
        self._known: list[tuple[str, int, int, int]] = []
        """(kind, step, rows, longest) of the out-of-memory faults that were judged."""
        self.suspected = set[int]()
        """Devices that may have caused a fault and were not looked at since."""
        self._waited_in_vain: dict[int, int] = {}
        """By device, bytes that other processes held when a wait for them was over."""
        self._untouched: list[int] = []
        self._unforgiving = world.config.recovery.attempts == 1
        """Whether a text is quarantined at the first fault that it can have caused."""
        self._fails = any(
            gpu.fails_from_s != NEVER or gpu.hangs_from_s != NEVER for gpu in world.gpus
        )

    def begin(self) -> None:
        """Begin to check a run."""
        self._known.clear()
        self._waited_in_vain.clear()
        self.suspected.clear()
        self._untouched = [0] * len(self._disk.outputs)

    # --- what the world may do

    def may_fail_by_chance(self, process: "Process") -> bool:
        """Whether a fault without a cause would be fair now: twice at one text, and nobody could
        tell.
        """
        key = process.task.output, process.task.chunk
        if self._fails or self._unforgiving or key in self._unlucky or key in self._early:
            return False
        self._unlucky.add(key)
        return True

    # --- safety

    def starts(self, run: "_Run", start: StartWorker, device: "Device") -> None:
        """Check an instruction to start a worker."""
        task = start.task
        if device.left:
            raise Broken(
                "no start on a dropped device", f"worker {start.worker} on device {device.number}"
            )
        if run.draining:
            raise Broken("no start while draining", f"worker {start.worker}")
        if run.life.now_s < max(device.paused_until_s, run.paused_until_s):
            raise Broken(
                "no start on a paused device", f"worker {start.worker} on device {device.number}"
            )
        if not len(task.texts):
            raise Broken("no start without texts", f"{task}")
        output = self._disk.outputs[task.output]
        if output.waits_for:
            raise Broken("an output that waits is not worked at", f"{task}")
        state = output.state
        if any(state[text] != MISSING for text in task.texts):
            raise Broken("nothing is computed twice", f"{task} is known already")
        first, last = output.ledger.plan.bounds(task.chunk)
        if not first <= task.texts[0] <= task.texts[-1] < last:
            raise Broken("tasks lie in their chunk", f"{task}")
        for other in run.processes.values():
            same_chunk = (other.task.output, other.task.chunk) == (task.output, task.chunk)
            if same_chunk and not frozenset(task.texts).isdisjoint(other.task.texts):
                raise Broken(
                    "no two workers at a text", f"{task} while worker {other.number} is at it"
                )
        poison = self._world.poison[task.output]
        if isinstance(start.canary, KnownText) and start.canary.text in poison:
            raise Broken("a canary is a good text", f"{task} {start.canary}")
        self._untouched[task.output] = max(self._untouched[task.output], task.chunk + 1)

    def goes(self, run: "_Run", process: "Process") -> None:
        """Check an instruction to give a worker its device."""
        device = process.device
        computing = sum(
            each.gone and not each.freed and each.left is None for each in device.processes
        )
        if process.gone or process.ending or process.phase is not Phase.READY:
            raise Broken("go is for who waits at the gate", f"worker {process.number}")
        if computing >= self._world.config.workers.per_device:
            raise Broken(
                "no more at a device than per_device", f"{computing + 1} on device {device.number}"
            )
        if device.left or run.draining:
            raise Broken("no go on a dropped device, or while draining", f"worker {process.number}")
        if run.life.now_s < max(device.paused_until_s, run.paused_until_s):
            raise Broken("no go on a paused device", f"worker {process.number}")
        if device.number in self.suspected:
            raise Broken("no go on a device that may be broken", f"worker {process.number}")
        if device.health is Health.BUSY:
            raise Broken("no go on a device that was seen busy", f"worker {process.number}")

    def leaves(self, run: "_Run", process: "Process") -> None:
        """Check an instruction that asks a worker to stop after its batch."""
        if not run.draining or run.over_s == NEVER or not process.gone or process.ending:
            raise Broken(
                "who is asked to leave has its device, in a run that has to end",
                f"worker {process.number}",
            )

    def ends(self, process: "Process", judged: Verdict) -> None:
        """Check the verdict on a worker, before the scheduler hears it."""
        self._judged_rightly(process, judged)
        # Devices of a cluster's machines are never looked at.
        watched = process.device.uuid.startswith("GPU") and not process.device.gpu.node
        if process.gone and judged.can_touch_gpu and watched:
            self.suspected.add(process.device.number)
        rows, tokens = process.batch
        if judged.outcome is not Outcome.GPU_OOM or not process.alone or rows <= 1:
            return
        kind, longest = process.device.gpu.kind, tokens // rows
        for known, step, known_rows, known_longest in self._known:
            if (
                known == kind
                and process.go_step >= step
                and rows >= known_rows
                and longest >= known_longest
            ):
                raise Broken(
                    "no lesson is paid for twice",
                    f"{rows} rows of {longest} tokens did not fit before",
                )

    def _judged_rightly(self, process: "Process", judged: Verdict) -> None:
        """What the parent did to it, and what its machine did, is told apart from what it did
        itself.
        """
        left = process.left
        assert left is not None
        if left.returncode == NODE_LOST and judged.outcome is not Outcome.LOST:
            raise Broken("a lost machine is no stop", f"worker {process.number}: {judged.outcome}")
        left_when_asked = process.asked and left.returncode == WorkerExit.ORPHANED
        if left_when_asked and not judged.asked_for:
            raise Broken("who leaves when asked to was not ended by others", f"{judged.reason}")

    def waits(self, device: int | None, judged: Verdict) -> None:
        """Check that no process that stays is waited for twice."""
        figures = judged.figures
        if device is None or figures is None:
            return
        if figures.others_bytes <= self._waited_in_vain.get(device, 0):
            raise Broken("who stays is waited for once", f"device {device}")

    def fails(self, device: int, failed: ReportFailure) -> None:
        """Note which memory of others stayed all through a wait."""
        figures = failed.verdict.figures
        if figures is not None and not isinstance(failed.step, policy.Wait):
            self._waited_in_vain[device] = figures.others_bytes

    def answered(
        self, process: "Process", judged: Verdict, said: list[Instruction], step: int
    ) -> None:
        """Check that finished batches are kept.

        Note how large a batch did not fit, for `ends` to see that none larger is tried.
        """
        if process.saved and not any(isinstance(each, KeepVectors) for each in said):
            raise Broken("finished batches of a failed attempt are kept", f"{judged}")
        if judged.outcome is Outcome.GPU_OOM and process.alone and process.batch[0] > 1:
            if any(isinstance(each, ReportWait) for each in said):
                return
            rows, tokens = process.batch
            if rows > self._world.config.recovery.min_batch_size:
                self._known.append((process.device.gpu.kind, step, rows, tokens // rows))

    def keeps(self, run: "_Run", worker: int, task: Task) -> None:
        """Check an instruction to store vectors."""
        output = self._disk.outputs[task.output]
        process, judged = run.ended.get(worker, (None, None))
        if process is not None and process.left is not None and process.left.returncode == 0:
            self._none_waits_meanwhile(run, process.device)
        if process is None or judged is None:
            raise Broken("what is kept was just verified", f"{task}")
        own = frozenset(process.task.texts)
        bad = frozenset(process.task.texts[0] + row for row in judged.bad_rows)
        good = (
            own
            if judged.outcome is Outcome.COMMITTED
            else process.saved or (own - bad if bad else frozenset())
        )
        if task.output != process.task.output or not frozenset(task.texts) <= own:
            raise Broken("what is kept are the worker's own texts", f"{task}")
        if frozenset(task.texts) != good or not good:
            raise Broken("no bad vector is kept", f"{task} {good}")
        if any(output.state[text] != MISSING for text in task.texts):
            raise Broken("nothing is stored twice", f"{task}")

    def _none_waits_meanwhile(self, run: "_Run", device: "Device") -> None:
        """Check that the next worker has the device while the vectors are stored."""
        known = run.scheduler.devices.get(device.number)
        if known is None or known.suspected_s is not None or run.draining:
            return
        paused_s = max(known.paused_until_s, run.scheduler.paused_until_s)
        waiting = [
            each
            for each in device.processes
            if each.phase is Phase.READY and each.told_ready and not (each.gone or each.ending)
        ]
        computing = sum(each.gone and not each.freed for each in device.processes)
        free = self._world.config.workers.per_device - computing
        if waiting and free > 0 and run.life.now_s >= paused_s:
            raise Broken("no device waits while vectors are stored", f"device {device.number}")

    def quarantines(self, task: Task) -> None:
        """Check an instruction to quarantine texts."""
        output = self._disk.outputs[task.output]
        if any(output.state[text] != MISSING for text in task.texts):
            raise Broken("quarantine is for missing texts", f"{task}")
        if not self._world.poison[task.output].keys() >= set(task.texts):
            raise Broken("no good text is quarantined", f"{task}")
        bad = len(task.texts) + sum(each.bad_count for each in self._disk.outputs)
        if bad > self._world.config.recovery.max_bad_rows:
            raise Broken("no more than max_bad_rows", f"{task}")

    def plans(self, run: "_Run") -> None:
        """The second output is to be planned: which of its texts have a vector in the first."""
        at_work = [each.number for each in run.processes.values() if each.task.output == 0]
        if at_work or 0 in self._disk.published:
            raise Broken(
                "an output is planned between the first one's work and its join", f"{at_work}"
            )

    def joins(self, number: int) -> None:
        """Check that an output that is joined is complete."""
        output = self._disk.outputs[number]
        if output.waits_for or any(number in each.waits_for for each in self._disk.outputs):
            raise Broken("no output is joined while one waits for it", output.name)
        if not output.complete:
            raise Broken("what is joined is complete", output.name)

    def too_many(self, halt: Ending) -> None:
        """Check that a run that ends because of its bad rows has too many."""
        bad = sum(map(len, self._world.poison))
        recovery = self._world.config.recovery
        if not bad or not (recovery.on_bad_row is OnBadRow.FAIL or bad > recovery.max_bad_rows):
            raise Broken("bad rows end a run only where there are too many", f"{halt}")

    # --- liveness

    def after_turn(self, run: "_Run") -> None:
        """Check that no device is idle while work is due, and that a run ends in time."""
        # A worker needs 0.3 s to end, which the loop sees within two turns; one that clings is
        # killed after 5 s.
        late_s = 6.5 if any(each.clings for each in run.processes.values()) else 1.0
        if run.life.now_s > run.over_s + late_s and run.processes and not self._fails:
            raise Broken(
                "a run with a grace has ended by then", f"{len(run.processes)} workers are left"
            )
        if (
            run.draining
            or run.damaged_turn == run.turns
            or (len(run.devices) > 100 and run.turns % 50)
        ):
            return
        idle = [
            each
            for each in run.devices.values()
            if not each.processes and not each.left and each.started_turn != run.turns
        ]
        now_s, fleet = run.life.now_s, run.scheduler
        if not idle or now_s < fleet.paused_until_s or not self._due():
            return
        for device in idle:
            own = fleet.devices[device.number]
            if now_s >= own.paused_until_s and own.suspected_s is None:
                raise Broken("no device waits while work is due", f"device {device.number}")

    def _due(self) -> bool:
        """Whether there is a chunk that no worker has seen."""
        return any(
            (chunk := output.next_pending(at)) is not None and output.ledger.pending_texts(chunk)
            for output, at in zip(self._disk.outputs, self._untouched, strict=True)
        )

    def finished(self) -> None:
        """Check that a run that ended by itself and gave up nothing has done everything."""
        for number, output in enumerate(self._disk.outputs):
            if not output.complete or number not in self._disk.published:
                raise Broken("a finished run has published all", output.name)
            poison = self._world.poison[number]
            for text, state in enumerate(output.state):
                if state != (BAD if text in poison else VECTOR):
                    raise Broken(
                        "every row has its vector or its quarantine", f"{output.name} text {text}"
                    )
            for rows in output.files.chunks.values():
                if any(text != vector for text, vector in rows.items()):
                    raise Broken("every vector is that of its text", f"{output.name} {rows}")

    def at_the_end(self, code: ExitCode, codes: list[ExitCode], now_s: float) -> None:
        """Check that the last exit code fits the troubles of the world."""
        world, told = self._world, Counter(codes)
        patience_s = world.config.recovery.wait_timeout
        # A spell that begins for one reason and goes on for another counts as one: that is left to
        # the policy.
        damaged = "damaged chunk" in world.chances or "damaged part" in world.chances
        mixed = (
            world.hub_down or world.server_down or damaged or any(gpu.busy for gpu in world.gpus)
        )
        short = all(min(now_s, stop) - start < patience_s for start, stop in world.disk_full)
        if code is ExitCode.DISK and short and not mixed:
            raise Broken("wait_timeout is wall time", f"{world.disk_full}, now {now_s:.0f} s")
        # Where not one text of an output has its vector, another run would come to the same,
        # whatever the cause.
        none_good = any(
            output.state and VECTOR not in output.state for output in self._disk.outputs
        )
        excused = self._fails or self._damaging(world) or self._all_bad(world) or none_good
        excused = excused or self._chunk_without_memory(world)
        if code is ExitCode.MACHINE and not excused:
            raise Broken("69 is for devices", f"{told}")
        if code is ExitCode.DISK and not world.disk_full and not damaged:
            raise Broken("74 is for disks", f"{told}")
        # Two workers in a row that die by chance while they load the model are as good as a model
        # that cannot be.
        if (
            code is ExitCode.CONFIG
            and not any(world.poison)
            and not self._fails
            and not self._damaging(world)
        ):
            raise Broken("78 is for texts, config and model", f"{told}")

    @staticmethod
    def _all_bad(world: World) -> bool:
        """Whether nothing of an output can be encoded, or much of its only chunk: it may as well be
        the machine.
        """
        for bad, texts in zip(world.poison, world.lengths, strict=True):
            only_chunk = len(texts) <= world.chunk_size
            if (bad and len(bad) == len(texts)) or (only_chunk and 4 * len(bad) > len(texts)):
                return True
        return False

    @staticmethod
    def _chunk_without_memory(world: World) -> bool:
        """Whether every text of some chunk lacks the GPU's memory, the shortest as well."""
        starts = (
            (bad, first)
            for bad, texts in zip(world.poison, world.lengths, strict=True)
            for first in range(0, len(texts), world.chunk_size)
        )
        return any(
            all(bad.get(first + text) is Failure.OOM for text in range(world.chunk_size))
            for bad, first in starts
        )

    @staticmethod
    def _damaging(world: World) -> bool:
        return "early" in world.chances

    def given_up(self, codes: list[ExitCode]) -> None:
        """Check that there is a reason if runs end with 75 again and again."""
        world = self._world
        lasting = any(
            stop == NEVER for gpu in world.gpus for _, stop in (*gpu.busy, *gpu.neighbours)
        )
        if not lasting and not self._fails and not self._all_bad(world):
            raise Broken("75 ends", f"run again and again, nothing is gained: {Counter(codes)}")
