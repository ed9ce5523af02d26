"""What the real loop runs on here: signals, an engine, workers with the folders of their attempts,
on a virtual clock.

Nothing is started, and nothing sleeps. A history and a life fill in what happens.
"""

import signal
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chunkvisor.core.instructions import Task
from chunkvisor.core.policy import Canary
from chunkvisor.devices.gpu import SMI_LOST, Device
from chunkvisor.devices.handles import (
    DeviceHandle,
    DeviceHandles,
    Health,
    MemoryHolder,
    Reading,
    Site,
)
from chunkvisor.engine.engine import Worker as EngineWorker
from chunkvisor.judge import EndedBy, Evidence
from chunkvisor.store.attempt import Salvage
from chunkvisor_worker.contract.messages import (
    Beat,
    EncodeSpec,
    Facts,
    Limits,
    ModelSpec,
    Phase,
    Result,
    Spec,
)

from .disk import FACTS

GPU_BYTES = 16 << 30
_SPEC = Spec("", "", 0, 1, 0, 0, "", "cuda", ModelSpec(""), EncodeSpec())


class Signals:
    """In the place of run.Signals."""

    def __init__(self, sleep: Callable[[], None]) -> None:
        self.draining = self.stopping = False
        self.why = "SIGTERM"
        self.until_s: float | None = None
        self._sleep = sleep

    def sleep(self, _seconds: float, _watched: list[int]) -> None:
        self._sleep()

    def wake(self) -> None:
        pass


def gpu(number: int, kind: str, *, watched: bool) -> Device:
    """Make a GPU of that kind; nvidia-smi can read it if it is `watched`."""
    return Device("cuda", f"GPU-{number}" if watched else f"{number}", kind, GPU_BYTES)


def reading(health: Health, ours: list[int], others_bytes: int = 0) -> Reading:
    """Make what nvidia-smi shows of a GPU in that state; each worker of ours holds a GiB."""
    if health is Health.BROKEN:
        return Reading(SMI_LOST)
    if health is Health.BLIND:
        return Reading(None)
    others_bytes = GPU_BYTES - (len(ours) << 30) if health is Health.BUSY else others_bytes
    holders = [MemoryHolder(pid, "worker", 1 << 30) for pid in ours]
    holders += [MemoryHolder(10**6, "somebody", others_bytes)] if others_bytes else []
    return Reading(0, others_bytes + (len(ours) << 30), "None", tuple(holders))


@dataclass(slots=True, eq=False)
class Worker:
    """A worker, and in the same object the folder of its attempt."""

    number: int  # the scheduler's number for it
    task: Task
    handle: DeviceHandle
    limits: Limits
    canary: Canary | None = None
    warm: bool = False
    phase: Phase = Phase.START
    called: bool = False
    freed: bool = False
    gone: bool = False  # it had its `go`
    left: Evidence | None = None  # what it left when it ended; None while it runs
    saved: frozenset[int] = frozenset()
    under_way: frozenset[int] = frozenset()
    canary_is_good: bool = False
    spec: Spec = _SPEC
    beats: int = 0
    log: Path | None = None

    def __post_init__(self) -> None:
        task = self.task
        start = task.texts[0]
        stop = task.texts[-1] + 1
        skip = tuple(text - start for text in range(start, stop) if text not in task.texts)
        cold = task.cold_start
        self.spec = replace(_SPEC, chunk=task.chunk, start=start, stop=stop, skip=skip, fresh=cold)

    # --- see engine.Worker

    @property
    def pid(self) -> int:
        return self.number

    def descriptors(self) -> list[int]:
        return []

    def has_called(self) -> bool:
        called, self.called = self.called, False
        return called

    def open_gate(self, limits: Limits) -> None:
        self.gone, self.limits = True, limits

    def ask_to_stop(self) -> None:
        pass

    def poll(self) -> int | None:
        return None if self.left is None else self.left.returncode

    @property
    def oom_kills(self) -> int:
        return 0

    def signal(self, number: signal.Signals) -> None:
        pass

    # --- see AttemptFolder

    @property
    def files(self) -> "Worker":
        return self

    @property
    def folder(self) -> str:
        return f"attempt of worker {self.number}"

    @property
    def vectors(self) -> dict[int, int]:
        """Each text's vector, as `disk.Vectors`."""
        return {text: text for text in range(self.spec.start, self.spec.stop)}

    partial = vectors

    def result(self) -> Result | None:
        return self.left.result if self.left is not None else None

    def facts_of_batches(self) -> Facts:
        return FACTS

    def keep_cut_lengths(self, _cut: Path, _texts: int) -> None:
        pass

    def beat(self) -> Beat | None:
        self.beats += 1
        return Beat(self.beats, self.number, self.phase, freed=self.freed)

    def add_log_line(self, _line: str) -> None:
        pass

    def evidence_of_end(self, end: Evidence) -> Evidence:
        left = self.left
        assert left is not None
        ended = (
            (end.ended_by, end.ended_why)
            if left.ended_by is EndedBy.ITSELF
            else (left.ended_by, left.ended_why)
        )
        return replace(left, ended_by=ended[0], ended_why=ended[1], limits=end.limits)

    def salvage(self) -> Salvage:
        start = self.spec.start
        return Salvage(
            tuple(sorted(text - start for text in self.saved)),
            tuple(sorted(text - start for text in self.under_way)),
        )

    def canary_passed(self) -> bool:
        return self.canary_is_good

    def record_verdict(self, _verdict: Any) -> None:
        pass

    def forget_verdict(self) -> None:
        pass

    def drop_bulk(self) -> None:
        pass

    def remove(self) -> None:
        pass

    def find_log(self) -> None:
        return None


class Engine:
    """In the place of an engine; histories and lives add its devices."""

    def __init__(
        self,
        opened: Callable[[], None],
        attend: Callable[[], None],
        started: Callable[[Any, bool], None],
    ) -> None:
        self._opened, self._poll, self._started = opened, attend, started
        self.handles: DeviceHandles
        self.looks: dict[str, Future[Reading]] = {}  # that are under way, by the device's uuid
        self._first: Reading | None = None

    def open(self, handles: DeviceHandles, _pending: Callable[[], int], _places: int) -> None:
        self.handles = handles
        self._opened()

    def poll(self) -> None:
        self._poll()

    def descriptors(self) -> list[int]:
        return []

    def is_preparing(self, _station: DeviceHandle) -> bool:
        return False

    def start(self, _station: DeviceHandle, files: Any, spec: Spec) -> EngineWorker:
        self._started(files, spec.fresh)
        return files  # type: ignore[no-any-return]

    def close(self) -> None:
        pass

    # --- devices

    def add(self, device: Device, node: str, first: Reading) -> DeviceHandle:
        """Add a device; `first` is what the first look at it shows."""
        self._first = first
        self.handles.add([device], Site(node, node))
        self._first = None
        return self.handles.alive[-1]

    def look(self, uuid: str) -> Future[Reading]:
        """In the place of `read_in_thread`."""
        look = Future[Reading]()
        if self._first is not None:
            look.set_result(self._first)
        else:
            self.looks[uuid] = look
            self.asked(uuid)
        return look

    def asked(self, uuid: str) -> None:
        """Hear that a look at a device has begun; a life overrides it."""

    def looked(self, uuid: str, shown: Reading) -> None:
        """Answer the look at a device."""
        if (look := self.looks.pop(uuid, None)) is not None:
            look.set_result(shown)
