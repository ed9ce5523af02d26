"""Ties the worker to its parent: by its standard input, by signals, and by its beat.

Standard input is a gate, before which the worker waits for its device, and a lifeline: its end is
the worker's end. The beat is written by the work itself, not by a thread, so that a hang shows.
"""

import ctypes
import fcntl
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from chunkvisor_worker.contract.exits import PARENT_PID, PARENT_PIPE, WorkerExit
from chunkvisor_worker.contract.messages import LEAVE, Beat, Limits, Phase, merge_peaks
from chunkvisor_worker.contract.wire import from_json, to_json

if TYPE_CHECKING:  # a probe imports no numpy, which may be what is broken
    from chunkvisor_worker.batching import Indices

# Sent on the lifeline when the worker is at the gate, and when it needs its device no longer.
CALL = b"!"
_SIZE_BYTES = 2048  # of every beat, so that nothing is left of a longer one
_INTERVAL_S = 0.25  # between two beats within a phase, at least; a new phase is written at once


def open_own(path: Path, flags: int) -> int:
    """Open a file of the worker with a descriptor above 2.

    An encoder's code may have closed 0, 1 or 2: what is printed must not go into this file.
    """
    fd = os.open(path, flags, 0o666)
    if fd > 2:
        return fd
    own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return own


class Gate:
    """Reads standard input in a thread: a line opens the gate, the end ends the worker.

    It has a separate descriptor, so that an encoder's code may read or close standard input.
    """

    def __init__(self) -> None:
        self._lifeline = os.dup(0)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        self._lines: queue.SimpleQueue[Limits] = queue.SimpleQueue()
        self.leaving = False  # whether no further batch is to begin
        threading.Thread(target=self._read_lines, name="lifeline", daemon=True).start()

    def wait_for_go(self) -> Limits:
        """Say that this worker is ready, and block until the parent lets it use the device."""
        self.call()
        return self._lines.get()

    def call(self) -> None:
        """Have the parent read the beat now."""
        with suppress(OSError):  # the parent reads the beat now and then anyway
            os.write(self._lifeline, CALL)

    def _read_lines(self) -> None:
        # ECONNRESET if the other end closed before it read our byte: the end as well.
        with suppress(OSError), open(self._lifeline, "rb") as lines:
            for line in lines:
                limits = from_json(Limits, line)
                if limits:
                    self._lines.put(limits)
                self.leaving = self.leaving or line == LEAVE
        # The parent is gone: end this process, and with it whatever it has started.
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(WorkerExit.ORPHANED)


def exit_now(code: WorkerExit, why: str = "") -> NoReturn:
    """End the process at once, without exit handlers, which are other people's code."""
    for stream, words in ((sys.stdout, ""), (sys.stderr, f"{why}\n" if why else "")):
        # A closed or full log must not change the exit code.
        with suppress(OSError, ValueError):
            stream.write(words)
            stream.flush()
    os._exit(code)


def kill_group_with_parent() -> None:
    """Have the kernel kill this process group when the parent ends, if that can be done.

    The parent's pipe sends the signal (F_SETSIG in fcntl(2)) to this process and to all that it
    starts, unless they leave its group.
    """
    path = os.environ.get(PARENT_PIPE)
    if not path or os.getpgid(0) != os.getpid():
        return
    with suppress(OSError):  # no procfs, or the parent has the other end open
        pipe = open_own(Path(path), os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
        os.read(pipe, 1)
        os._exit(WorkerExit.ORPHANED)  # the parent ended before these calls


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, and its group if that can be done."""
    parent_pid = os.environ.get(PARENT_PID)
    if parent_pid:
        kill_group_with_parent()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != int(parent_pid):  # it died before the call
            os._exit(WorkerExit.ORPHANED)


def be_first_victim() -> None:
    """Have the kernel end this process, not the parent, when memory runs out (proc(5))."""
    with suppress(OSError):  # no procfs, or a stricter sandbox
        Path("/proc/self/oom_score_adj").write_text("500")


class BeatWriter:
    """Writes what a job and its encoder are doing; each call is a sign of life.

    Each method raises OSError if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        # called with the texts of each batch that begins
        self.on_batch: Callable[[Indices], None] | None = None
        self.gate: Gate | None = None
        self._written_s = 0.0
        self._phase_since_s = time.monotonic()
        self._go_s: float | None = None
        self.beat = Beat(0, os.getpid(), Phase.START)  # as it will be written next
        self.phase_s: dict[str, float] = {}
        # The encoder's texts by their position in the attempt; () for a canary of another chunk.
        self.positions: Indices | tuple[()] = ()

    @property
    def leaving(self) -> bool:
        """Say whether no further batch is to begin; those under way are finished."""
        return self.gate is not None and self.gate.leaving

    def update(self, **news: Any) -> None:
        """Set fields of the next beat."""
        self.beat = replace(self.beat, **news)

    def phase(self, phase: Phase) -> None:
        """Begin a phase, or continue it. A phase may come again: its times add up."""
        now = time.monotonic()
        before = self.beat.phase
        if phase is before:
            self.tick()
            return
        self.phase_s[str(before)] = round(
            self.phase_s.get(before, 0.0) + now - self._phase_since_s, 4
        )
        self._phase_since_s = now
        if before is Phase.READY:
            self._go_s = now
        if phase is Phase.FORWARD and self._go_s is not None:
            self.update(opening_s=round(now - self._go_s, 4))
        self.update(phase=phase)
        self.write()

    def tick(self) -> None:
        """Give a sign of life within the phase."""
        if time.monotonic() - self._written_s >= _INTERVAL_S:
            self.write()

    def batch(self, indices: "Indices", tokens: int, rows: int = 0) -> None:
        """Begin to encode the encoder's texts at `indices`, at most `rows` (0 = all) at once.

        `tokens` includes padding; 0 = unknown.
        """
        if self.on_batch:
            self.on_batch(indices)
        if self.beat.batch_rows == 0:
            # Written at once: the largest batch comes first, and the kernel may kill over it.
            self._written_s = 0.0
        self.update(batch_rows=rows or len(indices), batch_tokens=tokens)
        self.tick()

    def advance(self, rows: int, tokens: int, padded_tokens: int) -> None:
        """End a batch: rows, tokens without padding, tokens with padding."""
        before = self.beat
        self.update(
            rows_done=before.rows_done + rows,
            tokens_done=before.tokens_done + tokens,
            padded_tokens=before.padded_tokens + padded_tokens,
        )
        self.tick()

    def note_gpu_memory(self, stats: Mapping[str, int], tokens: int) -> None:
        """Note the peaks of a batch of this many padded tokens, by `torch.cuda.memory_stats`."""
        kinds = ("reserved_bytes", "allocated_bytes")
        peaks = {kind: stats[f"{kind}.all.peak"] for kind in kinds}
        self.update(memory=merge_peaks(self.beat.memory, peaks))
        if tokens:
            size = str(1 << (tokens - 1).bit_length())
            batch = {size: peaks["allocated_bytes"]}
            self.update(batch_peaks=merge_peaks(self.beat.batch_peaks, batch))

    def ended(self) -> None:
        """End the attempt, whose result is written; for a drill to override."""

    def write(self) -> None:
        """Write the beat now."""
        self._written_s = time.monotonic()
        resident = {"resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}
        number = self.beat.seq + 1
        self.update(seq=number, end=number, memory=self.beat.memory | resident)
        if self._fd < 0:
            self._path.unlink(missing_ok=True)
            self._fd = open_own(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        # In place: a rename for each beat takes 0.2 to 0.6 ms, and has the disk write 4 KB.
        os.pwrite(self._fd, to_json(self.beat).ljust(_SIZE_BYTES), 0)
