"""The supervisor's side of a cluster: which nodes there are, and the workers on them.

It never judges a worker, and never imports Ray: all of that happens beyond the link.
"""

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.decide.policy import backoff_s
from chunkvisor.devices.gate import is_watched
from chunkvisor.devices.health import Reading
from chunkvisor.devices.stations import Site, Station, Stations
from chunkvisor.engine.engine import Demand
from chunkvisor.engine.fresh import keep_log_end
from chunkvisor.engine.ray.link import Link
from chunkvisor.engine.ray.sensor import NodeSensor
from chunkvisor.engine.ray.wire import (
    Begin,
    Cluster,
    Demanded,
    Launch,
    Look,
    NodeState,
    NodeUp,
    Order,
    Report,
    Terms,
)
from chunkvisor.engine.ray.worker import RayWorker
from chunkvisor.engine.worker import Worker
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.decode import event_of
from chunkvisor.events.event import Emit
from chunkvisor.events.run import Waiting
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Spec

_START_S = 30.0
"""So long an agent may take to start on an idle node, whatever recovery.wait_timeout says."""

_PATIENCE_S = 10.0
"""So long without a node is not worth a word."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What the engine needs beside the terms for the nodes."""

    address: str
    terms: Terms
    log: Path
    """Of the bridge."""
    wait_timeout_s: float


class RayEngine:
    """See Engine."""

    def __init__(self, settings: ClusterSettings, emit: Emit) -> None:
        self._settings = settings
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
        self._nodes: dict[str, NodeUp] = {}
        self._states: dict[str, NodeState] = {}
        self._released: set[str] = set()
        self._workers: dict[int, RayWorker] = {}
        self._numbers = itertools.count()
        self._looks: dict[tuple[str, int], Future[Reading]] = {}

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
        self.hear()
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

    def hear(self) -> None:
        """Take in what has been said."""
        if self._link is None:
            return
        for report in self._link.hear():
            self._take_in(report)
        if self._link is not None and not self._link.alive:
            self._lose_bridge()

    def watched(self) -> list[int]:
        """See Engine."""
        return self._link.watched() if self._link is not None else []

    def holding(self, station: Station) -> bool:
        """See Engine."""
        state = self._states.get(station.site.node)
        return state is None or state.holding

    def has_room(self, station: Station, _workers: Sequence[Worker]) -> bool:
        """See Engine."""
        state = self._states.get(station.site.node)
        return state is not None and state.room

    def start(
        self, station: Station, files: AttemptFiles, _spec: Spec, *, fresh: bool, blocking_launches: bool
    ) -> Worker:
        """See Engine; what goes wrong at the start is heard of later."""
        node, number = station.site.node, next(self._numbers)
        worker = RayWorker(self.send, number, node, not fresh and self._is_warm(node))
        self._workers[number] = worker
        position = self._nodes[node].devices.index(station.device) if node in self._nodes else 0
        launch = Launch(number, node, str(files.folder), position, fresh, blocking_launches)
        self.send(Order(launch=launch))
        return worker

    def mistrust(self, worker: Worker) -> None:
        """See Engine; the node's agent has seen it before."""

    def abandon(self, station: Station, halt: Halt) -> None:
        """See Engine."""
        assert self._stations is not None
        self._stations.drop_node(station.site.node, halt)
        self.send(Order(release=station.site.node))
        self._forget(station.site.node)

    def close(self) -> None:
        """See Engine."""
        if self._link is not None:
            self._link.close()

    def send(self, order: Order) -> None:
        """Say it to the bridge, if there is one."""
        if self._link is not None:
            self._link.send(order)

    def _is_warm(self, node: str) -> bool:
        state = self._states.get(node)
        return state is not None and state.warm

    def _take_in(self, report: Report) -> None:
        assert self._stations is not None
        if report.up is not None:
            self._welcome(report.up)
        elif report.gone is not None:
            self._stations.lose(report.gone.node, report.gone.why)
            self._forget(report.gone.node)
        elif report.aside is not None:
            aside = report.aside
            halt = Halt(
                ExitCode(aside.code), f"node {aside.name} cannot do this job", why=aside.why, remedy=aside.remedy
            )
            self._stations.drop_node(aside.node, halt, aside.name)
            self._forget(aside.node)
        elif report.state is not None and report.state.node in self._nodes:
            self._states[report.state.node] = report.state
        elif report.started is not None and report.started.worker in self._workers:
            self._workers[report.started.worker].started(report.started)
        elif report.heard is not None and report.heard.worker in self._workers:
            self._workers[report.heard.worker].heard()
        elif report.ended is not None and report.ended.worker in self._workers:
            self._workers.pop(report.ended.worker).ended(report.ended)
        elif report.looked is not None:
            look = self._looks.pop((report.looked.node, report.looked.device), None)
            if look is not None:
                look.set_result(report.looked.reading)
        elif report.told is not None:
            if (event := event_of(report.told.event, report.told.details)) is not None:
                self._emit(event)
        elif report.cluster is not None:
            self._hear_of(report.cluster)

    def _hear_of(self, cluster: Cluster) -> None:
        self._cluster = cluster
        if cluster.refused:
            raise Halt(
                ExitCode.MACHINE,
                f"the Ray cluster at {self._settings.address} cannot be used",
                why=cluster.refused,
                remedy="the supervisor and all nodes need the same versions of Python and Ray",
                log=self._settings.log,
            )
        self._why = cluster.down or self._why

    def _welcome(self, up: NodeUp) -> None:
        assert self._stations is not None
        assert self._demand is not None
        self._nodes[up.node] = up
        self._bridges = 0
        readings = iter(up.readings)
        first = {device: next(readings) for device in up.devices if is_watched(device)}
        site = Site(up.node, up.name, up.threads, up.model_path)
        self._stations.add(up.devices, site, lambda device: NodeSensor(self._look, up, device, first[device]))
        at_once = len(self._stations.alive) * self._demand.places
        self.send(Order(demanded=Demanded(up.node, self._demand.pending(), at_once)))

    def _forget(self, node: str) -> None:
        """Its workers are lost, too."""
        self._nodes.pop(node, None)
        self._released.discard(node)
        self._states.pop(node, None)
        for number, worker in list(self._workers.items()):
            if worker.node == node:
                del self._workers[number]
                worker.lost()
        for key in [key for key in self._looks if key[0] == node]:
            self._looks.pop(key).cancel()

    def _look(self, node: str, device: int) -> Future[Reading]:
        """Have a GPU looked at."""
        look = self._looks.setdefault((node, device), Future())
        self.send(Order(look=Look(node, device)))
        return look

    def _release_unused(self, stations: Stations) -> None:
        """A node none of whose devices is used any more need not be held."""
        used = {station.site.node for station in stations.alive}
        for node in self._nodes.keys() - used - self._released:
            self._released.add(node)
            self.send(Order(release=node))

    def _build_bridge(self) -> None:
        self._bridges += 1
        keep_log_end(self._settings.log)
        self._link = Link(self._settings.log, self._settings.terms.run_id)
        self._cluster = Cluster(starting=1)
        self.send(Order(begin=Begin(self._settings.address, self._settings.terms)))

    def _lose_bridge(self) -> None:
        assert self._stations is not None
        self._link = None
        self._next_bridge_s = time.monotonic() + backoff_s(self._bridges)
        self._why = self._cluster.down or "the bridge to the cluster has ended"
        for node in list(self._nodes):
            self._stations.lose(node, self._why)
            self._forget(node)
        for worker in self._workers.values():
            worker.lost()
        self._workers.clear()

    def _wait(self, stations: Stations, now_s: float) -> None:
        """There is nothing to work on: wait for a node. Raises Halt where that is in vain, or has lasted too long."""
        self._without_s = self._without_s or now_s
        waited_s = now_s - self._without_s
        if self._cluster.preparing:
            self._without_s = now_s
            return
        starting = self._cluster.starting
        settled = self._link is not None and not starting
        if settled and stations.last_halt is not None:
            raise stations.last_halt
        limit_s = self._settings.wait_timeout_s
        if starting:
            limit_s = max(limit_s, _START_S)
        if waited_s >= limit_s:
            raise self._in_vain(waited_s)
        if waited_s > _PATIENCE_S and not self._told_waiting:
            self._told_waiting = True
            why = f"no node can work: {self._why}"
            self._emit(Waiting(round(limit_s - waited_s, 1), why, outcome="lost"))

    def _in_vain(self, waited_s: float) -> Halt:
        why = self._why
        if self._cluster.without:
            why = f"{self._cluster.without} nodes are there, without a device that the config asks for"
        return Halt(
            ExitCode.TRY_AGAIN,
            f"no node of the Ray cluster at {self._settings.address} could work for {waited_s:.0f} s",
            why=why,
            remedy="start the cluster (ray start --head) or its nodes, or correct engine.address; "
            "then run the same command again; what is done stays done",
            log=self._settings.log,
        )
