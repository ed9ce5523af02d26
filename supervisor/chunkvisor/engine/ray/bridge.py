"""`python -m chunkvisor.engine.ray.bridge`: Ray's driver, which passes on what parent and agents say.

Standard input is a socket to the parent, whose end is the bridge's end. With an address as its argument it prints what
that cluster has, as one JSON object.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from chunkvisor.engine.ray.agent import PIECE_BYTES, Agent
from chunkvisor.engine.ray.wire import Begin, Cluster, NodeAside, NodeOrder, NodeReport, Survey, Terms
from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.wire import from_json, to_json, write_beat

# Held while the files of a worker travel: few at a time, over the whole cluster.
_TRAVELLING = asyncio.Semaphore(4)
_CLOSE_S = 8.0
# Between two questions to the cluster for its nodes.
_LOOK_S = 1.0
# After this number of deaths in a row, each soon after its start, an agent is not started again on the node.
_DEATHS = 3
_SERVICE_S = 120.0
_WORDS = 120
_ANSWER_S = 10.0
_END_S = 10.0


class AgentProxy:
    """One agent, from its start to its end."""

    def __init__(self, node: str, terms: Terms, resources: dict[str, Any], say: Callable[[NodeReport], None]) -> None:
        self._node, self._terms, self._say = node, terms, say
        self._folders: dict[int, Path] = {}
        # The last thing under way for each worker, and for the node itself: the next begins after it.
        self._errands: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        gpus = 0.0 if "cpu" in terms.device else float(resources["GPU"])
        actor: Any = ray.remote(Agent).options(
            num_cpus=0, num_gpus=gpus, max_restarts=0, max_task_retries=0, max_concurrency=16, scheduling_strategy=place
        )
        self._agent = actor.remote(to_json(terms), node, float(resources.get("CPU", 0)))
        self.preparing = self.ready = False  # how far it is: placed on its node, able to work
        self.closed = False  # whether it is to end

    async def serve(self, on_change: Callable[[], None]) -> None:
        """Pass on the agent's news until it is closed or set aside. Raises RayError if it is lost."""
        await self._agent.here.remote()
        self.preparing = True
        on_change()
        hello = from_json(NodeReport, await self._agent.hello.remote())
        self.preparing, self.ready = False, True
        on_change()
        if hello is not None:
            self._say(hello)
        while hello is not None and hello.up is not None and not self.closed:
            for data in await self._agent.news.remote():
                if (report := from_json(NodeReport, data)) is not None:
                    self._pass_on(report)
                    if report.aside is not None:
                        await self.close()

    def obey(self, order: NodeOrder) -> None:
        """Hand an order on, after everything else that is under way for its worker."""
        if order.launch is not None:
            self._folders[order.worker] = Path(order.launch.folder)
        self._errand(order.worker, self._hand_on(order))

    async def close(self) -> None:
        """Let the agent end its workers and clean up, then end it."""
        self.closed = True
        if self.preparing or self.ready:  # else it has begun nothing, or is to start on a node that is dead already
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                await asyncio.wait_for(self._agent.close.remote(), _CLOSE_S)
        ray.kill(self._agent)

    def cancel(self) -> None:
        """Note that the agent has ended: nothing is fetched from it any more."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._agent)

    def _pass_on(self, report: NodeReport) -> None:
        if report.returncode is not None:
            self._errand(report.worker, self._bring_home(report))
            return
        folder = self._folders.get(report.worker)
        if folder is not None and report.beat is not None and not self._terms.shared:
            with contextlib.suppress(OSError):  # the next one may fit on the disk
                write_beat(AttemptFiles(folder).beat, report.beat)
        self._say(replace(report, beat=None))

    def _errand(self, worker: int, work: Coroutine[Any, Any, None]) -> None:
        before = self._errands.get(worker)

        async def after() -> None:
            if before is not None:
                await asyncio.wait([before])
            # If the agent is lost, the one that waits for its news hears of it.
            with contextlib.suppress(ray.exceptions.RayError):
                await work

        self._errands[worker] = task = asyncio.get_running_loop().create_task(after())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_on(self, order: NodeOrder) -> None:
        if order.launch is not None and not self._terms.shared:
            files = AttemptFiles(Path(order.launch.folder))
            try:
                async with _TRAVELLING:
                    for path in (files.texts, files.spec):
                        with open(path, "rb") as file:
                            first = True
                            while (piece := file.read(PIECE_BYTES)) or first:
                                await self._agent.put.remote(order.worker, path.name, piece, first=first)
                                first = False
            except OSError:  # here or there: Ray raises what was raised there
                self._say(NodeReport(self._node, order.worker, returncode=WorkerExit.DISK_FULL))
                return
        await self._agent.order.remote(to_json(order))

    async def _bring_home(self, ended: NodeReport) -> None:
        files = AttemptFiles(self._folders.pop(ended.worker))
        self._errands.pop(ended.worker, None)
        if not self._terms.shared:
            try:
                async with _TRAVELLING:
                    # What a worker that failed had encoded comes along; the result is the last.
                    of_batches = (files.batches, files.partial) if ended.returncode else ()
                    of_texts = (*of_batches, files.cut, files.vectors)
                    for path in (files.log, files.beat, files.fault, *of_texts, files.result):
                        await self._fetch(ended.worker, path)
            except OSError:
                # The disk here cannot take it; the parent knows what that means.
                ended = replace(ended, returncode=int(WorkerExit.DISK_FULL))
        self._say(ended)
        await self._agent.order.remote(to_json(NodeOrder(self._node, ended.worker, discard=True)))

    async def _fetch(self, worker: int, path: Path) -> None:
        """Bring a file of an ended worker, if there is one."""
        if (piece := await self._agent.read.remote(worker, path.name, 0)) is None:
            return
        partial = path.with_name(f".{path.name}.partial")
        with open(partial, "wb") as file:
            # The parent may have written into the log why it ends the worker.
            before = file.write(path.read_bytes()) if path.suffix == ".log" and path.exists() else 0
            while len(piece):
                await asyncio.to_thread(file.write, piece.data)
                del piece  # its place in the object store is free from here on
                piece = await self._agent.read.remote(worker, path.name, file.tell() - before)
        partial.replace(path)


class Bridge:
    """One connection to a cluster; everything but the reading of the socket happens in one thread's event loop."""

    def __init__(self, parent: socket.socket, orders: Iterable[bytes], begin: Begin) -> None:
        self._socket, self._orders, self._address, self._terms = parent, orders, begin.address, begin.terms
        self._wanted = "CPU" if "cpu" in begin.terms.device else "GPU"
        self._loop = asyncio.new_event_loop()
        self._proxies: dict[str, AgentProxy] = {}
        self._alive: dict[str, dict[str, Any]] = {}
        self._known: set[str] = set()
        self._told: Cluster | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> None:
        """Serve until the parent has ended, or says so."""
        threading.Thread(target=self._read, name="parent", daemon=True).start()
        self._loop.run_until_complete(self._serve())

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._orders:
                if (order := from_json(NodeOrder, line)) is not None:
                    self._loop.call_soon_threadsafe(self._obey, order)
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop)
        # If Ray holds up the event loop.
        threading.Event().wait(_END_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _say(self, report: NodeReport) -> None:
        with contextlib.suppress(OSError):  # the parent is gone; the reader sees that, too
            self._socket.sendall(to_json(report))

    def _obey(self, order: NodeOrder) -> None:
        if order.close:
            self._start(self._leave())
        elif (proxy := self._proxies.get(order.node)) is None:
            return  # it has ended, which the parent has been told
        elif order.release:
            self._start(proxy.close())
        else:
            proxy.obey(order)

    async def _serve(self) -> None:
        try:
            await asyncio.to_thread(connect, self._address)
        except (OSError, ValueError) as error:
            self._say(NodeReport(cluster=Cluster(down=first_line(error))))
            return
        except Exception as error:  # noqa: BLE001 - versions that differ, and whatever else Ray may raise
            self._say(NodeReport(cluster=Cluster(refused=first_line(error))))
            return
        while True:
            nodes = await asyncio.to_thread(ray.nodes)
            self._alive = {node["NodeID"]: node for node in nodes if node["Alive"]}
            for number in self._alive.keys() - self._known:
                if self._has_device(number):
                    self._start(self._keep_agent(number, self._alive[number]))
            self._known = set(self._alive)
            await asyncio.sleep(0)  # those that were just met are counted as starting
            self._tell_cluster()
            await asyncio.sleep(_LOOK_S)

    def _has_device(self, number: str) -> bool:
        return bool(self._alive[number]["Resources"].get(self._wanted))

    async def _keep_agent(self, number: str, node: dict[str, Any]) -> None:
        """Have an agent on the node while it lives, and another one if that dies alone."""
        name = f"{node['NodeManagerHostname']} ({number[:6]})"
        why, deaths = "", 0
        while number in self._alive and deaths < _DEATHS:
            began_s = self._loop.time()
            self._proxies[number] = proxy = AgentProxy(number, self._terms, node["Resources"], self._say)
            try:
                await proxy.serve(self._tell_cluster)
                return  # it was let go
            except Exception as error:  # noqa: BLE001 - the node must not be forgotten, whatever it is
                if proxy.closed:
                    return
                if not isinstance(error, ray.exceptions.RayError):
                    traceback.print_exc()
                why = first_line(error)
            finally:
                del self._proxies[number]
                proxy.cancel()
                self._say(NodeReport(number, gone=why))
                self._tell_cluster()
            # After long service it may have been the network; a node that is dead is soon known to be.
            deaths = 1 if self._loop.time() - began_s > _SERVICE_S else deaths + 1
            await asyncio.sleep(2.0 * deaths)
        if number in self._alive:
            remedy = f"look into Ray's logs on {name}; memory may be short there"
            self._say(NodeReport(number, aside=NodeAside(name, f"its agent ended {_DEATHS} times: {why}", remedy)))

    async def _leave(self) -> None:
        """End all agents in good order, then this process."""
        await asyncio.gather(*(proxy.close() for proxy in self._proxies.values()), return_exceptions=True)
        # At once: Ray's own farewell may take seconds, and its cluster notices anyway.
        os._exit(0)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell_cluster(self) -> None:
        proxies = self._proxies.values()
        preparing = sum(each.preparing for each in proxies)
        starting = sum(not each.preparing and not each.ready for each in proxies)
        cluster = Cluster(starting, preparing, sum(not self._has_device(number) for number in self._alive))
        if cluster != self._told:
            self._told = cluster
            self._say(NodeReport(cluster=cluster))


def connect(address: str) -> None:
    """Make this process a driver. Raises OSError, and whatever Ray finds wrong."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        # Ray would try for minutes if nothing listens.
        socket.create_connection((host, int(port)), _ANSWER_S).close()
    ray.init(address=address, namespace="chunkvisor", log_to_driver=False, configure_logging=False)


def first_line(error: BaseException) -> str:
    """Put an error into a line for people."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return words if len(words) <= _WORDS else f"{words[:_WORDS]}…"


def survey_of(address: str) -> Survey:
    """Count what the cluster has."""
    try:
        connect(address)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return Survey(problem=first_line(error))
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    processors, gpus = (int(sum(each.get(name, 0) for each in alive)) for name in ("CPU", "GPU"))
    return Survey(len(alive), processors, gpus)


def main() -> None:
    """Serve the parent at standard input, or print a survey."""
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(asdict(survey_of(sys.argv[1]))) + "\n")
        sys.stdout.flush()
        os._exit(0)
    parent = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    with parent.makefile("rb") as orders:
        if (begin := from_json(Begin, orders.readline())) is not None:
            Bridge(parent, orders, begin).run()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
