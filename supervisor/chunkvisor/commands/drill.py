"""The fire drill: one undisturbed run, then one run for each fault, with the same vectors.

The faults strike as in integration tests (`chunkvisor.testing`): in the first worker that encodes
the second chunk. Each run is a separate process, with a new workdir in a scratch folder next to the
config's workdir.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor import testing
from chunkvisor.child import python_command, run_child
from chunkvisor.commands.plan import table_of
from chunkvisor.config.load import LoadedConfig, RowChoice
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.events.event import AttemptFailed, ChunkCommitted, Event, LateCrash, PartFailed
from chunkvisor.events.journal import read_events
from chunkvisor.outputs.forms import FORM_KEYS
from chunkvisor.outputs.state import read
from chunkvisor.printing import Say
from chunkvisor.show.status import read_status
from chunkvisor.store.artifact import Vectors
from chunkvisor.store.attempt import read_tail
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.testing import FAULTS, PARENT_KILLED, DrillFault
from chunkvisor_worker.contract.exits import Outcome

# Rows of the source, and chunks of them: one before the fault, one that meets it, one after.
ROWS = 48
CHUNKS = 3
STRUCK = 1  # number of the chunk that meets the fault
# Largest difference to the undisturbed vectors, as a share of their largest value, by the dtype of
# the weights: about ten units in the last place, since another batch is rounded differently.
_TOLERANCE = {"float16": 1e-2, "bfloat16": 8e-2}
_ENDED = (ExitCode.COMPLETE, ExitCode.QUARANTINED)
_ROW = f"{{:<{max(len(fault.name) for fault in FAULTS)}}}  {{:<9}}  {{:<14}}  {{}}"

# How a run ended: its exit code, and the last words of its log.
_Ended = tuple[int, str]


class _Runs:
    """Runs of the first rows of the config's first output, each with its own workdir."""

    def __init__(self, loaded: LoadedConfig, folder: Path) -> None:
        """Stage the rows in `folder` to count them. Raises Halt (78) if they are too few."""
        config = loaded.config
        name = next(iter(config.outputs))
        distinct = table_of(config, name, RowChoice(ROWS), folder, lambda _: None).distinct
        if distinct < CHUNKS:
            raise config_error(
                f"output {name} has {distinct} different texts in its first {ROWS} rows",
                "Put an output with more texts first.",
                why=f"a drill needs {CHUNKS}",
            )
        output = config.outputs[name].model_dump(
            mode="json", exclude_unset=True, exclude={"chunk", *FORM_KEYS}
        )
        self._loaded = loaded
        self._folder = folder
        self._output = name
        self._values: dict[str, Any] = {
            "device": config.device[0],
            "engine": {"kind": "local"},
            "reuse": False,  # a drill is about encoding
            "reuse_from": [],
            "chunk": {"size": distinct // CHUNKS},
            # The table of faults expects the default retries, not yours.
            "recovery": {
                "startup_timeout": config.recovery.startup_timeout,
                "stall_timeout": config.recovery.stall_timeout,
                "wait_timeout": 60,
            },
            "workers.per_device": 1,
            "outputs": {name: output},
            "combine": {},
        }

    def layout(self, workdir: str) -> Layout:
        """Return the paths in that workdir, whose name a trial of the first rows extends."""
        return Layout(self._folder / f"{workdir}-first-{ROWS}")

    def output(self, workdir: str) -> OutputLayout:
        """Return the paths of the output in that workdir."""
        return self.layout(workdir).output(self._output)

    def events(self, workdir: str) -> list[Event]:
        """Return what happened in that workdir."""
        return [entry.event for entry in read_events(self.layout(workdir).events)]

    def run(self, workdir: str, changed: dict[str, Any], *, kill: bool = False) -> _Ended:
        """Run the config with these values changed.

        `kill`: the run is killed while one of its workers hangs; the exit code is 0 then.
        """
        values = {"workdir": str(self._folder / workdir), **self._values, **changed}
        command = python_command("chunkvisor", "run", self._loaded.path)
        command += ["--max-rows", str(ROWS)]
        # JSON is YAML, except for escaped surrogate pairs.
        overrides = [
            f"{key}={json.dumps(each, ensure_ascii=False)}" for key, each in values.items()
        ]
        for override in (*self._loaded.overrides, *overrides):
            command += ["--set", override]
        log = self._folder / f"{workdir}.log"

        def interrupt_once_struck() -> None:
            # Not before the fault has struck: the next run would meet it.
            struck = self.output(workdir).attempt(STRUCK, 1)  # in the folder that the run has made
            if kill and "strikes here" in read_tail(struck.log):
                raise InterruptedError

        code = 0
        with suppress(InterruptedError):
            code = run_child(command, log, interrupt_once_struck)
        return code, read_tail(log).rpartition("chunkvisor: ")[2].strip()


def drill(
    loaded: LoadedConfig, faults: Sequence[DrillFault], folder: Path, say: Say
) -> list[dict[str, Any]]:
    """Provoke the faults in this scratch folder, and return what `drill --json` prints.

    `say` gets a line for each. Raises Halt if the undisturbed run does not complete: there is
    nothing to drill then.
    """
    runs = _Runs(loaded, folder)
    good, allowed, stall_s = _undisturbed(runs)
    findings = list[dict[str, Any]]()
    say(_ROW.format("fault", "provoked", "seen as", ""))
    for fault in faults:
        seen, wrong = _provoke(runs, fault, stall_s)
        struck = runs.output(fault.name)
        manifest = read(struck).manifest
        found = np.load(struck.final, allow_pickle=False) if manifest else None
        bad = [each["row"] for each in manifest["quarantined"]] if manifest else []
        wrong = wrong or differs(good, found, bad, allowed)
        log = read_tail(struck.attempt(STRUCK, 1).log)
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


def _undisturbed(runs: _Runs) -> tuple[Vectors, float, float]:
    """Run without a fault.

    Return the vectors, how much another run's may differ from them, and the seconds without
    progress after which a worker hangs. Raises Halt if the run does not complete.
    """
    code, words = runs.run("undisturbed", {})
    output = runs.output("undisturbed")
    manifest = read(output).manifest
    if code or not manifest:
        raise Halt(
            ExitCode(code or ExitCode.DISK),
            "the undisturbed run did not complete, so there is nothing to drill",
            f"Correct what made it fail; `chunkvisor run CONFIG --max-rows {ROWS}` shows more.",
            why=words,
        )
    stall_s = 2.0
    for each in runs.events("undisturbed"):
        if isinstance(each, ChunkCommitted):
            batches_s = each.phase_s.get("forward", 0.0) + each.phase_s.get("write", 0.0)
            stall_s = max(stall_s, 3 * batches_s)
    good: Vectors = np.load(output.final, allow_pickle=False)
    largest = max(1.0, float(np.abs(good).max(initial=0.0)))
    allowed = largest * _TOLERANCE.get(manifest["model"]["dtype"], 1e-5)
    return good, allowed, stall_s


def _provoke(runs: _Runs, fault: DrillFault, stall_s: float) -> tuple[str, str]:
    """Run with the fault, and once more if that run cannot complete.

    Return what the fault was seen as, and what went wrong; empty if nothing did.
    """
    killed = fault.name == PARENT_KILLED
    changed = dict[str, Any]()
    # Without workers prepared ahead, the first chunk is done before a worker gets to the second:
    # only then does a run retry a failed setup, and is a run killed "after its first chunk".
    if killed or fault.seen_as is Outcome.SETUP:
        changed["workers.standby"] = 0
    if fault.seen_as is Outcome.HUNG:
        changed["recovery.stall_timeout"] = stall_s
    seen = ""
    try:
        with testing.fault("hang" if killed else fault.name, chunk=STRUCK):
            ended = [runs.run(fault.name, changed, kill=killed)]
    except AssertionError as error:  # it never struck
        return seen, str(error)
    failures = [
        each
        for each in runs.events(fault.name)
        if isinstance(each, AttemptFailed | PartFailed | LateCrash)
    ]
    if killed:
        seen = str(read_status(runs.layout(fault.name).workdir)[0].state)
    elif failures:  # vectors may count although the worker crashed afterwards
        first = failures[0]
        seen = "committed" if isinstance(first, LateCrash) else first.outcome
    if killed or fault.exit_code not in _ENDED:
        ended.append(runs.run(fault.name, {}))
    return seen, problem(fault, seen, ended)


def problem(fault: DrillFault, seen: str, ended: Sequence[_Ended]) -> str:
    """Say what was not as the table of faults says; empty if all was.

    `seen` is the outcome of the fault; `ended` has the run with it, and maybe the one after that.
    """
    first, words = ended[0]
    last, last_words = ended[-1]
    if seen != fault.seen_as:
        return f"seen as {seen or 'nothing at all'}, not as {fault.seen_as}: {words}".rstrip(": ")
    if first != fault.exit_code:
        return f"the run ended with {first}, not with {int(fault.exit_code)}: {words}".rstrip(": ")
    return "" if last in _ENDED else f"the same run again ended with {last}: {last_words}"


def differs(good: Vectors, found: Vectors | None, bad: Sequence[int], allowed: float) -> str:
    """Say how a final file is not that of the undisturbed run; empty if it is.

    Its `bad` rows are quarantined, and have to be NaN.
    """
    if found is None or found.shape != good.shape:
        return "the final file is missing, or of another shape"
    expected = good.copy()
    expected[list(bad)] = np.nan
    right = np.isclose(found, expected, rtol=0, atol=allowed, equal_nan=True).all(axis=1)
    if right.all():
        return ""
    return f"rows {np.flatnonzero(~right).tolist()[:10]} have other vectors, or none"
