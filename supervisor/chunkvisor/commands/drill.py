"""The fire drill: one undisturbed run, then one run for each fault, whose vectors must be those of the first.

The faults strike as in integration tests (`chunkvisor.testing`): in the first worker that gets to the second chunk.
Each run has a new workdir in a scratch folder next to the config's workdir.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor import testing
from chunkvisor.assemble.forms import FORM_KEYS
from chunkvisor.assemble.manifest import read_finished
from chunkvisor.config.load import LoadedConfig, load
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.events.event import (
    AttemptFailed,
    ChunkCommitted,
    ChunkSplit,
    Event,
    LateCrash,
    LimitsLowered,
    OutputOpened,
    PartFailed,
    Quarantined,
    Waiting,
)
from chunkvisor.events.journal import read_events
from chunkvisor.events.state import RunState
from chunkvisor.show.lines import Observer
from chunkvisor.show.status import read_status
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.attempt import read_tail
from chunkvisor.store.layout import Layout, OutputLayout, mark
from chunkvisor.supervise.means import Request
from chunkvisor.supervise.session import run
from chunkvisor.testing import FAULTS, PARENT_KILLED, POISON_ROW, DrillFault
from chunkvisor.units import counted, did_you_mean
from chunkvisor_worker.contract.exits import Outcome

ROWS = 48
"""Of the source that a drill takes."""
CHUNKS = 3
"""One before the fault, one that meets it, one after."""
STRUCK_CHUNK = 1
_TOLERANCE = {"float16": 1e-2, "bfloat16": 8e-2}
"""Largest difference to the undisturbed vectors, as a share of their largest value, by the dtype of the weights: about
ten units in the last place, since another batch is rounded differently."""
_TOLERANCE_FLOAT32 = 1e-5
_ROW = f"{{:<{max(len(fault.name) for fault in FAULTS)}}}  {{:<9}}  {{:<14}}  {{:<34}}  {{}}"
_ENDED = (ExitCode.COMPLETE, ExitCode.QUARANTINED)

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a drill; the words say why it did not end with 0."""

    code: int
    words: str = ""
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Recovery:
    """One line of the table."""

    fault: str
    provoked: str
    """`real`, or `simulated` if the worker raised the exception itself."""
    seen_as: str
    action: str
    difference: float | None
    """Largest difference to the undisturbed vectors; 0 = the same, byte for byte; None = there are none."""
    problem: str
    """Why this was not a recovery; empty = all is well."""


@dataclass(frozen=True, slots=True)
class Good:
    """What the undisturbed run has made."""

    vectors: Vectors
    dtype: str
    """Of the weights."""
    poisoned: tuple[int, ...] = ()
    """Rows with the first text of the struck chunk."""


class _Witness(Observer):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Keep it."""
        self.events.append(event)


def choose(names: Sequence[str]) -> list[DrillFault]:
    """Return the faults of these names, in the table's order; all for none. Raises Halt (2) for an unknown name."""
    known = [fault.name for fault in FAULTS]
    for name in names:
        if name not in known:
            raise Halt(ExitCode.USAGE, f"there is no fault {name} to drill; {did_you_mean(name, known)}")
    return [fault for fault in FAULTS if not names or fault.name in names]


def drill(
    loaded: LoadedConfig, faults: Sequence[DrillFault], folder: Path, say: Callable[[str], object]
) -> list[Recovery]:
    """Provoke the faults in this scratch folder, and say a line for each. Raises Halt."""
    rehearsal = _Drill(loaded, folder)
    rehearsal.prepare()
    say(_ROW.format("fault", "provoked", "seen as", "action", "vectors"))
    findings = []
    for fault in faults:
        found = rehearsal.provoke(fault)
        off = found.difference
        vectors = "none" if off is None else "same bytes" if off == 0 else f"differ by {off:.0e}"
        say(_ROW.format(found.fault, found.provoked, found.seen_as or "-", found.action, vectors))
        if found.problem:
            say(f"  NOT RECOVERED: {found.problem}")
        findings.append(found)
    return findings


def to_json(findings: Sequence[Recovery]) -> list[dict[str, Any]]:
    """Return plain values; the largest difference is a number."""
    return [{**asdict(each), "recovered": not each.problem} for each in findings]


class _Drill:
    """Provokes faults in runs of the config's first output on its first device."""

    def __init__(self, loaded: LoadedConfig, folder: Path) -> None:
        self._loaded, self._folder = loaded, folder
        device = loaded.config.device
        self._output, self._device = next(iter(loaded.config.outputs)), device if isinstance(device, str) else device[0]
        self._chunk_size, self._stall_s = ROWS // CHUNKS, 0.0
        self._good: Good | None = None

    def prepare(self) -> None:
        """Make the undisturbed run. Raises Halt if it does not complete: there is nothing to drill then."""
        name = "undisturbed"
        done = self._run(name)
        opened = next((event for event in done.events if isinstance(event, OutputOpened)), None)
        if done.code == ExitCode.COMPLETE and opened is not None and opened.chunks < CHUNKS:
            if opened.distinct < CHUNKS:
                raise config_error(
                    f"output {self._output} has {opened.distinct} different texts in its first {ROWS} rows",
                    why=f"a drill needs {CHUNKS}: one chunk before the fault, one that meets it, one after",
                    remedy="Put an output with more texts first.",
                )
            self._chunk_size, name = opened.distinct // CHUNKS, "undisturbed-smaller"
            done = self._run(name)
        if done.code != ExitCode.COMPLETE:
            raise Halt(
                ExitCode(done.code),
                "the undisturbed run did not complete, so there is nothing to drill",
                why=done.words,
                remedy="Correct what made it fail (--keep keeps the folder named above, with its logs), or put an "
                "output whose first rows are good first.",
            )
        phases = [event.phase_s for event in done.events if isinstance(event, ChunkCommitted)]
        self._stall_s = max([2.0, *(3 * (each.get("forward", 0.0) + each.get("write", 0.0)) for each in phases)])
        layout = self._layout(name)
        manifest, table = read_finished(layout), StagedTable.open(layout.table)
        assert manifest is not None
        poisoned = np.flatnonzero(table.row_text(0, table.rows) == STRUCK_CHUNK * self._chunk_size).tolist()
        self._good = Good(np.load(layout.final, allow_pickle=False), manifest["model"]["dtype"], tuple(poisoned))

    def provoke(self, fault: DrillFault) -> Recovery:
        """Provoke one fault, and say what came of it. Raises Halt (130, 143) if the drill is to stop."""
        assert self._good is not None
        ran: list[Ran] = []
        seen = never = ""
        try:
            if fault.name == PARENT_KILLED:
                seen, ran = self._kill_the_run(fault.name)
            else:
                # A failed setup is retried only after a chunk has worked: no worker may get to the second before.
                standby = 0 if fault.seen_as is Outcome.SETUP else None
                with testing.fault(fault.name, chunk=STRUCK_CHUNK):
                    ran.append(self._run(fault.name, stalls=fault.seen_as is Outcome.HUNG, standby=standby))
                seen = seen_as(ran[0].events)
        except AssertionError as error:
            never = str(error)
        if fault.exit_code not in _ENDED or fault.name == PARENT_KILLED:
            ran.append(self._run(fault.name))
        layout = self._layout(fault.name)
        found = np.load(layout.final, allow_pickle=False) if layout.final.exists() else None
        simulated = self._device.partition(":")[0] not in fault.real_on
        simulated |= "chunkvisor drill: simulated" in read_tail(layout.attempt(STRUCK_CHUNK, 1).log)
        return Recovery(
            fault.name,
            "simulated" if simulated else "real",
            seen,
            "run again" if fault.name == PARENT_KILLED else action(ran),
            difference(self._good.vectors, found),
            never or problem(fault, seen, ran, self._good, found),
        )

    def _kill_the_run(self, name: str) -> tuple[str, list[Ran]]:
        """Return what `status` says of it, and the run: a worker hangs meanwhile, so that the run is found alive."""
        log_path, workdir = self._folder / "killed.log", self._workdir(name)
        command = [sys.executable, "-P", "-m", "chunkvisor", "run", str(self._loaded.path), "--max-rows", str(ROWS)]
        for override in self._overrides(name, stalls=False, standby=0):
            command += ["--set", override]
        with testing.fault("hang", chunk=STRUCK_CHUNK), open(log_path, "wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            try:
                # The fault must have struck: a worker that lives without its parent must not hang the next run.
                struck = self._layout(name).attempt(STRUCK_CHUNK, 1).log
                while process.poll() is None and "strikes here" not in read_tail(struck):
                    time.sleep(0.005)
            finally:
                process.send_signal(signal.SIGKILL)
                code = process.wait()
        committed = any(isinstance(entry.event, ChunkCommitted) for entry in read_events(Layout(workdir).events))
        if code != -signal.SIGKILL or not committed:
            said = read_tail(log_path).strip().rpartition("\n")[2]
            return "", [Ran(0, f"it ended with {code} before it could be killed: {said}")]
        return str(read_status(workdir).state), [Ran(0)]

    def _workdir(self, name: str) -> Path:
        """Return the workdir of a run, which is a trial of the first rows; made, with the digest of the model."""
        workdir = self._folder / f"{name}-first-{ROWS}"
        workdir.mkdir(mode=0o700, exist_ok=True)
        mark(Layout(workdir))
        known = Layout(self._folder / f"undisturbed-first-{ROWS}").model
        if known.exists() and not Layout(workdir).model.exists():
            shutil.copy2(known, Layout(workdir).model)  # the digest of a large model is computed once
        return workdir

    def _layout(self, name: str) -> OutputLayout:
        return Layout(self._workdir(name)).output(self._output)

    def _run(self, name: str, *, stalls: bool = False, standby: int | None = None) -> Ran:
        self._workdir(name)
        witness, code, words = _Witness(), 0, ""
        try:
            loaded = load(self._loaded.path, self._overrides(name, stalls=stalls, standby=standby)).trial(ROWS)
            code = int(run(Request(loaded, max_rows=ROWS), witness))
        except Halt as halt:
            if halt.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
                raise
            code, words = int(halt.code), f"{halt.what}; {' '.join(halt.why.split())}" if halt.why else halt.what
        return Ran(code, words, witness.events)

    def _overrides(self, name: str, *, stalls: bool, standby: int | None) -> list[str]:
        config = self._loaded.config
        output = config.outputs[self._output].model_dump(mode="json", exclude_unset=True, exclude={"chunk", *FORM_KEYS})
        values: dict[str, Any] = {
            "workdir": str(self._folder / name),
            "device": self._device,
            "engine": {"kind": "local"},
            "reuse": False,  # a drill is about encoding
            "chunk": {"size": self._chunk_size},
            # The table of faults expects the default retries, not the person's.
            "recovery": {
                "startup_timeout": config.recovery.startup_timeout,
                "stall_timeout": self._stall_s if stalls else config.recovery.stall_timeout,
                "wait_timeout": 60,
            },
            "workers.per_device": 1,
            "workers.standby": config.workers.standby if standby is None else standby,
            "outputs": {self._output: output},
            "combine": {},
        }
        # JSON is YAML, except for escaped surrogate pairs.
        ours = [f"{key}={json.dumps(each, ensure_ascii=False)}" for key, each in values.items()]
        return [*self._loaded.overrides, *ours]


def seen_as(events: Sequence[Event]) -> str:
    """Return the outcome of the first failed attempt; `committed` if its vectors counted all the same."""
    for event in events:
        if isinstance(event, AttemptFailed | PartFailed):
            return str(event.outcome)
        if isinstance(event, LateCrash):
            return "committed"
    return ""


def action(ran: Sequence[Ran]) -> str:
    """Say what the runs did about the fault."""
    events = [event for each in ran for event in each.events]
    latest = {type(event): event for event in events}
    failed = sum(isinstance(event, AttemptFailed | PartFailed) for event in events)
    if Quarantined in latest:
        return f"row quarantined, found in {failed} tries"
    if LateCrash in latest:
        return "its vectors were kept"
    if ran and ran[0].code not in _ENDED:
        return f"ended with {ran[0].code}; run again"
    if waited_s := sum(event.delay_s for event in events if isinstance(event, Waiting)):
        return f"waited {waited_s:.0f} s, retried"
    if isinstance(lowered := latest.get(LimitsLowered), LimitsLowered):
        return f"batch cut to {counted(lowered.rows, 'row')}"
    if ChunkSplit in latest:
        return "texts taken apart"
    return "retried" if failed == 1 else f"retried {failed} times" if failed else "nothing"


def problem(fault: DrillFault, seen: str, ran: Sequence[Ran], good: Good, found: Vectors | None) -> str:
    """Say what went wrong; empty if nothing did. `found` has the vectors of the struck run, (rows, dimension)."""
    first, last = ran[0], ran[-1]
    if seen != fault.seen_as:
        return f"seen as {seen or 'nothing at all'}, not as {fault.seen_as}: {first.words}".rstrip(": ")
    if first.code != fault.exit_code:
        return f"the run ended with {first.code}, not with {int(fault.exit_code)}: {first.words}".rstrip(": ")
    if last.code not in _ENDED:
        return f"the same run again ended with {last.code}: {last.words}"
    if found is None:
        return "there is no final file"
    if found.shape != good.vectors.shape:
        return f"the final file has shape {found.shape}, not {good.vectors.shape}"
    lost = np.flatnonzero(~np.isfinite(found).all(axis=1)).tolist()
    if lost != (list(good.poisoned) if fault.name == POISON_ROW else []):
        return f"rows {lost[:10]} have no vectors"
    most = _TOLERANCE.get(good.dtype, _TOLERANCE_FLOAT32) * max(1.0, float(np.abs(good.vectors).max(initial=0.0)))
    off = difference(good.vectors, found)
    return "" if off is not None and off <= most else f"vectors differ by up to {off:.1e}"


def difference(good: Vectors, found: Vectors | None) -> float | None:
    """Return the largest difference in the rows that have vectors; 0 = the same bytes, None = no such vectors."""
    if found is None or found.shape != good.shape:
        return None
    there = np.isfinite(found).all(axis=1)
    return float(np.abs(good[there] - found[there]).max(initial=0.0))
