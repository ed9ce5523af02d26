"""The agent: an actor on one node of the cluster, which runs that node's workers and does not use CUDA itself.

It lives no longer than the bridge that made it: Ray ends it with its driver, and it ends itself when nobody asks for
news any more.
"""

import contextlib
import errno
import fcntl
import os
import queue
import select
import shutil
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.config.choices import Start
from chunkvisor.devices.gpu import Device, find_devices, is_watched
from chunkvisor.devices.health import Reading, looks_at
from chunkvisor.devices.hostmemory import room_for_one_more
from chunkvisor.engine.engine import Worker
from chunkvisor.engine.environment import thread_count
from chunkvisor.engine.process import end_orphans, keep_log_end, trim_log
from chunkvisor.engine.ray import wire
from chunkvisor.engine.ray.readiness import check_shared, check_version, model_path, unfit
from chunkvisor.engine.ray.wire import NodeAside, NodeUp, Order, Report, Terms
from chunkvisor.engine.starter import Starter, WorkerSettings
from chunkvisor.errors import Halt
from chunkvisor.events.event import TemplateEvent
from chunkvisor.judge import NEARLY_FULL_BYTES
from chunkvisor.store.disk import free_bytes, of_start
from chunkvisor_worker.contract.exits import EXIT_OF_OUTCOME, WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Beat, Cause, Fault, Phase, Spec
from chunkvisor_worker.contract.wire import from_json, read_beat, read_message, to_json, write_message


class Mailbox:
    """Between that thread and all others."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[wire.Order] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[wire.Report] = queue.SimpleQueue()
        self.waker, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def order(self, order: wire.Order) -> None:
        """Have it obeyed; from any thread."""
        self._orders.put(order)
        with contextlib.suppress(OSError):  # full: it is awake
            os.write(self._wake, b"\0")

    def orders(self) -> Iterator[wire.Order]:
        """Those that have come; `waker` can be read from where there may be some."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.waker, 4096)
        while not self._orders.empty():
            yield self._orders.get()

    def report(self, report: wire.Report) -> None:
        """Have it told."""
        self._reports.put(report)

    def news(self, wait_s: float) -> list[wire.Report]:
        """What there is to tell, in order; waits for the first."""
        try:
            first = self._reports.get(timeout=wait_s)
        except queue.Empty:
            return []
        return [first, *(self._reports.get() for _ in range(self._reports.qsize()))]


_PAUSE_S = 0.25
_BEAT_S = 1.0
"""Between two beats that travel, unless the worker calls."""
_STATE_S = 1.0
_GRACE_S = 3.0


@dataclass(slots=True)
class _Running:
    number: int
    files: AttemptFiles
    worker: Worker
    beat: Beat | None = None
    looked_s: float = 0.0


@dataclass(slots=True)
class NodeSettings:
    """What the workers of this node have in common."""

    number: str
    """In the cluster."""
    name: str
    devices: Sequence[Device]
    folder: Path
    """The scratch folder."""
    mark: str
    """The run id that they bear; another on each node, though two nodes may be one machine."""
    environment: Mapping[str, str]
    terms: wire.Terms


class NodeWorkers(threading.Thread):
    """A thread that starts all workers, so that they end with it (PR_SET_PDEATHSIG is bound to a thread)."""

    def __init__(self, node: NodeSettings) -> None:
        super().__init__(name="workers", daemon=True)
        self._node = node
        self.mail = Mailbox()
        self._running: dict[int, _Running] = {}
        self._sensors = {number: looks_at(each) for number, each in enumerate(node.devices) if is_watched(each)}
        self._looks: dict[int, Future[Reading]] = {}
        self._state: wire.NodeState | None = None
        self._state_s = 0.0
        self._closing = False
        self._demanded = False
        terms = node.terms
        settings = WorkerSettings(
            Start(terms.start),
            node.mark,
            node.environment,
            terms.env,
            node.devices[0],
            terms.template,
            node.folder / "template",
            terms.startup_s,
        )
        self._starter = Starter(settings, self._tell)

    def first_readings(self) -> tuple[Reading, ...]:
        """Of the GPUs that nvidia-smi knows, before the first worker."""
        begun = [look() for look in self._sensors.values()]
        return tuple(reading.result() for reading in begun)

    def run(self) -> None:
        """Work until closed. A bug here ends the process: the node is then lost, and the run knows what to do."""
        try:
            while not self._closing:
                self._turn()
            self._end_all()
            self._starter.close()
        except BaseException:  # noqa: BLE001 - nobody would notice that the thread is gone
            traceback.print_exc()
            os._exit(1)

    def _turn(self) -> None:
        poll = select.poll()
        watched = [fd for each in self._running.values() for fd in each.worker.watched()]
        for fd in (self.mail.waker, *self._starter.watched(), *watched):
            poll.register(fd, select.POLLIN)
        poll.poll(_PAUSE_S * 1000)
        try:
            for order in self.mail.orders():
                self._obey(order)
            self._starter.attend()
            for each in list(self._running.values()):
                self._attend(each)
        except Halt as halt:  # no warm start, and the config wants no other
            self._report(aside=wire.NodeAside(self._node.name, halt.why, halt.remedy, int(halt.code)))
            self._closing = True
        self._tell_looks()
        self._tell_state()

    def _obey(self, order: wire.Order) -> None:
        running = self._running.get(order.worker)
        if order.launch is not None:
            self._launch(order.worker, order.launch)
        elif order.gate is not None and running is not None:
            running.worker.go(order.gate)
        elif order.leave and running is not None:
            running.worker.leave()
        elif order.signal is not None and running is not None:
            running.worker.signal(signal.Signals(order.signal))
        elif order.look is not None and order.look in self._sensors:
            self._looks[order.look] = self._sensors[order.look]()
        elif order.demanded is not None:
            self._demanded = True
            self._starter.expect(order.demanded.pending, order.demanded.at_once)
        elif order.discard:
            shutil.rmtree(self._own_folder(order.worker), ignore_errors=True)
        elif order.close:
            self._closing = True

    def _report(self, worker: int = wire.NO_WORKER, **what: Any) -> None:
        self.mail.report(wire.Report(self._node.number, worker, **what))

    def _own_folder(self, worker: int) -> Path:
        return self._node.folder / f"{worker}"

    def _launch(self, number: int, launch: wire.Launch) -> None:
        # In the attempt's own folder if this node sees it.
        files = AttemptFiles(Path(launch.folder) if self._node.terms.shared else self._own_folder(number))
        try:
            spec = read_message(Spec, files.spec)
            if spec is None:
                raise OSError(errno.EIO, f"{files.spec} did not arrive")
            worker = self._starter.start_on(
                self._node.devices[launch.device],
                files,
                spec,
                fresh=launch.fresh,
                blocking_launches=launch.blocking_launches,
            )
        except OSError as error:
            self._not_started(number, files, error)
            return
        self._running[number] = _Running(number, files, worker)
        self._report(number, started=wire.Started(worker.pid, worker.warm))

    def _not_started(self, number: int, files: AttemptFiles, error: OSError) -> None:
        code = EXIT_OF_OUTCOME[of_start(error)[0]]
        cause = Cause(f"builtins.{type(error).__name__}", ("builtins.OSError",), str(error), errno=error.errno)
        with contextlib.suppress(OSError):
            write_message(files.fault, Fault(Phase.START, (cause,), ""), durable=False)
        self._report(number, ended=wire.Ended(code))

    def _attend(self, each: _Running) -> None:
        called, now_s = each.worker.has_called(), time.monotonic()
        returncode = each.worker.poll()
        if called or returncode is not None or now_s - each.looked_s > _BEAT_S:
            each.looked_s = now_s
            trim_log(each.files.log)
            beat = read_beat(each.files.beat)
            if called or (beat is not None and beat != each.beat):
                each.beat = beat
                self._report(each.number, heard=True, beat=beat)
        if returncode is None:
            return
        del self._running[each.number]
        keep_log_end(each.files.log)
        if returncode == WorkerExit.TAINTED_TEMPLATE:
            self._starter.mistrust(each.worker)
        if returncode == -signal.SIGBUS and (free_bytes(each.files.folder) or NEARLY_FULL_BYTES) < NEARLY_FULL_BYTES:
            returncode = WorkerExit.DISK_FULL  # only here it can be seen
        self._report(each.number, ended=wire.Ended(returncode, each.worker.oom_kills()))

    def _tell(self, event: TemplateEvent) -> None:
        # A process number of this machine means nothing on another.
        self._report(told=wire.Told(event.name, {**event.details(), "pid": 0, "node": self._node.name}))

    def _tell_looks(self) -> None:
        for device in [number for number, look in self._looks.items() if look.done()]:
            self._report(looked=wire.Looked(device, self._looks.pop(device).result()))

    def _tell_state(self) -> None:
        if not self._demanded:
            return  # whether a template is of use is not known yet
        now_s = time.monotonic()
        now = (self._starter.loading, self._starter.warm)
        before = self._state and (self._state.holding, self._state.warm)
        if now == before and now_s - self._state_s < _STATE_S:
            return
        self._state_s = now_s
        room = room_for_one_more(each.worker.pid for each in self._running.values())
        state = wire.NodeState(room, *now)
        if state != self._state:
            self._state = state
            self._report(state=state)

    def _end_all(self) -> None:
        deadline_s = time.monotonic() + _GRACE_S
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in self._running.values():
                each.worker.signal(number)
            while time.monotonic() < deadline_s and any(each.worker.poll() is None for each in self._running.values()):
                time.sleep(0.02)
            deadline_s += _GRACE_S


_PREFIX = f"chunkvisor-{os.getuid()}-"
_LOCK = "lock"


class Scratch:
    """A new folder in the node's folder for temporary files (TMPDIR)."""

    def __init__(self, mark: str) -> None:
        """`mark` is the run id that the agent's workers bear. Raises OSError."""
        _remove_leftovers()
        # Under another name until the lock is held: another agent of this machine may be cleaning up.
        new = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
        self._lock = os.open(new / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, mark.encode())
        self.folder = new.rename(new.with_name(new.name[1:]))

    def of_worker(self, number: int) -> Path:
        """The folder of a worker's attempt."""
        return self.folder / f"{number}"

    def remove(self) -> None:
        """All workers have ended."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _remove_leftovers() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                if os.fstat(fd).st_uid != os.getuid():
                    continue
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end_orphans(os.read(fd, 256).decode())
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)


NEWS_S = 5.0
"""A question for news is answered at the latest after this time."""
PIECE_BYTES = 16 << 20
"""Files travel in pieces of this size, one of which lies in the cluster's object store at a time."""
_DESERTED_S = 120.0
"""An agent that nobody asks for news for this time ends itself."""
_INWARD = frozenset({"spec.json", "texts.jsonl"})


class Agent:
    """The methods are called from afar, several at a time; they take and return plain values."""

    def __init__(self, terms: bytes, node: str, cores: float) -> None:
        self._terms = from_json(Terms, terms)
        self._node = node
        self._cores = cores
        """That the cluster has been told of; 0 = it was told of none."""
        self._name = f"{socket.gethostname()} ({node[:6]})"
        """With the beginning of the number by which Ray knows the node."""
        self._scratch: Scratch | None = None
        self._workers: NodeWorkers | None = None
        self._asked_s = time.monotonic()
        _be_no_first_victim()
        threading.Thread(target=self._end_when_deserted, name="deserted", daemon=True).start()

    def here(self) -> None:
        """Answer that the agent lives."""

    def hello(self) -> bytes:
        """Get ready: a Report with `up` or `aside`. May take as long as the download of a model."""
        remedy = ""
        try:
            if self._terms is None:
                raise unfit("it does not understand the supervisor", "install the same chunkvisor on all nodes")
            return to_json(Report(self._node, up=self._get_ready(self._terms)))
        except Halt as halt:
            why, remedy = halt.why or halt.what, halt.remedy
        except OSError as error:
            why, remedy = str(error), "look after the node's disk and its folder for temporary files"
        self.close()
        return to_json(Report(self._node, aside=NodeAside(self._name, why, remedy)))

    def put(self, worker: int, name: str, data: bytes, *, first: bool) -> None:
        """Write a piece of a file that a worker is to find in its folder. Raises OSError."""
        if self._scratch is None or name not in _INWARD:
            raise ValueError(name)
        folder = self._scratch.of_worker(worker)
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(folder / name, "wb" if first else "ab") as file:
            file.write(data)

    def read(self, worker: int, name: str, offset: int) -> npt.NDArray[np.uint8] | None:
        """A piece of a file of an ended worker, as an array: Ray hands those on without a copy. Raises OSError.

        None where there is no such file, or none that can be opened.
        """
        if self._scratch is None:
            raise ValueError(name)
        try:
            file = open(self._scratch.of_worker(worker) / name, "rb")  # noqa: SIM115 - closed below
        except OSError:
            return None
        with file:
            file.seek(offset)
            return np.frombuffer(file.read(PIECE_BYTES), dtype=np.uint8)

    def order(self, order: bytes) -> None:
        """Obey an Order."""
        told = from_json(Order, order)
        if told is not None and self._workers is not None:
            self._workers.mail.order(told)

    def news(self) -> list[bytes]:
        """Reports, oldest first; the first is waited for."""
        self._asked_s = time.monotonic()
        if self._workers is None:
            return []
        return [to_json(report) for report in self._workers.mail.news(NEWS_S)]

    def close(self) -> None:
        """End all workers and leave nothing behind."""
        if self._workers is not None:
            self._workers.mail.order(Order(close=True))
            self._workers.join()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            end_orphans(self._mark)
            scratch.remove()

    @property
    def _mark(self) -> str:
        return f"{self._terms.run_id if self._terms else ''}.{self._node[:12]}"

    def _get_ready(self, terms: Terms) -> NodeUp:
        check_version(terms)
        check_shared(terms)
        devices = find_devices(terms.device)
        self._scratch = Scratch(self._mark)
        path = model_path(terms.model, terms.machine, self._scratch.folder)
        node = NodeSettings(self._node, self._name, devices, self._scratch.folder, self._mark, _environment(), terms)
        self._workers = NodeWorkers(node)
        readings = self._workers.first_readings()
        self._asked_s = time.monotonic()
        self._workers.start()
        cores = min(len(os.sched_getaffinity(0)), int(self._cores) or 1 << 20) // terms.per_device
        threads = thread_count(terms.env.get("OMP_NUM_THREADS"), devices[0].kind, cores)
        return NodeUp(self._name, devices, readings, threads, path)

    def _end_when_deserted(self) -> None:
        # Before it is ready nobody asks; a model may take long to arrive.
        while self._workers is None or time.monotonic() - self._asked_s < _DESERTED_S:
            time.sleep(1)
        self.close()
        os._exit(1)


def _environment() -> dict[str, str]:
    """The node's own, without what Ray has put there for its own processes."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ours.pop("OMP_NUM_THREADS", None)  # Ray sets it to the processors that an actor has reserved
    return ours


def _be_no_first_victim() -> None:
    """Ray has its processes killed first of all when memory runs out (oom_score_adj 1000); here, a worker is to be."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
