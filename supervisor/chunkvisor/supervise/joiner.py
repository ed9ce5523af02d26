"""Joins finished outputs beside the running workers, one at a time, in a thread of its own.

It never touches a ledger from that thread but to read; what it finds damaged goes back to the backlog here.
"""

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from chunkvisor.assemble.chunkreader import ChunkDamagedError
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import Emit
from chunkvisor.store.diskneed import DISK_ERRNOS
from chunkvisor.supervise.backlog import Backlog, Task
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.signals import Signals

_MAX_DAMAGED = 3
"""So many damaged chunks of one output are no accident any more."""


_PAUSE_S = 5.0


class Joiner:
    """Outputs whose chunks are all committed, on their way to a final file."""

    def __init__(
        self, outputs: Sequence[OutputRun], backlog: Backlog, wait_timeout_s: float, signals: Signals, emit: Emit
    ) -> None:
        self._outputs = outputs
        self._backlog = backlog
        self._wait_timeout_s = wait_timeout_s
        self._signals = signals
        self._emit = emit
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="join")
        self._under_way: dict[int, Future[dict[str, Any]]] = {}
        self._damaged: Counter[int] = Counter()
        self._full_since_s: dict[int, float] = {}
        self._again_s: dict[int, float] = {}
        self._closed = False

    @property
    def working(self) -> bool:
        """Whether an output is being joined."""
        return bool(self._under_way)

    @property
    def waiting(self) -> bool:
        """Whether a join waits for disk space."""
        return bool(self._again_s)

    def submit_if_complete(self, number: int) -> None:
        """Join the output if all its chunks are committed."""
        output = self._outputs[number]
        if output.ledger.complete and number not in self._under_way:
            self._emit("assembling", output=output.name, chunks=output.ledger.plan.count)
            self._under_way[number] = future = self._pool.submit(output.finish, self._still_wanted)
            future.add_done_callback(lambda _: self._signals.wake())

    def collect(self) -> None:
        """Take note of what has been joined. Raises Halt where the disk is failing; OSError."""
        for number, due_s in list(self._again_s.items()):
            if time.monotonic() >= due_s:
                del self._again_s[number]
                self.submit_if_complete(number)
        for number, future in list(self._under_way.items()):
            if not future.done():
                continue
            del self._under_way[number]
            try:
                self._emit("output_complete", output=self._outputs[number].name, **future.result())
            except ChunkDamagedError as error:
                self._compute_again(number, error)
            except InterruptedError:
                continue
            except OSError as error:
                self._wait_for_disk(number, error)

    def _wait_for_disk(self, number: int, error: OSError) -> None:
        """Have a join that met a full disk tried again for a while. Raises the error when that has lasted too long."""
        now_s = time.monotonic()
        since_s = self._full_since_s.setdefault(number, now_s)
        if error.errno not in DISK_ERRNOS or now_s - since_s >= self._wait_timeout_s:
            raise error
        self._again_s[number] = now_s + _PAUSE_S
        self._emit("waiting_to_join", output=self._outputs[number].name, reason=str(error))

    def close(self) -> None:
        """Stop what is under way; a half-made file is begun anew by the next run."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _compute_again(self, number: int, error: ChunkDamagedError) -> None:
        output = self._outputs[number]
        self._damaged[number] += 1
        if self._damaged[number] > _MAX_DAMAGED:
            raise Halt(
                ExitCode.DISK,
                f"chunk after chunk of {output.name} turns out damaged; the last one is {error.chunk}",
                why="the disk or the memory of this machine is failing",
                remedy="move the workdir to another disk, then run the same command again",
            )
        self._emit("chunk_damaged", output=output.name, chunk=error.chunk, why=error.why)
        output.ledger.discard(error.chunk)
        if self._backlog.handed_out(number, error.chunk):  # else it comes to it by itself
            bounds = output.ledger.plan.bounds(error.chunk)
            self._backlog.put_back(Task(time.monotonic(), number, error.chunk, *bounds))

    def _still_wanted(self) -> None:
        if self._closed or self._signals.stopping:
            raise InterruptedError("stopped while joining chunks")
