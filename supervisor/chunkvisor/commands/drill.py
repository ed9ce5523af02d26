"""The fire drill.

One undisturbed run, then one run for each fault, whose vectors must be those of the first.

The faults strike as in integration tests (`chunkvisor.testing`): in the first worker that gets to
the second chunk. Each run is a separate process, with a new workdir in a scratch folder next to the
config's workdir.
"""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor import testing
from chunkvisor.child import run_child
from chunkvisor.commands.plan import table_of
from chunkvisor.config.load import LoadedConfig
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.events.event import AttemptFailed, ChunkCommitted, LateCrash, PartFailed
from chunkvisor.events.journal import read_events
from chunkvisor.outputs.forms import FORM_KEYS
from chunkvisor.outputs.state import read
from chunkvisor.show.status import read_status
from chunkvisor.store.artifact import Vectors
from chunkvisor.store.attempt import read_tail
from chunkvisor.store.layout import Layout
from chunkvisor.testing import FAULTS, PARENT_KILLED, DrillFault
from chunkvisor_worker.contract.exits import Outcome

# Rows of the source, and chunks of them: one before the fault, one that meets it, one after.
ROWS = 48
CHUNKS = 3
STRUCK = 1
# Largest difference to the undisturbed vectors, as a share of their largest value, by the dtype of
# the weights: about ten units in the last place, since another batch is rounded differently.
_TOLERANCE = {"float16": 1e-2, "bfloat16": 8e-2}
_ENDED = (ExitCode.COMPLETE, ExitCode.QUARANTINED)
_ROW = f"{{:<{max(len(fault.name) for fault in FAULTS)}}}  {{:<9}}  {{:<14}}  {{}}"

# How a run ended: its exit code, and the last words of its log.
_Ended = tuple[int, str]


def drill(
    loaded: LoadedConfig, faults: Sequence[DrillFault], folder: Path, say: Callable[[str], object]
) -> list[dict[str, Any]]:
    """Provoke the faults in this scratch folder, and return what `drill --json` prints.

    Says a line for each.

    Raises Halt if the undisturbed run does not complete: there is nothing to drill then.
    """
    config = loaded.config
    name = next(iter(loaded.config.outputs))
    distinct = table_of(config, name, ROWS, folder, lambda _: None).distinct
    if distinct < CHUNKS:
        raise config_error(
            f"output {name} has {distinct} different texts in its first {ROWS} rows",
            "Put an output with more texts first.",
            why=f"a drill needs {CHUNKS}",
        )
    device = config.device[0]
    output = config.outputs[name].model_dump(
        mode="json", exclude_unset=True, exclude={"chunk", *FORM_KEYS}
    )
    values: dict[str, Any] = {
        "device": device,
        "engine": {"kind": "local"},
        "reuse": False,  # a drill is about encoding
        "reuse_from": [],
        "chunk": {"size": distinct // CHUNKS},
        # The table of faults expects the default retries, not yours.
        "recovery": {"startup_timeout": config.recovery.startup_timeout, "wait_timeout": 60},
        "recovery.stall_timeout": config.recovery.stall_timeout,
        "workers.per_device": 1,
        "outputs": {name: output},
        "combine": {},
    }

    def run(workdir: str, changed: dict[str, Any], *, kill: bool = False) -> _Ended:
        """Run the config; `kill` ends the run itself while a worker hangs, with code 0 here."""
        command = [
            sys.executable,
            "-P",
            "-m",
            "chunkvisor",
            "run",
            str(loaded.path),
            "--max-rows",
            str(ROWS),
        ]
        # JSON is YAML, except for escaped surrogate pairs.
        ours = {"workdir": str(folder / workdir), **values, **changed}
        overrides = [f"{key}={json.dumps(each, ensure_ascii=False)}" for key, each in ours.items()]
        for override in (*loaded.overrides, *overrides):
            command += ["--set", override]
        log = folder / f"{workdir}.log"

        def look() -> None:
            # The fault must have struck: a worker that lives without its parent must not hang the
            # next run.
            struck = layout_of(workdir).output(name).attempt(STRUCK, 1)
            if kill and "strikes here" in read_tail(struck.log):
                raise InterruptedError

        code = 0
        with suppress(InterruptedError):
            code = run_child(command, log, look)
        return code, read_tail(log).rpartition("chunkvisor: ")[2].strip()

    def layout_of(workdir: str) -> Layout:
        return Layout(folder / f"{workdir}-first-{ROWS}")  # where a trial of the first rows works

    code, words = run("undisturbed", {})
    layout = layout_of("undisturbed")
    undisturbed = read(layout.output(name)).manifest
    if code or not undisturbed:
        raise Halt(
            ExitCode(code or ExitCode.DISK),
            "the undisturbed run did not complete, so there is nothing to drill",
            f"Correct what made it fail; `chunkvisor run CONFIG --max-rows {ROWS}` shows more.",
            why=words,
        )
    events = [entry.event for entry in read_events(layout.events)]
    phases = [each.phase_s for each in events if isinstance(each, ChunkCommitted)]
    stall_s = max(
        [2.0, *(3 * (each.get("forward", 0.0) + each.get("write", 0.0)) for each in phases)]
    )
    good: Vectors = np.load(layout.output(name).final, allow_pickle=False)
    allowed = max(1.0, float(np.abs(good).max(initial=0.0))) * _TOLERANCE.get(
        undisturbed["model"]["dtype"], 1e-5
    )
    findings = list[dict[str, Any]]()
    say(_ROW.format("fault", "provoked", "seen as", ""))
    for fault in faults:
        layout = layout_of(fault.name)
        killed = fault.name == PARENT_KILLED
        changed = dict[str, Any]()
        ran = list[_Ended]()
        seen = ""
        wrong = ""
        # A failed setup is retried only after a chunk has worked: no worker may get to the second
        # before.
        if killed or fault.seen_as is Outcome.SETUP:
            changed["workers.standby"] = 0
        if fault.seen_as is Outcome.HUNG:
            changed["recovery.stall_timeout"] = stall_s
        try:
            with testing.fault("hang" if killed else fault.name, chunk=STRUCK):
                ran.append(run(fault.name, changed, kill=killed))
            events = [entry.event for entry in read_events(layout.events)]
            failures = [
                each for each in events if isinstance(each, AttemptFailed | PartFailed | LateCrash)
            ]
            if killed:
                seen = str(read_status(layout.workdir).state)
            elif failures:  # vectors may count although the worker crashed afterwards
                first = failures[0]
                seen = "committed" if isinstance(first, LateCrash) else first.outcome
        except AssertionError as error:
            wrong = str(error)
        if killed or fault.exit_code not in _ENDED:
            ran.append(run(fault.name, {}))
        struck = layout.output(name)
        manifest = read(struck).manifest
        log = read_tail(struck.attempt(STRUCK, 1).log)
        found = np.load(struck.final, allow_pickle=False) if manifest else None
        bad = [each["row"] for each in manifest["quarantined"]] if manifest else []
        wrong = wrong or problem(fault, seen, ran) or differs(good, found, bad, allowed)
        provoked = "simulated" if "chunkvisor drill: simulated" in log else "real"
        end = f"NOT RECOVERED: {wrong}" if wrong else "recovered"
        say(_ROW.format(fault.name, provoked, seen or "-", end))
        findings.append(
            {
                "fault": fault.name,
                "provoked": provoked,
                "seen_as": seen,
                "problem": wrong,
                "recovered": not wrong,
            }
        )
    return findings


def problem(fault: DrillFault, seen: str, ran: Sequence[_Ended]) -> str:
    """Say how the runs did not go as the table of faults says; empty if they did."""
    first, words = ran[0]
    last, last_words = ran[-1]
    if seen != fault.seen_as:
        return f"seen as {seen or 'nothing at all'}, not as {fault.seen_as}: {words}".rstrip(": ")
    if first != fault.exit_code:
        return f"the run ended with {first}, not with {int(fault.exit_code)}: {words}".rstrip(": ")
    return "" if last in _ENDED else f"the same run again ended with {last}: {last_words}"


def differs(good: Vectors, found: Vectors | None, bad: Sequence[int], allowed: float) -> str:
    """Say how a final file, whose `bad` rows are quarantined, is not that of the undisturbed run.

    Empty if it is.
    """
    if found is None or found.shape != good.shape:
        return "the final file is missing, or of another shape"
    expected = good.copy()
    expected[list(bad)] = np.nan
    right = np.isclose(found, expected, rtol=0, atol=allowed, equal_nan=True).all(axis=1)
    if right.all():
        return ""
    return f"rows {np.flatnonzero(~right).tolist()[:10]} have other vectors, or none"
