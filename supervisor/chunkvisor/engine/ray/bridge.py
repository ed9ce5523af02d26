"""`python -m chunkvisor.engine.ray.bridge` passes messages between the parent and the agents.

It is Ray's driver. Standard input is a socket to the parent; when it closes, the bridge ends.
"""

import asyncio
import os
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from chunkvisor.engine.ray.agent import Agent
from chunkvisor.engine.ray.wire import Cluster, NodeOrder, NodeReport, Terms
from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles, write_atomic
from chunkvisor_worker.contract.wire import from_json, to_json, write_message

STARTING = "starting"
PREPARING = "preparing"
WORKING = "working"
_LINE_BYTES = 64 << 20
_CLOSE_S = 8.0
_LOOK_S = 1.0  # between two looks at the cluster's nodes
_DEATHS = 3  # of an agent; after them, none is started on its node
_LINE_CHARS = 120  # of an error, for people
_ANSWER_S = 10.0


class Bridge:
    """One connection to a cluster; everything happens in one event loop."""

    def __init__(
        self, terms: Terms, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._terms = terms
        self._reader = reader
        self._writer = writer
        self._wanted = "CPU" if "cpu" in terms.device else "GPU"
        self._deaths = Counter[str]()
        # how far each node is: its agent is STARTING, PREPARING or WORKING
        self._stages: dict[str, str] = {}
        self._orders: dict[str, asyncio.Queue[NodeOrder]] = {}
        self._agents: dict[str, Any] = {}
        self._folders: dict[int, Path] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the parent has ended, or the cluster cannot be reached."""
        ends = [
            asyncio.create_task(self._read_orders()),
            asyncio.create_task(self._watch_cluster()),
        ]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        closing = [
            asyncio.wait_for(agent.close.remote(), _CLOSE_S) for agent in self._agents.values()
        ]
        await asyncio.gather(*closing, return_exceptions=True)
        with suppress(OSError):  # the parent is gone
            await self._writer.drain()

    async def _read_orders(self) -> None:
        with suppress(OSError):
            async for line in self._reader:
                order = from_json(NodeOrder, line)
                # A node that has ended meanwhile was reported.
                if order and order.node in self._orders:
                    self._orders[order.node].put_nowait(order)

    def _report(self, report: NodeReport) -> None:
        self._writer.write(to_json(report))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the cluster

    async def _watch_cluster(self) -> None:
        try:
            await asyncio.to_thread(connect, self._terms.address)
        except Exception as error:  # noqa: BLE001 - Ray may raise anything, if versions differ, say
            self._report(NodeReport(cluster=Cluster(why=first_line(error))))
            return
        told: Cluster | None = None
        while True:
            nodes = await asyncio.to_thread(ray.nodes)
            alive = {node["NodeID"]: node["Resources"] for node in nodes if node["Alive"]}
            able = {
                node_id: resources
                for node_id, resources in alive.items()
                if resources.get(self._wanted)
            }
            for node_id in able.keys() - self._stages.keys():
                if self._deaths[node_id] < _DEATHS:
                    self._stages[node_id] = STARTING
                    self._start_task(self._keep_agent(node_id, able[node_id]))
            without = len(alive) - len(able)
            stages = Counter(self._stages.values())
            why = f"nodes without a device that the config asks for: {without}" if without else ""
            cluster = Cluster(stages[STARTING], stages[PREPARING], why)
            if cluster != told:
                told = cluster
                self._report(NodeReport(cluster=cluster))
            await asyncio.sleep(_LOOK_S)

    # --- a node

    async def _keep_agent(self, node_id: str, resources: dict[str, Any]) -> None:
        """Start an agent on the node, and pass on its reports until it ends or is lost."""
        gpus = float(resources["GPU"]) if self._wanted == "GPU" else 0.0
        place = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
        actor: Any = ray.remote(Agent).options(num_cpus=0, num_gpus=gpus, scheduling_strategy=place)
        agent = actor.remote(to_json(self._terms), node_id, float(resources.get("CPU", 0)))
        self._orders[node_id] = asyncio.Queue()
        obeys = asyncio.create_task(self._obey(agent, self._orders[node_id]))
        try:
            await agent.__ray_ready__.remote()
            self._stages[node_id] = PREPARING
            reports = [await agent.hello.remote()]
            self._stages[node_id] = WORKING
            self._agents[node_id] = agent
            while True:
                for report in filter(None, (from_json(NodeReport, data) for data in reports)):
                    if report.returncode is not None:
                        self._start_task(self._collect(agent, report))
                        continue
                    if report.beat:
                        with suppress(OSError):  # the next one may fit on the disk
                            write_message(
                                AttemptFiles(self._folders[report.worker]).beat, report.beat
                            )
                    self._report(replace(report, beat=None))
                    if report.aside:
                        self._deaths[node_id] = _DEATHS
                        await asyncio.wait_for(agent.close.remote(), _CLOSE_S)
                        return
                reports = await agent.news.remote()
        except Exception as error:  # noqa: BLE001 - whatever it is, the node is lost
            self._deaths[node_id] += 1
            if not isinstance(error, ray.exceptions.RayError):
                traceback.print_exc()
            self._report(NodeReport(node_id, gone=first_line(error)))
        finally:
            obeys.cancel()
            ray.kill(agent)
            self._orders.pop(node_id)
            self._agents.pop(node_id, None)
            self._stages.pop(node_id)

    async def _obey(self, agent: Any, orders: asyncio.Queue[NodeOrder]) -> None:
        """Pass orders on, one after the other. `_keep_agent` sees when the agent is lost."""
        with suppress(ray.exceptions.RayError):
            while True:
                order = await orders.get()
                contents = dict[str, bytes]()
                if order.folder:
                    files = AttemptFiles(Path(order.folder))
                    self._folders[order.worker] = files.folder
                    with suppress(OSError):  # the agent says what did not arrive
                        contents = {
                            path.name: path.read_bytes() for path in (files.texts, files.spec)
                        }
                await agent.order.remote(to_json(order), contents)

    async def _collect(self, agent: Any, ended: NodeReport) -> None:
        files = AttemptFiles(self._folders.pop(ended.worker))
        # What a worker that failed had encoded comes along; the result is the last.
        partial = (files.partial,) if ended.returncode else ()
        paths = (
            files.log,
            files.beat,
            files.fault,
            files.batches,
            *partial,
            files.cut,
            files.vectors,
            files.result,
        )
        try:
            contents = await agent.collect.remote(ended.worker, [path.name for path in paths])
            # The parent may have written into the log why it ends the worker.
            with open(files.log, "ab") as log:
                log.write(contents.pop(files.log.name, b""))
            for name, content in contents.items():
                write_atomic(files.folder / name, [content], durable=False)
        except OSError:
            # The disk here cannot take it; the parent knows what that means.
            ended = replace(ended, returncode=int(WorkerExit.DISK_FULL))
        except ray.exceptions.RayError:
            return
        self._report(ended)


def connect(address: str) -> None:
    """Make this process a driver of the cluster. Raises OSError, and whatever Ray raises."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        # If nothing listens there, Ray would try for minutes.
        socket.create_connection((host, int(port)), _ANSWER_S).close()
    ray.init(address=address, namespace="chunkvisor", log_to_driver=False, configure_logging=False)


def first_line(error: BaseException) -> str:
    """Return class and first line of an error, for people."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:_LINE_CHARS]


async def serve_parent() -> None:
    """Run the bridge for the parent at standard input."""
    parent = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    reader, writer = await asyncio.open_connection(sock=parent, limit=_LINE_BYTES)
    terms = from_json(Terms, await reader.readline())
    if terms:
        await Bridge(terms, reader, writer).run()
    sys.stderr.flush()
    # Ray's own shutdown may take seconds, and the cluster notices without it.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(serve_parent())
