"""The fire drill: one undisturbed run, then one run for each fault, whose vectors must be those of the first.

The faults strike as in integration tests (`chunkvisor.testing`): in the first worker that gets to the second chunk.
Each run has a new workdir in a scratch folder next to the config's workdir.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor import testing
from chunkvisor.assemble.forms import FORM_KEYS
from chunkvisor.assemble.manifest import read_finished
from chunkvisor.commands.plan import table_of
from chunkvisor.config.load import LoadedConfig, load
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.events.event import AttemptFailed, ChunkCommitted, Event, LateCrash, PartFailed
from chunkvisor.events.journal import read_events
from chunkvisor.show.lines import Observer
from chunkvisor.show.status import read_status
from chunkvisor.store.attempt import read_tail
from chunkvisor.store.layout import Layout, OutputLayout, mark
from chunkvisor.supervise.means import Request
from chunkvisor.supervise.session import run
from chunkvisor.testing import FAULTS, PARENT_KILLED, DrillFault
from chunkvisor_worker.contract.exits import Outcome

# Rows of the source, and chunks of them: one before the fault, one that meets it, one after.
ROWS, CHUNKS, STRUCK = 48, 3, 1
# Largest difference to the undisturbed vectors, as a share of their largest value, by the dtype of the weights: about
# ten units in the last place, since another batch is rounded differently.
_TOLERANCE = {"float16": 1e-2, "bfloat16": 8e-2}
_ENDED = (ExitCode.COMPLETE, ExitCode.QUARANTINED)
_ROW = f"{{:<{max(len(fault.name) for fault in FAULTS)}}}  {{:<9}}  {{:<14}}  {{}}"

Vectors = npt.NDArray[np.float32]
# How a run ended: its exit code, and why it is not 0.
_Ended = tuple[int, str]


def drill(
    loaded: LoadedConfig, faults: Sequence[DrillFault], folder: Path, say: Callable[[str], object]
) -> list[dict[str, Any]]:
    """Provoke the faults in this scratch folder, say a line for each, and return what `drill --json` prints.

    Raises Halt if there is nothing to drill, or if the drill is to stop.
    """
    rehearsal, findings = _Drill(loaded, folder), list[dict[str, Any]]()
    rehearsal.prepare()
    say(_ROW.format("fault", "provoked", "seen as", "vectors"))
    for fault in faults:
        found = rehearsal.provoke(fault)
        off = found["difference"]
        vectors = "none" if off is None else "same bytes" if off == 0 else f"differ by {off:.0e}"
        say(_ROW.format(found["fault"], found["provoked"], found["seen_as"] or "-", vectors))
        if found["problem"]:
            say(f"  NOT RECOVERED: {found['problem']}")
        findings.append(found)
    return findings


class _Drill:
    """Provokes faults in runs of the config's first output on its first device."""

    def __init__(self, loaded: LoadedConfig, folder: Path) -> None:
        device = loaded.config.device
        self._loaded, self._folder, self._output = loaded, folder, next(iter(loaded.config.outputs))
        self._device = device if isinstance(device, str) else device[0]
        self._chunk_size, self._stall_s, self._allowed = 0, 0.0, 0.0
        self._good: Vectors

    def prepare(self) -> None:
        """Make the undisturbed run. Raises Halt if it does not complete: there is nothing to drill then."""
        distinct = table_of(self._loaded.config, self._output, ROWS, self._folder, lambda _: None).distinct
        if distinct < CHUNKS:
            raise config_error(
                f"output {self._output} has {distinct} different texts in its first {ROWS} rows",
                why=f"a drill needs {CHUNKS}",
                remedy="Put an output with more texts first.",
            )
        self._chunk_size = distinct // CHUNKS
        code, words = self._run("undisturbed")
        layout = self._layout("undisturbed")
        if code != ExitCode.COMPLETE or (manifest := read_finished(layout)) is None:
            raise Halt(
                ExitCode(code),
                "the undisturbed run did not complete, so there is nothing to drill",
                why=words,
                remedy=f"Correct what made it fail; `chunkvisor run CONFIG --max-rows {ROWS}` shows more.",
            )
        phases = [event.phase_s for event in self._events("undisturbed") if isinstance(event, ChunkCommitted)]
        self._stall_s = max([2.0, *(3 * (each.get("forward", 0.0) + each.get("write", 0.0)) for each in phases)])
        self._good = np.load(layout.final, allow_pickle=False)
        largest = max(1.0, float(np.abs(self._good).max(initial=0.0)))
        self._allowed = largest * _TOLERANCE.get(manifest["model"]["dtype"], 1e-5)

    def provoke(self, fault: DrillFault) -> dict[str, Any]:
        """Provoke one fault, and report what came of it. Raises Halt (130, 143) if the drill is to stop."""
        name, killed, ran, seen, never = fault.name, fault.name == PARENT_KILLED, list[_Ended](), "", ""
        try:
            if killed:
                self._kill_the_run(name)
                ran.append((0, ""))
                seen = str(read_status(self._workdir(name)).state)
            else:
                # A failed setup is retried only after a chunk has worked: no worker may get to the second before.
                standby = 0 if fault.seen_as is Outcome.SETUP else None
                with testing.fault(name, chunk=STRUCK):
                    ran.append(self._run(name, stalls=fault.seen_as is Outcome.HUNG, standby=standby))
                seen = seen_as(self._events(name))
        except AssertionError as error:
            never = str(error)
        if killed or fault.exit_code not in _ENDED:
            ran.append(self._run(name))
        layout = self._layout(name)
        manifest = read_finished(layout)
        found = np.load(layout.final, allow_pickle=False) if manifest is not None else None
        bad = [each["row"] for each in manifest["quarantined"]] if manifest is not None else []
        simulated = self._device.partition(":")[0] not in fault.real_on
        simulated |= "chunkvisor drill: simulated" in read_tail(layout.attempt(STRUCK, 1).log)
        off = difference(self._good, found)
        wrong = never or problem(fault, seen, ran) or differs(off, found, bad, self._allowed)
        return {
            "fault": name,
            "provoked": "simulated" if simulated else "real",
            "seen_as": seen,
            "difference": off,
            "problem": wrong,
            "recovered": not wrong,
        }

    def _kill_the_run(self, name: str) -> None:
        """Kill the run itself, while a worker hangs, so that it is found alive."""
        command = [sys.executable, "-P", "-m", "chunkvisor", "run", str(self._loaded.path), "--max-rows", str(ROWS)]
        for override in self._overrides(name, stalls=False, standby=0):
            command += ["--set", override]
        log_of_worker = self._layout(name).attempt(STRUCK, 1).log
        with testing.fault("hang", chunk=STRUCK), open(self._folder / "killed.log", "wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            try:
                # The fault must have struck: a worker that lives without its parent must not hang the next run.
                while process.poll() is None and "strikes here" not in read_tail(log_of_worker):
                    time.sleep(0.005)
            finally:
                process.kill()
                process.wait()

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

    def _events(self, name: str) -> list[Event]:
        return [entry.event for entry in read_events(Layout(self._workdir(name)).events)]

    def _run(self, name: str, *, stalls: bool = False, standby: int | None = None) -> _Ended:
        self._workdir(name)
        try:
            loaded = load(self._loaded.path, self._overrides(name, stalls=stalls, standby=standby)).trial(ROWS)
            return int(run(Request(loaded, max_rows=ROWS), Observer())), ""
        except Halt as halt:
            if halt.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
                raise
            return int(halt.code), f"{halt.what}; {' '.join(halt.why.split())}" if halt.why else halt.what

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
    first = next((event for event in events if isinstance(event, AttemptFailed | PartFailed | LateCrash)), None)
    return "committed" if isinstance(first, LateCrash) else "" if first is None else str(first.outcome)


def problem(fault: DrillFault, seen: str, ran: Sequence[_Ended]) -> str:
    """Say how the runs did not go as the table of faults says; empty if they did."""
    (first, words), (last, last_words) = ran[0], ran[-1]
    if seen != fault.seen_as:
        return f"seen as {seen or 'nothing at all'}, not as {fault.seen_as}: {words}".rstrip(": ")
    if first != fault.exit_code:
        return f"the run ended with {first}, not with {int(fault.exit_code)}: {words}".rstrip(": ")
    return "" if last in _ENDED else f"the same run again ended with {last}: {last_words}"


def differs(off: float | None, found: Vectors | None, bad: Sequence[int], allowed: float) -> str:
    """Say how a final file, whose `bad` rows are quarantined, is not that of the undisturbed run; empty if it is."""
    if found is None or off is None:
        return "the final file is missing, or of another shape"
    lost = np.flatnonzero(~np.isfinite(found).all(axis=1)).tolist()
    if lost != list(bad):
        return f"rows {lost[:10]} have no vectors"
    return "" if off <= allowed else f"vectors differ by up to {off:.1e}"


def difference(good: Vectors, found: Vectors | None) -> float | None:
    """Return the largest difference in the rows that have vectors; 0 = the same bytes, None = no such vectors."""
    if found is None or found.shape != good.shape:
        return None
    there = np.isfinite(found).all(axis=1)
    return float(np.abs(good[there] - found[there]).max(initial=0.0))
