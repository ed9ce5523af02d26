"""The fire drill: one undisturbed run, then one run for each fault, whose vectors must be those of the first.

The faults strike as in integration tests (`chunkvisor.testing`): in the first worker that gets to the second chunk.
Each run is a separate process, with a new workdir in a scratch folder next to the config's workdir.
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
from chunkvisor.config.load import LoadedConfig
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.events.event import AttemptFailed, ChunkCommitted, Event, LateCrash, PartFailed
from chunkvisor.events.journal import read_events
from chunkvisor.show.status import read_status
from chunkvisor.store.attempt import read_tail
from chunkvisor.store.layout import Layout, claim
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
# How a run ended: its exit code, and the last words of its log.
_Ended = tuple[int, str]


def drill(
    loaded: LoadedConfig, faults: Sequence[DrillFault], folder: Path, say: Callable[[str], object]
) -> list[dict[str, Any]]:
    """Provoke the faults in this scratch folder, say a line for each, and return what `drill --json` prints.

    Raises Halt if there is nothing to drill.
    """
    rehearsal, findings = _Drill(loaded, folder), list[dict[str, Any]]()
    say(_ROW.format("fault", "provoked", "seen as", ""))
    for fault in faults:
        found = rehearsal.provoke(fault)
        end = f"NOT RECOVERED: {found['problem']}" if found["problem"] else "recovered"
        say(_ROW.format(found["fault"], found["provoked"], found["seen_as"] or "-", end))
        findings.append(found)
    return findings


class _Drill:
    """Provokes faults in runs of the config's first output on its first device.

    Makes the undisturbed run first. Raises Halt if it does not complete: there is nothing to drill then.
    """

    def __init__(self, loaded: LoadedConfig, folder: Path) -> None:
        device = loaded.config.device
        self._loaded, self._folder, self._output = loaded, folder, next(iter(loaded.config.outputs))
        self._device = device if isinstance(device, str) else device[0]
        distinct = table_of(loaded.config, self._output, ROWS, folder, lambda _: None).distinct
        if distinct < CHUNKS:
            what = f"output {self._output} has {distinct} different texts in its first {ROWS} rows"
            raise config_error(what, why=f"a drill needs {CHUNKS}", remedy="Put an output with more texts first.")
        self._chunk_size, self._stall_s = distinct // CHUNKS, 0.0
        code, words = self._run("undisturbed")
        layout = self._layout("undisturbed")
        if code != ExitCode.COMPLETE or (manifest := read_finished(layout.output(self._output))) is None:
            what = "the undisturbed run did not complete, so there is nothing to drill"
            remedy = f"Correct what made it fail; `chunkvisor run CONFIG --max-rows {ROWS}` shows more."
            raise Halt(ExitCode(code or ExitCode.DISK), what, why=words, remedy=remedy)
        phases = [each.phase_s for each in _events(layout) if isinstance(each, ChunkCommitted)]
        self._stall_s = max([2.0, *(3 * (each.get("forward", 0.0) + each.get("write", 0.0)) for each in phases)])
        self._good: Vectors = np.load(layout.output(self._output).final, allow_pickle=False)
        largest = max(1.0, float(np.abs(self._good).max(initial=0.0)))
        self._allowed = largest * _TOLERANCE.get(manifest["model"]["dtype"], 1e-5)

    def provoke(self, fault: DrillFault) -> dict[str, Any]:
        """Provoke one fault, and report what came of it."""
        name, layout, killed = fault.name, self._layout(fault.name), fault.name == PARENT_KILLED
        ran, seen, wrong = list[_Ended](), "", ""
        # A failed setup is retried only after a chunk has worked: no worker may get to the second before.
        standby = 0 if killed or fault.seen_as is Outcome.SETUP else None
        try:
            with testing.fault("hang" if killed else name, chunk=STRUCK):
                ran.append(self._run(name, stalls=fault.seen_as is Outcome.HUNG, standby=standby, kill=killed))
            failures = [each for each in _events(layout) if isinstance(each, AttemptFailed | PartFailed | LateCrash)]
            if killed:
                seen = str(read_status(layout.workdir).state)
            elif failures:  # vectors may count although the worker crashed afterwards
                seen = "committed" if isinstance(failures[0], LateCrash) else str(failures[0].outcome)
        except AssertionError as error:
            wrong = str(error)
        if killed or fault.exit_code not in _ENDED:
            ran.append(self._run(name))
        output = layout.output(self._output)
        manifest, log = read_finished(output), read_tail(output.attempt(STRUCK, 1).log)
        found = np.load(output.final, allow_pickle=False) if manifest is not None else None
        bad = [each["row"] for each in manifest["quarantined"]] if manifest is not None else []
        wrong = wrong or problem(fault, seen, ran) or differs(self._good, found, bad, self._allowed)
        simulated = self._device.partition(":")[0] not in fault.real_on or "chunkvisor drill: simulated" in log
        told = {"fault": name, "provoked": "simulated" if simulated else "real", "seen_as": seen}
        return {**told, "problem": wrong, "recovered": not wrong}

    def _layout(self, name: str) -> Layout:
        """Return the workdir of a run, which is a trial of the first rows."""
        return Layout(self._folder / f"{name}-first-{ROWS}")

    def _run(self, name: str, *, stalls: bool = False, standby: int | None = None, kill: bool = False) -> _Ended:
        """Run the config in that workdir; `kill` ends the run itself while a worker hangs, with code 0 here."""
        layout, known = self._layout(name), self._layout("undisturbed").model
        if known.exists() and not layout.model.exists():  # the digest of a large model is computed once
            layout.workdir.mkdir(mode=0o700)
            claim(layout, ())
            shutil.copy2(known, layout.model)
        command = [sys.executable, "-P", "-m", "chunkvisor", "run", str(self._loaded.path), "--max-rows", str(ROWS)]
        config = self._loaded.config
        output = config.outputs[self._output].model_dump(mode="json", exclude_unset=True, exclude={"chunk", *FORM_KEYS})
        values: dict[str, Any] = {
            "workdir": str(self._folder / name),
            "device": self._device,
            "engine": {"kind": "local"},
            "reuse": False,  # a drill is about encoding
            "reuse_from": [],
            "chunk": {"size": self._chunk_size},
            # The table of faults expects the default retries, not yours.
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
        for override in (*self._loaded.overrides, *ours):
            command += ["--set", override]
        log, log_of_worker = self._folder / f"{name}.log", layout.output(self._output).attempt(STRUCK, 1).log
        with open(log, "ab") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
            try:
                # The fault must have struck: a worker that lives without its parent must not hang the next run.
                while kill and process.poll() is None and "strikes here" not in read_tail(log_of_worker):
                    time.sleep(0.005)
                if not kill:
                    process.wait()
            finally:
                process.kill()
                code = process.wait()
        return 0 if kill else code, read_tail(log).rpartition("chunkvisor: ")[2].strip()


def _events(layout: Layout) -> list[Event]:
    return [entry.event for entry in read_events(layout.events)]


def problem(fault: DrillFault, seen: str, ran: Sequence[_Ended]) -> str:
    """Say how the runs did not go as the table of faults says; empty if they did."""
    (first, words), (last, last_words) = ran[0], ran[-1]
    if seen != fault.seen_as:
        return f"seen as {seen or 'nothing at all'}, not as {fault.seen_as}: {words}".rstrip(": ")
    if first != fault.exit_code:
        return f"the run ended with {first}, not with {int(fault.exit_code)}: {words}".rstrip(": ")
    return "" if last in _ENDED else f"the same run again ended with {last}: {last_words}"


def differs(good: Vectors, found: Vectors | None, bad: Sequence[int], allowed: float) -> str:
    """Say how a final file, whose `bad` rows are quarantined, is not that of the undisturbed run; empty if it is."""
    if found is None or found.shape != good.shape:
        return "the final file is missing, or of another shape"
    expected = good.copy()
    expected[list(bad)] = np.nan
    right = np.isclose(found, expected, rtol=0, atol=allowed, equal_nan=True).all(axis=1)
    return "" if right.all() else f"rows {np.flatnonzero(~right).tolist()[:10]} have other vectors, or none"
