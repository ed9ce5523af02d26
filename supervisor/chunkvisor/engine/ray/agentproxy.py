"""The bridge's side of one agent: hands it orders and files, and brings back its news and the files of its workers.

Vectors travel in pieces, few of them at a time, so that the object store stays small.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from chunkvisor.engine.ray.agent import PIECE_BYTES, Agent
from chunkvisor.engine.ray.wire import Ended, Order, Report, Terms
from chunkvisor_worker.contract.beatfile import write_beat
from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles, open_new, open_regular
from chunkvisor_worker.contract.wire import from_json, to_json

_TRAVELLING = asyncio.Semaphore(4)
"""Held while the files of a worker travel: few at a time, over the whole cluster."""
_CLOSE_S = 8.0


class AgentProxy:
    """One agent, from its start to its end."""

    def __init__(self, node: str, terms: Terms, gpus: float, cores: float, say: Callable[[Report], None]) -> None:
        self._node = node
        self._terms = terms
        self._say = say
        self._folders: dict[int, Path] = {}
        self._errands: dict[int, asyncio.Task[None]] = {}
        """The last thing under way for each worker, and for the node itself: the next begins after it."""
        self._tasks: set[asyncio.Task[None]] = set()
        place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        actor: Any = ray.remote(Agent).options(
            num_cpus=0, num_gpus=gpus, max_restarts=0, max_task_retries=0, max_concurrency=16, scheduling_strategy=place
        )
        self._agent = actor.remote(to_json(terms), node, cores)
        self.preparing = self.ready = False
        """How far it is: placed on its node, able to work."""
        self.closed = False
        """Whether it is to end."""

    async def serve(self, on_change: Callable[[], None]) -> None:
        """Pass on the agent's news until it is closed or set aside. Raises RayError where it is lost."""
        await self._agent.here.remote()
        self.preparing = True
        on_change()
        hello = from_json(Report, await self._agent.hello.remote())
        self.preparing, self.ready = False, True
        on_change()
        if hello is not None:
            self._say(hello)
        while hello is not None and hello.up is not None and not self.closed:
            for data in await self._agent.news.remote():
                if (report := from_json(Report, data)) is not None:
                    self._pass_on(report)
                    if report.aside is not None:
                        await self.close()

    def obey(self, order: Order) -> None:
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
        """The agent has ended: nothing is fetched from it any more."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._agent)

    def _pass_on(self, report: Report) -> None:
        if report.ended is not None:
            self._errand(report.worker, self._bring_home(report.worker, report.ended))
            return
        folder = self._folders.get(report.worker)
        if folder is not None and report.beat is not None and not self._terms.shared:
            with contextlib.suppress(OSError):  # the next one may fit on the disk
                write_beat(AttemptFiles(folder).beat, report.beat)
        self._say(replace(report, beat=None))

    async def _hand_on(self, order: Order) -> None:
        if order.launch is not None and not self._terms.shared:
            files = AttemptFiles(Path(order.launch.folder))
            try:
                async with _TRAVELLING:
                    for path in (files.texts, files.spec):
                        await self._put(order.worker, path)
            except OSError:  # here or there: Ray raises what was raised there
                self._say(Report(self._node, order.worker, ended=Ended(WorkerExit.DISK_FULL)))
                return
        await self._agent.order.remote(to_json(order))

    async def _put(self, worker: int, path: Path) -> None:
        with open_regular(path) as file:
            first = True
            while (piece := file.read(PIECE_BYTES)) or first:
                await self._agent.put.remote(worker, path.name, piece, first=first)
                first = False

    async def _bring_home(self, worker: int, ended: Ended) -> None:
        files = AttemptFiles(self._folders.pop(worker))
        self._errands.pop(worker, None)
        if not self._terms.shared:
            try:
                async with _TRAVELLING:
                    # What a worker that failed had encoded comes along; the result is the last.
                    of_batches = (files.batches, files.partial) if ended.returncode else ()
                    of_texts = (*of_batches, files.cut, files.vectors)
                    for path in (files.log, files.beat, files.fault, *of_texts, files.result):
                        await self._fetch(worker, path)
            except OSError:
                # The disk here cannot take it; the supervisor knows what that means.
                ended = replace(ended, returncode=int(WorkerExit.DISK_FULL))
        self._say(Report(self._node, worker, ended=ended))
        await self._agent.order.remote(to_json(Order(self._node, worker, discard=True)))

    async def _fetch(self, worker: int, path: Path) -> None:
        """Bring a file of an ended worker, if there is one."""
        if (piece := await self._agent.read.remote(worker, path.name, 0)) is None:
            return
        partial = path.with_name(f".{path.name}.partial")
        with open_new(partial) as file:
            while len(piece):
                await asyncio.to_thread(file.write, piece.data)
                del piece  # its place in the object store is free from here on
                piece = await self._agent.read.remote(worker, path.name, file.tell())
        partial.replace(path)

    def _errand(self, worker: int, work: Coroutine[Any, Any, None]) -> None:
        before = self._errands.get(worker)

        async def after() -> None:
            if before is not None:
                await asyncio.wait([before])
            # Of a lost agent hears whoever waits for its news.
            with contextlib.suppress(ray.exceptions.RayError):
                await work

        task = asyncio.get_running_loop().create_task(after())
        self._errands[worker] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
