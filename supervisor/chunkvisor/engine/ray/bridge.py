"""`python -m chunkvisor.engine.ray.bridge`: Ray's driver, which passes on what supervisor and agents say.

Standard input is a socket to the supervisor, whose end is the bridge's end.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Coroutine, Iterable
from typing import Any

import ray

from chunkvisor.engine.ray.agentproxy import AgentProxy
from chunkvisor.engine.ray.wire import Begin, Cluster, NodeAside, Order, Report
from chunkvisor_worker.contract.wire import from_json, to_json

_LOOK_S = 1.0
"""Between two questions to the cluster for its nodes."""
_DEATHS = 3
"""After this number of deaths in a row, each soon after its start, an agent is not started again on the node."""
_SERVICE_S = 120.0
_WORDS = 120
_ANSWER_S = 10.0
_END_S = 10.0


class Bridge:
    """One connection to a cluster; everything but the reading of the socket happens in one thread's event loop."""

    def __init__(self, supervisor: socket.socket, orders: Iterable[bytes], begin: Begin) -> None:
        self._socket = supervisor
        self._orders = orders
        self._address = begin.address
        self._terms = begin.terms
        self._wanted = "CPU" if "cpu" in begin.terms.device else "GPU"
        self._loop = asyncio.new_event_loop()
        self._proxies: dict[str, AgentProxy] = {}
        self._alive: dict[str, dict[str, Any]] = {}
        self._known: set[str] = set()
        self._without: set[str] = set()
        self._told: Cluster | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> None:
        """Serve until the supervisor has ended, or says so."""
        threading.Thread(target=self._read, name="supervisor", daemon=True).start()
        self._loop.run_until_complete(self._serve())

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._orders:
                if (order := from_json(Order, line)) is not None:
                    self._loop.call_soon_threadsafe(self._obey, order)
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop)
        # Where Ray holds up the event loop.
        threading.Event().wait(_END_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def say(self, report: Report) -> None:
        """Tell the supervisor."""
        with contextlib.suppress(OSError):  # it is gone; the reader sees that, too
            self._socket.sendall(to_json(report))

    def _obey(self, order: Order) -> None:
        if order.close:
            self._start(self._leave())
            return
        if (proxy := self._proxies.get(order.node)) is None:
            return  # it has ended, which the supervisor has been told
        if order.release:
            self._start(proxy.close())
        else:
            proxy.obey(order)

    async def _serve(self) -> None:
        try:
            await asyncio.to_thread(connect, self._address)
        except (OSError, ValueError) as error:
            self.say(Report(cluster=Cluster(down=first_line(error))))
            return
        except Exception as error:  # noqa: BLE001 - versions that differ, and whatever else Ray may raise
            self.say(Report(cluster=Cluster(refused=first_line(error))))
            return
        while True:
            nodes = await asyncio.to_thread(ray.nodes)
            self._alive = {node["NodeID"]: node for node in nodes if node["Alive"]}
            for number, node in self._alive.items():
                if number in self._known:
                    continue
                self._known.add(number)
                if node["Resources"].get(self._wanted):
                    self._start(self._keep_agent(number, node))
                else:
                    self._without.add(number)
            await asyncio.sleep(0)  # those that were just met are counted as starting
            self._known &= self._alive.keys()
            self._without &= self._alive.keys()
            self._tell_cluster()
            await asyncio.sleep(_LOOK_S)

    async def _keep_agent(self, number: str, node: dict[str, Any]) -> None:
        """Have an agent on the node while it lives, and another one if that dies alone."""
        name, resources = f"{node['NodeManagerHostname']} ({number[:6]})", node["Resources"]
        gpus = float(resources["GPU"]) if self._wanted == "GPU" else 0.0
        why, deaths = "", 0
        while number in self._alive and deaths < _DEATHS:
            began_s = self._loop.time()
            proxy = AgentProxy(number, self._terms, gpus, float(resources.get("CPU", 0)), self.say)
            self._proxies[number] = proxy
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
                self.say(Report(number, gone=why))
                self._tell_cluster()
            # After long service it may have been the network; a node that is dead is soon known to be.
            deaths = 1 if self._loop.time() - began_s > _SERVICE_S else deaths + 1
            await asyncio.sleep(2.0 * deaths)
        if number in self._alive:
            remedy = f"look into Ray's logs on {name}; memory may be short there"
            self.say(Report(number, aside=NodeAside(name, f"its agent ended {_DEATHS} times: {why}", remedy)))

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
        cluster = Cluster(starting, preparing, len(self._without))
        if cluster != self._told:
            self._told = cluster
            self.say(Report(cluster=cluster))


def connect(address: str) -> None:
    """Make this process a driver. Raises OSError, and whatever Ray finds wrong."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        # Ray would try for minutes where nobody listens.
        socket.create_connection((host, int(port)), _ANSWER_S).close()
    ray.init(address=address, namespace="chunkvisor", log_to_driver=False, configure_logging=False)


def first_line(error: BaseException) -> str:
    """An error in a line for people."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return words if len(words) <= _WORDS else f"{words[:_WORDS]}…"


def main() -> None:
    """Serve the supervisor at standard input."""
    supervisor = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    with supervisor.makefile("rb") as orders:
        if (begin := from_json(Begin, orders.readline())) is not None:
            Bridge(supervisor, orders, begin).run()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
