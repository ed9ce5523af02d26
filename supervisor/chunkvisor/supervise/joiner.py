"""Joins finished outputs beside the running workers, one at a time, in a thread of its own.

It touches a ledger from that thread only to read.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from chunkvisor.assemble.chunkreader import ChunkDamagedError
from chunkvisor.events.attempt import ChunkDamaged as ChunkDamagedEvent
from chunkvisor.events.event import Emit
from chunkvisor.events.output import Assembling, OutputComplete, WaitingToJoin
from chunkvisor.store.disk import DISK_ERRNOS
from chunkvisor.store.refusal import disk_halt
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.signals import Signals
from chunkvisor.supervise.stimuli import ChunkDamaged, Joined, JoinStimulus, JoinStopped, JoinWaits


class Joiner:
    """Outputs on their way to a final file."""

    def __init__(self, outputs: Sequence[OutputRun], signals: Signals, emit: Emit) -> None:
        self._outputs = outputs
        self._signals = signals
        self._emit = emit
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="join")
        self._under_way: dict[int, Future[dict[str, Any]]] = {}
        self._stopped = False

    def begin(self, number: int) -> None:
        """Join the output: all its chunks are committed."""
        output = self._outputs[number]
        self._emit(Assembling(output.name, output.chunks))
        self._under_way[number] = future = self._pool.submit(output.finish, self._still_wanted)
        future.add_done_callback(lambda _: self._signals.wake())

    def collect(self) -> Iterator[JoinStimulus]:
        """What has been joined, or could not be. Raises OSError for what has nothing to do with the disk."""
        for number, future in list(self._under_way.items()):
            if not future.done():
                continue
            del self._under_way[number]
            output = self._outputs[number]
            try:
                self._emit(OutputComplete(output.name, **future.result()))
                output.joined = True
                yield Joined(number)
            except ChunkDamagedError as error:
                self._emit(ChunkDamagedEvent(output.name, error.chunk, error.why))
                output.ledger.discard(error.chunk)
                yield ChunkDamaged(number, error.chunk)
            except InterruptedError:
                yield JoinStopped(number)
            except OSError as error:
                if error.errno not in DISK_ERRNOS:
                    raise
                self._emit(WaitingToJoin(output.name, str(error)))
                yield JoinWaits(number, disk_halt(error, output.ledger.layout.workdir))

    def stop(self) -> None:
        """Give up what is under way; a half-made file is begun anew by the next run."""
        self._stopped = True

    def close(self) -> None:
        """Stop, and wait for it."""
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _still_wanted(self) -> None:
        if self._stopped or self._signals.stopping:
            raise InterruptedError("stopped while joining chunks")
