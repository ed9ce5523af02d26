"""Runs workers on a Ray cluster, by messages to and from the bridge, which this module starts."""

import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from chunkvisor.child import python_command, spawn
from chunkvisor.config.model import Config
from chunkvisor.devices.gpu import Device
from chunkvisor.devices.handles import DeviceHandle, DeviceHandles
from chunkvisor.engine.engine import Worker
from chunkvisor.engine.process import SERVICE_MANAGERS, end, readable
from chunkvisor.engine.ray.wire import VERSION, Cluster, NodeOrder, NodeReport, Terms
from chunkvisor.errors import KEPT, ExitCode, Halt
from chunkvisor.events.event import Emit, Waiting, event_of
from chunkvisor.judge import NODE_LOST
from chunkvisor.store.attempt import trim_log
from chunkvisor.store.layout import Layout
from chunkvisor_worker.contract.exits import RUN_ID
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Limits, Spec, TemplateSpec
from chunkvisor_worker.contract.wire import from_json, to_json

_SEND_S = 5.0  # a bridge that does not take a message within this time is stuck
_GRACE_S = 12.0  # for the bridge to end the agents
_START_S = 30.0  # for an agent to start on an idle node, whatever recovery.wait_timeout says
_PATIENCE_S = 10.0  # without any node, before there is a message


class _RayWorker:
    """A worker on a node, see `engine.Worker`."""

    def __init__(
        self, send: Callable[[NodeOrder], None], node: str, number: int, warm: bool
    ) -> None:
        self._send = send
        self._order = partial(NodeOrder, node, number)
        self.pid = 0
        self.warm = warm  # as expected, until its start is reported
        self._called = False
        self._returncode: int | None = None
        self.oom_kills = 0

    def take_report(self, report: NodeReport) -> None:
        """Take in a report of it. When it has ended, its files are here, with the last beat."""
        if report.pid is not None:
            self.pid = report.pid
            self.warm = report.warm
        if report.returncode is not None:
            self.oom_kills = report.oom_kills
            self._returncode = report.returncode
        self._called = True

    def descriptors(self) -> list[int]:
        return []  # the engine's descriptor is for the reports of all workers

    def has_called(self) -> bool:
        called = self._called
        self._called = False
        return called

    def open_gate(self, limits: Limits) -> None:
        self._send(self._order(gate=limits))

    def ask_to_stop(self) -> None:
        self._send(self._order(leave=True))

    def poll(self) -> int | None:
        return self._returncode

    def signal(self, number: signal.Signals) -> None:
        if self._returncode is None:
            self._send(self._order(signal=int(number)))


@dataclass(slots=True)
class _Node:
    """A node that can work."""

    devices: tuple[Device, ...]
    preparing: bool = True  # a template loads, or that is not known yet
    warm: bool = False  # whether a worker can be forked
    workers: dict[int, _RayWorker] = field(default_factory=dict)


class RayEngine:
    """The engine of a Ray cluster, see `engine.Engine`."""

    def __init__(
        self, config: Config, layout: Layout, template: TemplateSpec, run_id: str, emit: Emit
    ) -> None:
        """Prepare, without connecting. Raises OSError if its folder cannot be made."""
        layout.ray.mkdir(exist_ok=True)
        self._log = layout.ray / "bridge.log"
        self._wait_timeout_s = config.recovery.wait_timeout
        self._emit = emit
        self._terms = Terms(
            address=config.engine.address,
            run_id=run_id,
            version=VERSION,
            device=tuple(config.device),
            per_device=config.workers.per_device,
            env=config.env | config.secret_env,
            start=config.workers.start,
            startup_s=config.recovery.startup_timeout,
            template=template,
        )
        self._handles: DeviceHandles  # from `open` on
        self._pending: Callable[[], int]
        self._bridge: subprocess.Popen[bytes] | None = None
        # to the bridge; None before `open`, and when that has ended
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._without_s: float | None = None  # since when there is no device to work on
        self._told_waiting = False
        self._why = "no node has answered yet; GPUs that others have reserved are waited for"
        self._cluster = Cluster(starting=1)
        self._nodes: dict[str, _Node] = {}
        self._numbers = itertools.count()

    def open(self, handles: DeviceHandles, pending: Callable[[], int], _places: int) -> None:
        """See Engine."""
        self._handles = handles
        self._pending = pending
        trim_log(self._log)
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_SEND_S)
        environment = {
            name: value for name, value in os.environ.items() if name not in SERVICE_MANAGERS
        }
        # Ray sends no usage statistics; a later run finds the bridge by the run's id.
        environment |= {"RAY_USAGE_STATS_ENABLED": "0", RUN_ID: self._terms.run_id}
        command = python_command("chunkvisor.engine.ray.bridge")
        self._bridge = spawn(command, theirs.fileno(), self._log, environment)
        theirs.close()
        self._send(self._terms)

    def poll(self) -> None:
        """See Engine."""
        if not self._bridge:
            return
        while self._socket and readable(self._socket.fileno()):
            try:
                data = self._socket.recv(1 << 20)
            except OSError:
                data = b""
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for report in filter(None, (from_json(NodeReport, line) for line in lines)):
                self._take_in(report)
            if not data:
                self.close(0.0)
        if not self._socket:
            self._why = self._cluster.why or "the bridge to the cluster has ended"
            for node_id in list(self._nodes):
                self._lose(node_id, self._why)
        if not self._pending():
            return  # no node is needed any more
        if self._handles.alive:
            self._without_s = None
            self._told_waiting = False
        elif self._socket and self._cluster.preparing:
            self._without_s = None
        else:
            self._wait_for_node()

    def descriptors(self) -> list[int]:
        """See Engine."""
        return [self._socket.fileno()] if self._socket else []

    def is_preparing(self, handle: DeviceHandle) -> bool:
        """See Engine."""
        node = self._nodes.get(handle.site.node)
        return not node or node.preparing

    def start(self, handle: DeviceHandle, files: AttemptFiles, spec: Spec) -> Worker:
        """See Engine; what goes wrong at the start is reported later."""
        name = handle.site.node
        number = next(self._numbers)
        node = self._nodes[name]  # `is_preparing` is true of any other
        node.workers[number] = worker = _RayWorker(
            self._send, name, number, node.warm and not spec.fresh
        )
        place = node.devices.index(handle.device)
        self._send(NodeOrder(name, number, str(files.folder), place))
        return worker

    def close(self, grace_s: float = _GRACE_S) -> None:
        """See Engine; when the socket closes, the bridge ends the agents, and itself."""
        if self._socket:
            self._socket.close()
            self._socket = None
            if self._bridge:
                end(self._bridge, grace_s)

    def _send(self, message: Terms | NodeOrder) -> None:
        """Send the message; a bridge that is stuck counts as ended."""
        try:
            if self._socket:
                self._socket.sendall(to_json(message))
        except OSError:
            self.close(0.0)

    def _take_in(self, report: NodeReport) -> None:
        if report.cluster:
            self._cluster = report.cluster
            self._why = report.cluster.why or self._why
        elif report.up:
            self._nodes[report.node] = _Node(report.devices)
            self._handles.add(report.devices, report.up)
        elif report.gone and report.aside:
            what = f"node {report.aside} cannot do this job"
            halt = Halt(ExitCode(report.code), what, report.remedy, why=report.gone)
            self._lose(report.node, report.gone, halt, report.aside)
        elif report.gone:
            self._lose(report.node, report.gone)
        elif report.event:
            event = event_of(report.event, report.details)
            if event:
                self._emit(event)
        elif report.node in self._nodes:
            node = self._nodes[report.node]
            if report.preparing is not None:
                node.preparing = report.preparing
                node.warm = report.warm
            if report.worker in node.workers:
                node.workers[report.worker].take_report(report)

    def _lose(self, node_id: str, why: str, halt: Halt | None = None, name: str = "") -> None:
        self._handles.drop_node(node_id, why, halt, name)
        node = self._nodes.pop(node_id, None)
        for worker in node.workers.values() if node else ():
            worker.take_report(NodeReport(returncode=NODE_LOST))

    def _wait_for_node(self) -> None:
        """Wait for a node. Raises Halt if none can come, or if that has lasted too long."""
        now_s = time.monotonic()
        starting = self._cluster.starting
        self._without_s = self._without_s or now_s
        waited_s = now_s - self._without_s
        if not starting and self._handles.last_halt:
            raise self._handles.last_halt
        limit_s = max(self._wait_timeout_s, _START_S if starting else 0.0)
        if waited_s >= limit_s or not self._socket:
            raise Halt(
                ExitCode.TRY_AGAIN,
                f"no node of the Ray cluster at {self._terms.address} can work",
                "Start the cluster (`ray start --head`) or its nodes, all with the same versions "
                "of Python and Ray, or correct engine.address. Then run the same command "
                f"again{KEPT}.",
                why=self._why,
                log=self._log,
            )
        if waited_s > _PATIENCE_S and not self._told_waiting:
            self._told_waiting = True
            left_s = round(limit_s - waited_s, 1)
            self._emit(
                Waiting(left_s, f"no node can work: {self._why}", outcome="lost", limit_s=left_s)
            )
