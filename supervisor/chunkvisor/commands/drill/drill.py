"""The drill: one undisturbed run, then one for each fault, each held against the first; `finding` judges."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from chunkvisor.assemble.manifest import read_finished
from chunkvisor.commands.drill.faults import DrillFault, Place, Provoked
from chunkvisor.commands.drill.finding import Finding, Heard, Run, Vectors, action, difference, problem, seen_as, took_s
from chunkvisor.commands.drill.places import NotPossibleError, limited_memory, small_disk
from chunkvisor.commands.drill.saboteur import STRUCK_CHUNK, Command, in_struck_chunk, wherever
from chunkvisor.commands.drill.scratch import CHUNKS, ROWS, Scratch
from chunkvisor.engine.fresh import worker_command
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.events.attempt import ChunkCommitted
from chunkvisor.events.event import Event
from chunkvisor.events.journal import read_events
from chunkvisor.events.output import OutputOpened
from chunkvisor.events.run import Waiting
from chunkvisor.events.state import RunState
from chunkvisor.ingest.table import StagedTable
from chunkvisor.observe.observer import Observer
from chunkvisor.observe.status import read_status
from chunkvisor.store.attemptlogs import read_tail
from chunkvisor.store.disk import free_bytes
from chunkvisor.store.layout import Layout
from chunkvisor.supervise.request import Request
from chunkvisor.supervise.session import run
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Fault, Spec
from chunkvisor_worker.contract.wire import read_message

_STALL_FLOOR_S = 2.0
_DISK_BYTES = 256 << 20
_HEADROOM_BYTES = 512 << 20
_LOOK_S = 0.005


class Witness(Observer):
    """Keeps what a run tells, and shows none of it."""

    def __init__(self, on_event: Callable[[Event], None] = lambda _event: None) -> None:
        self.heard: list[Heard] = []
        self._on_event = on_event

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Keep the event."""
        self.heard.append(Heard(event, time.monotonic()))
        self._on_event(event)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What the other runs are held against."""

    vectors: Vectors
    dtype: str
    """Of the weights."""
    took_s: float
    """For the chunk that is struck in the others."""
    poison: int
    """The text that poison-row takes."""
    poisoned: list[int]
    """Rows that have it."""
    peak_bytes: int
    """Of memory, of the largest process of the run."""


@dataclass(slots=True)
class Drill:
    """Provokes faults in runs of one config, in a scratch folder."""

    scratch: Scratch
    good: Undisturbed = field(init=False)

    def prepare(self) -> None:
        """Make the undisturbed run. Raises Halt where it does not complete: there is nothing to drill then."""
        scratch = self.scratch
        workdir = scratch.workdir("undisturbed")
        done = self._run(workdir, worker_command)
        opened = next((heard.event for heard in done.heard if isinstance(heard.event, OutputOpened)), None)
        if done.code == ExitCode.COMPLETE and opened is not None and opened.chunks < CHUNKS:
            if opened.distinct < CHUNKS:
                raise config_error(
                    f"output {scratch.output} has {opened.distinct} different texts in its first {ROWS} rows",
                    why=f"a drill needs {CHUNKS}: one chunk before the fault, one that meets it, one after",
                    remedy="put an output with more texts first",
                )
            scratch.chunk_size = opened.distinct // CHUNKS
            workdir = scratch.workdir("undisturbed-smaller")
            done = self._run(workdir, worker_command)
        if done.code != ExitCode.COMPLETE:
            raise Halt(
                ExitCode(done.code),
                "the undisturbed run did not complete, so there is nothing to drill",
                why=done.words,
                remedy="correct what made it fail (--keep keeps the folder named above, with its logs), or put an "
                "output whose first rows are good first",
            )
        scratch.read_from(workdir)
        phases = [heard.event.phase_s for heard in done.heard if isinstance(heard.event, ChunkCommitted)]
        longest_s = max(each.get("forward", 0.0) + each.get("write", 0.0) for each in phases)
        scratch.stall_s = max(_STALL_FLOOR_S, 3 * longest_s)
        layout = Layout(workdir).output(scratch.output)
        manifest, table = read_finished(layout), StagedTable.open(layout.table)
        assert manifest is not None
        poison = STRUCK_CHUNK * scratch.chunk_size + scratch.chunk_size // 3
        self.good = Undisturbed(
            vectors=np.load(layout.final, allow_pickle=False),
            dtype=manifest["model"]["dtype"],
            took_s=took_s([done], STRUCK_CHUNK) or 0.0,
            poison=poison,
            poisoned=np.flatnonzero(table.row_text(0, table.rows) == poison).tolist(),
            # In KiB on Linux (getrusage(2)).
            peak_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10,
        )

    def provoke(self, fault: DrillFault) -> Finding:
        """One fault, and what came of it. Raises Halt (130, 143) where the drill is to stop."""
        workdir = self.scratch.workdir(fault.name)
        try:
            seen, runs = self._strike(fault, workdir)
        except NotPossibleError as error:
            return Finding(fault.name, Provoked.SKIPPED, problem=str(error))
        final = self.scratch.folder / f"{fault.name}.npy"
        if not final.exists():
            final = Layout(workdir).output(self.scratch.output).final
        found = np.load(final, allow_pickle=False) if final.exists() else None
        struck = Layout(workdir).output(self.scratch.output).attempt(STRUCK_CHUNK, 1)
        simulated = self.scratch.device.partition(":")[0] not in fault.real_on
        simulated |= "chunkvisor drill: simulated" in read_tail(struck.log)
        record = read_message(Fault, struck.fault)
        good, took = self.good, took_s(runs, STRUCK_CHUNK)
        poisoned = good.poisoned if fault.place is Place.ROW else []
        return Finding(
            fault.name,
            Provoked.SIMULATED if simulated else Provoked.REAL,
            seen,
            action(runs, record.batch_rows if record else 0) if fault.place is not Place.SUPERVISOR else "run again",
            None if took is None else max(0.0, took - good.took_s),
            difference(good.vectors, found) if found is not None and found.shape == good.vectors.shape else None,
            problem(fault, seen, runs, good.vectors, found, poisoned, good.dtype),
        )

    def _strike(self, fault: DrillFault, workdir: Path) -> tuple[str, list[Run]]:
        """(what it was seen as, the runs). Raises NotPossibleError."""
        match fault.place:
            case Place.SUPERVISOR:
                return self._kill_the_run(workdir)
            case Place.DISK:
                return self._fill_the_disk(fault, workdir)
            case Place.MEMORY:
                limit_bytes = _HEADROOM_BYTES + 2 * self.good.peak_bytes
                with limited_memory(limit_bytes):
                    runs = [self._run(workdir, in_struck_chunk(fault.name, 2 * limit_bytes), standby=0)]
            case Place.ROW:
                runs = [self._run(workdir, wherever(fault.name, self.good.poison))]
            case Place.WORKER:
                # One of the setup is tried again where a chunk has worked before: none may be struck ahead of that.
                standby = 0 if fault.seen_as is Outcome.SETUP else None
                runs = [self._run(workdir, in_struck_chunk(fault.name), stalls=fault.stalls, standby=standby)]
                if fault.exit_code is not ExitCode.COMPLETE:
                    runs.append(self._run(workdir, worker_command))
        return seen_as(runs[0]), runs

    def _fill_the_disk(self, fault: DrillFault, workdir: Path) -> tuple[str, list[Run]]:
        ballast = workdir / "ballast"

        def fill(files: AttemptFiles, spec: Spec) -> list[str]:
            if spec.chunk == STRUCK_CHUNK and spec.attempt == 1:
                with open(ballast, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, free_bytes(workdir) or 1)
            return worker_command(files, spec)

        def make_room(event: Event) -> None:
            if isinstance(event, Waiting):
                ballast.unlink(missing_ok=True)

        with ExitStack() as stack:
            stack.enter_context(small_disk(workdir, _DISK_BYTES))
            self.scratch.workdir(fault.name)  # what was there lies under the new file system
            runs = [self._run(workdir, fill, on_event=make_room, standby=0)]
            final = Layout(workdir).output(self.scratch.output).final
            if final.exists():  # to be looked at when the file system is gone
                (self.scratch.folder / f"{fault.name}.npy").write_bytes(final.read_bytes())
        return seen_as(runs[0]), runs

    def _kill_the_run(self, workdir: Path) -> tuple[str, list[Run]]:
        log_path = self.scratch.folder / "killed.log"
        with open(log_path, "wb") as log:
            process = subprocess.Popen(
                self.scratch.victim(workdir), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            events = Layout(workdir).events
            while process.poll() is None and not any(
                isinstance(entry.event, ChunkCommitted) for entry in read_events(events)
            ):
                time.sleep(_LOOK_S)
        finally:
            process.send_signal(signal.SIGKILL)
            killed_s, code = time.monotonic(), process.wait()
        said = read_tail(log_path).strip().rpartition("\n")[2]
        words = "" if code == -signal.SIGKILL else f"it ended with {code} before it could be killed: {said}"
        seen = str(read_status(workdir).state)
        killed = Run(0, words, killed_s=killed_s)
        return "" if words else seen, [killed, self._run(workdir, worker_command)]

    def _run(
        self,
        workdir: Path,
        command: Command,
        *,
        stalls: bool = False,
        standby: int | None = None,
        on_event: Callable[[Event], None] = lambda _event: None,
    ) -> Run:
        witness, words = Witness(on_event), ""
        try:
            loaded = self.scratch.config(workdir, stalls=stalls, standby=standby)
            code = run(Request(loaded, max_rows=ROWS, command=command), witness)
        except Halt as halt:
            if halt.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
                raise
            code, words = halt.code, f"{halt.what}; {' '.join(halt.why.split())}" if halt.why else halt.what
        return Run(int(code), words, witness.heard)
