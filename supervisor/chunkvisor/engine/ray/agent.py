"""The agent: an actor on one node of the cluster, which runs that node's workers and does not use CUDA itself.

It lives no longer than the bridge that made it: Ray ends it with its driver, and it ends itself when nobody asks for
news any more.
"""

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.devices.gpu import find_devices
from chunkvisor.engine.environment import thread_count
from chunkvisor.engine.orphans import end_orphans
from chunkvisor.engine.ray.nodeworkers import NodeSettings, NodeWorkers
from chunkvisor.engine.ray.readiness import check_shared, check_version, model_path, unfit
from chunkvisor.engine.ray.scratch import Scratch
from chunkvisor.engine.ray.wire import NodeAside, NodeUp, Order, Report, Terms
from chunkvisor.errors import Halt
from chunkvisor_worker.contract.files import open_kept, open_regular
from chunkvisor_worker.contract.wire import from_json, to_json

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
        flags = os.O_WRONLY | (os.O_TRUNC if first else os.O_APPEND)
        with open(open_kept(folder / name, flags), "wb") as file:
            file.write(data)

    def read(self, worker: int, name: str, offset: int) -> npt.NDArray[np.uint8] | None:
        """A piece of a file of an ended worker, as an array: Ray hands those on without a copy. Raises OSError.

        None where there is no such file, or none that can be opened.
        """
        if self._scratch is None:
            raise ValueError(name)
        try:
            file = open_regular(self._scratch.of_worker(worker) / name)
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
