"""The agent: an actor on one node of the cluster, which runs that node's workers and does not use CUDA itself.

It lives no longer than the bridge that made it: Ray ends it with its driver, and it ends itself if it is not asked for
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
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.config.choices import Start
from chunkvisor.config.model import ModelConfig
from chunkvisor.devices.gpu import Device, find_devices
from chunkvisor.devices.health import Reading, looks_at
from chunkvisor.engine.engine import Worker
from chunkvisor.engine.environment import thread_count
from chunkvisor.engine.local import LocalEngine, WorkerSettings
from chunkvisor.engine.modelsource import ModelSource, fetch_model, resolve_local
from chunkvisor.engine.process import end_orphans, keep_log_end, room_for_one_more, trim_log
from chunkvisor.engine.ray.wire import (
    NO_WORKER,
    Launch,
    NodeAside,
    NodeOrder,
    NodeReport,
    NodeState,
    NodeUp,
    Terms,
    this_machine,
    this_version,
)
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import TemplateEvent
from chunkvisor.judge import NEARLY_FULL_BYTES
from chunkvisor.store.disk import free_bytes, of_start
from chunkvisor_worker.contract.exits import EXIT_OF_OUTCOME, WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Beat, Cause, Fault, ModelSpec, Phase, Spec
from chunkvisor_worker.contract.wire import from_json, read_beat, read_message, to_json, write_message

# A question for news is answered at the latest after this time.
NEWS_S = 5.0
# Files travel in pieces of this size, one of which lies in the cluster's object store at a time.
PIECE_BYTES = 16 << 20
# An agent that is not asked for news for this time ends itself.
_DESERTED_S = 120.0
_INWARD = frozenset({"spec.json", "texts.jsonl"})
_PAUSE_S = 0.25
# Between two beats that travel, unless the worker calls.
_BEAT_S = 1.0
_STATE_S = 1.0
_GRACE_S = 3.0
_PREFIX = f"chunkvisor-{os.getuid()}-"


# --- whether a node can do the job


def unfit(why: str, remedy: str) -> Halt:
    """Say why the node cannot do the job, and what to do."""
    return Halt(ExitCode.MACHINE, "the node cannot do this job", why=why, remedy=remedy)


def check_node(terms: Terms) -> None:
    """Raise Halt if the node has another chunkvisor than the parent, or does not see the folders that it is to see."""
    if this_version() != terms.version:
        raise unfit(
            f"it has {this_version()}, the supervisor has {terms.version}", "install the same versions on all nodes"
        )
    if terms.shared and not Path(terms.workdir).is_dir():
        raise unfit(f"it has no folder {terms.workdir}", "mount it on all nodes, or write engine.shared: false")


def model_path(model: ModelSpec, machine: str, scratch: Path) -> str | None:
    """Find the model's files on this node, downloaded if need be. Raises Halt, OSError.

    On the parent's own machine they are where it has found them.
    """
    if model.path is None or this_machine() == machine:
        return model.path
    if not (model.revision or "").startswith("sha256:"):
        backend = str(model.kwargs.get("backend", "torch"))
        found = fetch_model(model.name, model.revision, backend, scratch / "fetch", lambda: None)
        if isinstance(found, ModelSource):
            return found.path
        raise unfit(f"it cannot get the model {model.name}: {found.reason}", found.remedy)
    remedy = "copy the supervisor's model folder there, or name the model by its hub id"
    if not Path(model.name).is_dir():
        raise unfit(f"it has no model folder {model.name}", remedy)
    try:
        here = resolve_local(ModelConfig(name=model.name), scratch / "model.json")
    except Halt as halt:
        raise unfit(halt.what, remedy) from None
    if here.revision != model.revision:
        raise unfit(f"its model folder {model.name} holds other files than the supervisor's", remedy)
    return model.name


# --- its scratch folder


class NodeScratch:
    """A new folder in the node's folder for temporary files (TMPDIR); those of dead agents are removed."""

    def __init__(self, mark: str) -> None:
        """`mark` is the run id that the agent's workers bear. Raises OSError."""
        for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            _remove_if_dead(left)
        # Under another name until the lock is held: another agent of this machine may be cleaning up.
        new = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
        self._lock = os.open(new / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, mark.encode())
        self.folder = new.rename(new.with_name(new.name[1:]))

    def of_worker(self, number: int) -> Path:
        """Name the folder of a worker's attempt."""
        return self.folder / f"{number}"

    def remove(self) -> None:
        """Remove it; all workers have ended."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _remove_if_dead(folder: Path) -> None:
    with contextlib.suppress(OSError, ValueError), open(folder / "lock", "r+b") as lock:
        if os.fstat(lock.fileno()).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end_orphans(lock.read(256).decode())
            shutil.rmtree(folder, ignore_errors=True)


# --- its workers


@dataclass(slots=True)
class _Running:
    number: int
    files: AttemptFiles
    worker: Worker
    beat: Beat | None = None
    looked_s: float = 0.0


class NodeWorkers(threading.Thread):
    """A thread that starts all workers, so that they end with it (PR_SET_PDEATHSIG is bound to a thread)."""

    def __init__(self, number: str, name: str, devices: Sequence[Device], scratch: NodeScratch, terms: Terms) -> None:
        """`number` is the node's in the cluster, `name` for people."""
        super().__init__(name="workers", daemon=True)
        self._number, self._node, self._devices, self._scratch, self._terms = number, name, devices, scratch, terms
        self._orders: queue.SimpleQueue[NodeOrder] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[NodeReport] = queue.SimpleQueue()
        self._waker, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._running: dict[int, _Running] = {}
        self.looks_at = {place: looks_at(each) for place, each in enumerate(devices) if each.watched}
        self._looks: dict[int, Future[Reading]] = {}
        self._state: NodeState | None = None
        self._state_s = 0.0
        self._demanded = self._closing = False
        # Ray sets OMP_NUM_THREADS to the processors that an actor has reserved.
        ours = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS" and name[:4] != "RAY_"}
        folder, mark = scratch.folder / "template", mark_of(terms, number)
        settings = WorkerSettings(Start(terms.start), mark, ours, terms.env, terms.template, folder, terms.startup_s)
        self._engine = LocalEngine(devices, settings, self._tell)

    # --- called from other threads

    def order(self, order: NodeOrder) -> None:
        """Have it obeyed."""
        self._orders.put(order)
        with contextlib.suppress(OSError):  # full: it is awake
            os.write(self._wake, b"\0")

    def news(self, wait_s: float) -> list[NodeReport]:
        """Give what there is to report, in order; waits for the first."""
        try:
            first = self._reports.get(timeout=wait_s)
        except queue.Empty:
            return []
        return [first, *(self._reports.get() for _ in range(self._reports.qsize()))]

    # --- the thread

    def run(self) -> None:
        """Work until closed. A bug here ends the process: the node is then lost, and the run knows what to do."""
        try:
            while not self._closing:
                self._turn()
            self._end_all()
            self._engine.close()
        except BaseException:  # noqa: BLE001 - else it would not be noticed that the thread is gone
            traceback.print_exc()
            os._exit(1)

    def _turn(self) -> None:
        poll = select.poll()
        watched = [fd for each in self._running.values() for fd in each.worker.watched()]
        for fd in (self._waker, *self._engine.watched(), *watched):
            poll.register(fd, select.POLLIN)
        poll.poll(_PAUSE_S * 1000)
        try:
            with contextlib.suppress(BlockingIOError):
                os.read(self._waker, 4096)
            while not self._orders.empty():
                self._obey(self._orders.get())
            self._engine.attend()
            for each in list(self._running.values()):
                self._attend(each)
        except Halt as halt:  # no warm start, and the config wants no other
            self._report(aside=NodeAside(self._node, halt.why, halt.remedy, int(halt.code)))
            self._closing = True
        for device in [number for number, look in self._looks.items() if look.done()]:
            self._report(looked=device, reading=self._looks.pop(device).result())
        self._tell_state()

    def _obey(self, order: NodeOrder) -> None:
        running = self._running.get(order.worker)
        if order.launch is not None:
            self._launch(order.worker, order.launch)
        elif order.gate is not None and running is not None:
            running.worker.go(order.gate)
        elif order.leave and running is not None:
            running.worker.leave()
        elif order.signal is not None and running is not None:
            running.worker.signal(signal.Signals(order.signal))
        elif order.look in self.looks_at:
            self._looks[order.look] = self.looks_at[order.look]()
        elif order.demanded:
            self._demanded = True
            self._engine.expect(*order.demanded)
        elif order.discard:
            shutil.rmtree(self._scratch.of_worker(order.worker), ignore_errors=True)
        elif order.close:
            self._closing = True

    def _report(self, worker: int = NO_WORKER, **what: Any) -> None:
        self._reports.put(NodeReport(self._number, worker, **what))

    def _launch(self, number: int, launch: Launch) -> None:
        # In the attempt's own folder if this node sees it.
        files = AttemptFiles(Path(launch.folder) if self._terms.shared else self._scratch.of_worker(number))
        device, fresh, blocking = self._devices[launch.device], launch.fresh, launch.blocking_launches
        try:
            spec = read_message(Spec, files.spec)
            if spec is None:
                raise OSError(errno.EIO, f"{files.spec} did not arrive")
            worker = self._engine.start_on(device, files, spec, fresh=fresh, blocking_launches=blocking)
        except OSError as error:
            cause = Cause(f"builtins.{type(error).__name__}", ("builtins.OSError",), str(error), errno=error.errno)
            with contextlib.suppress(OSError):
                write_message(files.fault, Fault(Phase.START, (cause,), ""), durable=False)
            self._report(number, returncode=EXIT_OF_OUTCOME[of_start(error)[0]])
            return
        self._running[number] = _Running(number, files, worker)
        self._report(number, pid=worker.pid, warm=worker.warm)

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
            self._engine.mistrust(each.worker)
        if returncode == -signal.SIGBUS and (free_bytes(each.files.folder) or NEARLY_FULL_BYTES) < NEARLY_FULL_BYTES:
            returncode = WorkerExit.DISK_FULL  # only here it can be seen
        self._report(each.number, returncode=returncode, oom_kills=each.worker.oom_kills())

    def _tell(self, event: TemplateEvent) -> None:
        # A process number of this machine means nothing on another.
        self._report(event=event.name, details={**event.details(), "pid": 0, "node": self._node})

    def _tell_state(self) -> None:
        if not self._demanded:
            return  # whether a template is of use is not known yet
        now_s, now = time.monotonic(), (self._engine.loading, self._engine.warm)
        before = self._state and (self._state.holding, self._state.warm)
        if now != before or now_s - self._state_s >= _STATE_S:
            self._state_s = now_s
            state = NodeState(room_for_one_more(each.worker.pid for each in self._running.values()), *now)
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


def mark_of(terms: Terms | None, node: str) -> str:
    """Make the run id that the node's workers bear: another on each node, though two nodes may be one machine."""
    return f"{terms.run_id if terms is not None else ''}.{node[:12]}"


# --- the actor


class Agent:
    """The methods are called from afar, several at a time; they take and return plain values."""

    def __init__(self, terms: bytes, node: str, cores: float) -> None:
        """`cores` is what the cluster has been told of; 0 = it was told of none."""
        self._terms, self._node, self._cores = from_json(Terms, terms), node, cores
        # With the beginning of the number by which Ray knows the node.
        self._name = f"{socket.gethostname()} ({node[:6]})"
        self._scratch: NodeScratch | None = None
        self._workers: NodeWorkers | None = None
        self._asked_s = time.monotonic()
        # Ray has its processes killed first if memory runs out (oom_score_adj 1000); here, a worker is to be.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("0")
        threading.Thread(target=self._end_when_deserted, name="deserted", daemon=True).start()

    def here(self) -> None:
        """Answer that the agent lives."""

    def hello(self) -> bytes:
        """Get ready: a NodeReport with `up` or `aside`. May take as long as the download of a model."""
        try:
            if self._terms is None:
                raise unfit("it does not understand the supervisor", "install the same chunkvisor on all nodes")
            return to_json(NodeReport(self._node, up=self._get_ready(self._terms)))
        except Halt as halt:
            why, remedy = halt.why or halt.what, halt.remedy
        except OSError as error:
            why, remedy = str(error), "look after the node's disk and its folder for temporary files"
        self.close()
        return to_json(NodeReport(self._node, aside=NodeAside(self._name, why, remedy)))

    def _get_ready(self, terms: Terms) -> NodeUp:
        check_node(terms)
        devices = find_devices(terms.device)
        self._scratch = scratch = NodeScratch(mark_of(terms, self._node))
        path = model_path(terms.template.model, terms.machine, scratch.folder)
        self._workers = NodeWorkers(self._node, self._name, devices, scratch, terms)
        looks = [look() for look in self._workers.looks_at.values()]  # all begin before the first is waited for
        readings = tuple(look.result() for look in looks)
        self._asked_s = time.monotonic()
        self._workers.start()
        cores = min(len(os.sched_getaffinity(0)), int(self._cores) or 1 << 20) // terms.per_device
        threads = thread_count(terms.env.get("OMP_NUM_THREADS"), devices[0].kind, cores)
        return NodeUp(self._name, devices, readings, threads, path)

    def put(self, worker: int, name: str, data: bytes, *, first: bool) -> None:
        """Write a piece of a file that a worker is to find in its folder. Raises OSError."""
        if self._scratch is None or name not in _INWARD:
            raise ValueError(name)
        folder = self._scratch.of_worker(worker)
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(folder / name, "wb" if first else "ab") as file:
            file.write(data)

    def read(self, worker: int, name: str, offset: int) -> npt.NDArray[np.uint8] | None:
        """Give a piece of a file of an ended worker, as an array: Ray hands those on without a copy. Raises OSError.

        None if there is no such file.
        """
        if self._scratch is None:
            raise ValueError(name)
        path = self._scratch.of_worker(worker) / name
        if not path.is_file():  # a pipe that a worker has left there would be waited for without end
            return None
        with open(path, "rb") as file:
            file.seek(offset)
            return np.frombuffer(file.read(PIECE_BYTES), dtype=np.uint8)

    def order(self, order: bytes) -> None:
        """Obey an NodeOrder."""
        told = from_json(NodeOrder, order)
        if told is not None and self._workers is not None:
            self._workers.order(told)

    def news(self) -> list[bytes]:
        """Give reports, oldest first; the first is waited for."""
        self._asked_s = time.monotonic()
        return [to_json(report) for report in self._workers.news(NEWS_S)] if self._workers is not None else []

    def close(self) -> None:
        """End all workers and leave nothing behind."""
        if self._workers is not None:
            self._workers.order(NodeOrder(close=True))
            self._workers.join()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            end_orphans(mark_of(self._terms, self._node))
            scratch.remove()

    def _end_when_deserted(self) -> None:
        # Before it is ready it is not asked; a model may take long to arrive.
        while self._workers is None or time.monotonic() - self._asked_s < _DESERTED_S:
            time.sleep(1)
        self.close()
        os._exit(1)
