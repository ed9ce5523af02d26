"""Joins finished outputs while workers run, one at a time, in a thread that only reads a ledger.

The scheduler has no part in it: it hears of chunks that turn out damaged, and has them computed again.
"""

import errno
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from chunkvisor.assemble.reader import ChunkDamagedError
from chunkvisor.events.event import Assembling, Emit, OutputComplete, Warned
from chunkvisor.heart.messages import Event, Lost
from chunkvisor.heart.output import OutputRun
from chunkvisor.heart.run import Signals
from chunkvisor.heart.store import Keeper
from chunkvisor.store.disk import DISK_ERRNOS, disk_halt
from chunkvisor.words import damaged_again

MAX_DAMAGED = 3
"""More damaged chunks of one output are not an accident."""

PAUSE_S = 5.0
"""Before a join that met a full disk is tried again."""


class Joins:
    """Outputs on their way to a final file."""

    def __init__(
        self, outputs: Sequence[OutputRun], store: Keeper, signals: Signals, wait_timeout_s: float, emit: Emit
    ) -> None:
        self._outputs, self._store, self._signals, self._emit = outputs, store, signals, emit
        self._wait_timeout_s = wait_timeout_s
        # One at a time: two joins would share the disk, and both would take longer.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="join")
        self._under_way: dict[int, Future[dict[str, Any]]] = {}
        self._damaged: Counter[int] = Counter()
        self._waits_since_s: dict[int, float] = {}
        self._again_s: dict[int, float] = {}
        """When a join that met a full disk is tried again."""
        self._stopped = False

    @property
    def working(self) -> bool:
        """Whether an output is being joined."""
        return bool(self._under_way)

    @property
    def waiting(self) -> bool:
        """Whether an output can be joined as soon as there is space, or another output is joined."""
        return not self._stopped and any(self._is_ready(number) for number in range(len(self._outputs)))

    def attend(self) -> list[Event]:
        """Take in what was joined, and begin what can be joined now.

        Returns what turned out damaged. Raises Halt if a disk stays full or damages one chunk after the other;
        OSError for what has nothing to do with the disk.
        """
        lost = self._collect()
        for number in range(len(self._outputs)):
            if not self._stopped and self._is_ready(number) and time.monotonic() >= self._again_s.get(number, 0.0):
                lost += self._begin(number)
        return lost

    def stop(self) -> None:
        """Give up what is under way; the next run begins a half-made file anew."""
        self._stopped = True

    def close(self) -> None:
        """Stop, and wait for it."""
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _is_ready(self, number: int) -> bool:
        output = self._outputs[number]
        if output.joined or number in self._under_way or (output.left and output.ledger.facts is None):
            return False
        return output.next_pending(0) is None and all(each.joined for each in output.awaited)

    def _begin(self, number: int) -> list[Event]:
        output, chunk = self._outputs[number], 0
        # Chunks that were found bad throughout before the dimension was known, or for which there was no space.
        while (pending := output.ledger.next_pending(chunk)) is not None:
            chunk = pending + 1
            if lost := self._store.compose(number, pending):
                return self._count(number, pending, lost)
        if output.left:
            text = "a chunk could not be put together from its parts: no space left on device"
            self._wait(number, OSError(errno.ENOSPC, text))
            return []
        self._emit(Assembling(output.name, output.ledger.plan.count))
        self._under_way[number] = future = self._pool.submit(output.finish, self._still_wanted)
        future.add_done_callback(lambda _: self._signals.wake())
        return []

    def _collect(self) -> list[Event]:
        lost: list[Event] = []
        for number, future in list(self._under_way.items()):
            # Its done-callback has woken the loop; there may be several joins, of which one is done.
            if not future.done():
                continue
            del self._under_way[number]
            output = self._outputs[number]
            try:
                self._emit(OutputComplete(output.name, **future.result()))
                output.joined = True
            except ChunkDamagedError as error:
                self._emit(
                    Warned(f"{output.name} chunk {error.chunk} is damaged and will be computed again: {error.why}")
                )
                output.ledger.discard(error.chunk)
                lost += self._count(number, error.chunk, [Lost(number, error.chunk)])
            except InterruptedError:
                self._stopped = True
            except OSError as error:
                if error.errno not in DISK_ERRNOS:
                    raise
                self._wait(number, error)
        return lost

    def _count(self, number: int, chunk: int, lost: list[Event]) -> list[Event]:
        # One damaged chunk is bit rot; chunk after chunk is a disk or memory that cannot be trusted.
        self._damaged[number] += 1
        if self._damaged[number] > MAX_DAMAGED:
            raise damaged_again(self._outputs[number].name, chunk)
        return lost

    def _wait(self, number: int, error: OSError) -> None:
        output, now_s = self._outputs[number], time.monotonic()
        self._emit(Warned(f"{output.name}: waiting for disk space: {error}"))
        if now_s - self._waits_since_s.setdefault(number, now_s) >= self._wait_timeout_s:
            halt = disk_halt(error, output.ledger.layout.workdir)
            halt.why = self._store.with_need(halt.why)
            raise halt
        self._again_s[number] = now_s + PAUSE_S

    def _still_wanted(self) -> None:
        if self._stopped or self._signals.stopping:
            raise InterruptedError("stopped while joining chunks")
