"""The supervisor's side of a cluster: which nodes there are, and workers on them.

It does not import Ray: all of that happens in the bridge.
"""

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from chunkvisor.decide.policy import backoff_s
from chunkvisor.devices.stations import Site, Station, Stations
from chunkvisor.engine.engine import Demand, Worker
from chunkvisor.engine.process import keep_log_end
from chunkvisor.engine.ray.link import Link
from chunkvisor.engine.ray.node import Node
from chunkvisor.engine.ray.wire import Begin, Cluster, Demanded, NodeUp, Order, Report
from chunkvisor.errors import KEPT, ExitCode, Halt
from chunkvisor.events.decode import event_of
from chunkvisor.events.event import Emit
from chunkvisor.events.run import Waiting
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Spec

_START_S = 30.0
"""What an agent may take to start on an idle node, whatever recovery.wait_timeout says."""

_PATIENCE_S = 10.0
"""To be without a node for less is not worth a word."""


class RayEngine:
    """See Engine."""

    def __init__(self, begin: Begin, bridge_log: Path, wait_timeout_s: float, emit: Emit) -> None:
        """`begin` is told to the bridge, whose log is `bridge_log`."""
        self._begin = begin
        self._log = bridge_log
        self._wait_timeout_s = wait_timeout_s
        self._emit = emit
        self._stations: Stations | None = None
        self._demand: Demand | None = None
        self._link: Link | None = None
        self._bridges = 0
        self._next_bridge_s = 0.0
        self._without_s: float | None = None
        """Since when there is no device to work on."""
        self._told_waiting = False
        self._why = "no node has answered yet; GPUs that others have reserved are waited for"
        self._cluster = Cluster(starting=1)
        self._nodes: dict[str, Node] = {}
        self._numbers = itertools.count()

    def open(self, stations: Stations) -> None:
        """See Engine; nodes come when there is work."""
        self._stations = stations

    def prepare(self, demand: Demand) -> None:
        """See Engine."""
        self._demand = demand
        self._without_s = time.monotonic()
        self._build_bridge()

    def attend(self) -> None:
        """See Engine."""
        if self._demand is None or self._stations is None:
            return
        for report in self._link.hear() if self._link is not None else ():
            self._take_in(report, self._stations, self._demand)
        if self._link is not None and not self._link.alive:
            self._lose_bridge(self._stations)
        self._release_unused(self._stations)
        if not self._demand.pending():
            return  # what is left to do needs no node
        now_s = time.monotonic()
        if self._link is None and now_s >= self._next_bridge_s:
            self._build_bridge()
        if self._stations.alive:
            self._without_s, self._told_waiting = None, False
        else:
            self._wait(self._stations, now_s)

    def watched(self) -> list[int]:
        """See Engine."""
        return self._link.watched() if self._link is not None else []

    def holding(self, station: Station) -> bool:
        """See Engine."""
        node = self._nodes.get(station.site.node)
        return node is None or node.state is None or node.state.holding

    def has_room(self, station: Station, _workers: Sequence[Worker]) -> bool:
        """See Engine."""
        node = self._nodes.get(station.site.node)
        return node is not None and node.state is not None and node.state.room

    def start(
        self, station: Station, files: AttemptFiles, _spec: Spec, *, fresh: bool, blocking_launches: bool
    ) -> Worker:
        """See Engine; what goes wrong at the start is heard of later."""
        node = self._nodes[station.site.node]  # `holding` is true of the stations of any other
        return node.start(
            next(self._numbers), str(files.folder), station.device, fresh=fresh, blocking_launches=blocking_launches
        )

    def mistrust(self, worker: Worker) -> None:
        """See Engine; the node's agent has seen it before."""

    def abandon(self, station: Station, halt: Halt) -> None:
        """See Engine."""
        assert self._stations is not None
        self._stations.drop_node(station.site.node, halt)
        self._send(Order(station.site.node, release=True))
        self._forget(station.site.node)

    def close(self) -> None:
        """See Engine."""
        if self._link is not None:
            self._link.close()

    def _send(self, order: Order) -> None:
        if self._link is not None:
            self._link.send(order)

    def _take_in(self, report: Report, stations: Stations, demand: Demand) -> None:
        if report.cluster is not None:
            self._hear_of(report.cluster)
        elif report.up is not None:
            self._welcome(report.node, report.up, stations, demand)
        elif report.gone is not None:
            stations.lose(report.node, report.gone)
            self._forget(report.node)
        elif report.aside is not None:
            aside = report.aside
            halt = Halt(
                ExitCode(aside.code), f"node {aside.name} cannot do this job", why=aside.why, remedy=aside.remedy
            )
            stations.drop_node(report.node, halt, aside.name)
            self._forget(report.node)
        elif report.told is not None:
            if (event := event_of(report.told.event, report.told.details)) is not None:
                self._emit(event)
        elif report.node in self._nodes:
            self._nodes[report.node].hear(report)

    def _hear_of(self, cluster: Cluster) -> None:
        self._cluster = cluster
        if cluster.refused:
            raise Halt(
                ExitCode.MACHINE,
                f"the Ray cluster at {self._begin.address} cannot be used",
                why=cluster.refused,
                remedy="the supervisor and all nodes need the same versions of Python and Ray",
                log=self._log,
            )
        self._why = cluster.down or self._why

    def _welcome(self, number: str, up: NodeUp, stations: Stations, demand: Demand) -> None:
        self._nodes[number] = node = Node(number, up, self._send)
        self._bridges = 0
        stations.add(up.devices, Site(number, up.name, up.threads, up.model_path), node.sensor)
        at_once = len(stations.alive) * demand.places
        self._send(Order(number, demanded=Demanded(demand.pending(), at_once)))

    def _forget(self, number: str) -> None:
        if (node := self._nodes.pop(number, None)) is not None:
            node.lose()

    def _release_unused(self, stations: Stations) -> None:
        """A node none of whose devices is used any more need not be held."""
        used = {station.site.node for station in stations.alive}
        for number, node in self._nodes.items():
            if number not in used and not node.released:
                node.released = True
                self._send(Order(number, release=True))

    def _build_bridge(self) -> None:
        self._bridges += 1
        keep_log_end(self._log)
        self._link = Link(self._log, self._begin)
        self._cluster = Cluster(starting=1)

    def _lose_bridge(self, stations: Stations) -> None:
        self._link = None
        self._next_bridge_s = time.monotonic() + backoff_s(self._bridges)
        self._why = self._cluster.down or "the bridge to the cluster has ended"
        for number in list(self._nodes):
            stations.lose(number, self._why)
            self._forget(number)

    def _wait(self, stations: Stations, now_s: float) -> None:
        """There is nothing to work on: wait for a node. Raises Halt where that is in vain, or has lasted too long."""
        self._without_s = self._without_s or now_s
        waited_s = now_s - self._without_s
        if self._cluster.preparing:
            self._without_s = now_s
            return
        starting = self._cluster.starting
        if self._link is not None and not starting and stations.last_halt is not None:
            raise stations.last_halt
        limit_s = max(self._wait_timeout_s, _START_S if starting else 0.0)
        if waited_s >= limit_s:
            without = f"{self._cluster.without} nodes are there, without a device that the config asks for"
            raise Halt(
                ExitCode.TRY_AGAIN,
                f"no node of the Ray cluster at {self._begin.address} could work for {waited_s:.0f} s",
                why=without if self._cluster.without else self._why,
                remedy="start the cluster (ray start --head) or its nodes, or correct engine.address; "
                f"then run the same command again{KEPT}",
                log=self._log,
            )
        if waited_s > _PATIENCE_S and not self._told_waiting:
            self._told_waiting = True
            left_s = round(limit_s - waited_s, 1)
            self._emit(Waiting(left_s, f"no node can work: {self._why}", outcome="lost", limit_s=left_s))
