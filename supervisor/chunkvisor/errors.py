"""Exit codes of the command, and the one exception that carries one to the user."""

import glob
import shlex
from collections.abc import Mapping
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from chunkvisor.units import listed
from chunkvisor_worker.contract.secrets import masked


class ExitCode(IntEnum):
    """Exit codes of `chunkvisor`; docs/reference/exit-codes.md says which are worth a restart."""

    COMPLETE = 0
    BUG = 1
    USAGE = 2
    QUARANTINED = 3
    MACHINE = 69
    DISK = 74
    TRY_AGAIN = 75
    CONFIG = 78
    INTERRUPTED = 130
    TERMINATED = 143


class StopReason(Enum):
    """Why a run ends, or continues without a device; `messages` has the sentences."""

    HALTED = "halted"  # as the outcome of the attempt says
    BROKEN = "broken"  # the device cannot be used any more
    BUSY = "busy"  # other processes held the device for too long
    TOO_LARGE = "too large"  # the model does not fit into the memory of the device
    CANARY = "canary"  # a text that was encoded before cannot be encoded any more
    NOTHING_ENCODED = "nothing encoded"  # no text, not even short ones, each alone in its batch
    BAD_ROWS = "bad rows"  # more texts without a vector than the config allows
    ALL_BAD = "all bad"  # no text of an output can be encoded


# The end of a remedy, which a run that keeps nothing leaves out.
KEPT = "; finished work is kept"
_LABELS = {
    "what": "",
    "why": "why: ",
    "remedy": "do:  ",
    "log": "log: ",
    "see": "see: chunkvisor explain ",
}


class ChunkvisorError(Exception):
    """Why a job did not end well; the one error that the Python interface raises.

    `code` is the exit code of the command. `what` happened, `why` as far as we know, and the
    `remedy` are a sentence or two each; `log` is the file to open, and `see` the entry that
    `chunkvisor explain` prints. `outcome` is that of the attempt that ended the run.
    """

    def __init__(
        self,
        code: ExitCode,
        what: str,
        remedy: str = "",
        *,
        why: str = "",
        log: Path | None = None,
        see: str = "",
    ) -> None:
        self.code = code
        self.what = masked(what)
        super().__init__(self.what)
        self.why = masked(why)
        self.remedy = masked(remedy)
        self.log = log
        self.see = see

    @property
    def outcome(self) -> str:
        """What became of the attempt that ended the run, such as `crashed`; empty if none did."""
        from chunkvisor_worker.contract.exits import Outcome
        from chunkvisor_worker.contract.rules import RULES

        outcomes = {rule.name: str(rule.outcome) for rule in RULES}
        outcome = outcomes.get(self.see, self.see)
        return outcome if outcome in [*Outcome] else ""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle rebuilds an exception from `args` only, which fails here, and breaks process pools.
        return halt_of, (self.details(),)

    def lines(self) -> list[str]:
        """Return the message as lines: what, why, what to do, log and entry."""
        return lines_of_end(self.details())

    def details(self) -> dict[str, Any]:
        """Return the message as plain values, for the journal and for programs."""
        words = {name: str(getattr(self, name) or "") for name in _LABELS}
        return {"code": int(self.code), "outcome": self.outcome, **words}


# So that a traceback names it as a person would import it.
ChunkvisorError.__module__ = "chunkvisor"

# Our own name for it: the end of a run in good order, with a message and an exit code.
Halt = ChunkvisorError


def lines_of_end(details: Mapping[str, Any]) -> list[str]:
    """Return the message of an error from its `details`, as the journal has them.

    There are no lines if `details` has no message. Of an empty log the line says so: a killed
    worker writes nothing. If the vectors were not usable, an empty log is left out, since the
    worker ended well.
    """
    words = {
        name: f"{label}{details[name]}" for name, label in _LABELS.items() if details.get(name)
    }
    if is_empty(details.get("log", "")):
        words["log"] += " (empty: nothing was written into it)"
        if details.get("outcome") == "bad_output":
            del words["log"]
    return list(words.values())


def is_empty(log: str) -> bool:
    """Say whether the file at this path, a worker's log, exists and is empty."""
    try:
        return bool(log) and not Path(log).stat().st_size
    except (OSError, ValueError):  # gone, or on another machine; a NUL in a journal's line
        return False


def halt_of(details: Mapping[str, Any]) -> Halt:
    """Make a Halt of the `details` of one.

    Raises KeyError, TypeError or ValueError if they are not those of a Halt.
    """
    log = Path(details["log"]) if details["log"] else None
    words = {key: details[key] for key in ("why", "remedy", "see")}
    return Halt(ExitCode(details["code"]), details["what"], log=log, **words)


def how_to_verify(final: Path) -> str:
    """Say how to check a final file."""
    return f"to check the file: chunkvisor verify {shlex.quote(str(final))}"


def no_workdir(path: Path) -> Halt:
    """Return a Halt (78) for a path that was given as a workdir and is not one."""
    what = f"{path} does not exist"
    if path.exists():
        what = f"{path} is not a workdir of chunkvisor"
    elif path.suffix == ".chunkvisor":
        made = path.with_suffix("")
        if made.with_suffix(".json").is_file():
            return config_error(
                f"{path} no longer exists: `chunkvisor encode` finished {made} and removed its "
                f"work folder",
                f"Nothing is left to do; {how_to_verify(made)}",
            )
    # Those of SentenceTransformer(workdir=...), of parts and of trials.
    beside = path.parent.glob(f"{glob.escape(path.name)}-*/.chunkvisor")
    near = sorted(str(hidden.parent) for hidden in (*path.glob("*/.chunkvisor"), *beside))
    if near:
        return config_error(what, f"Give one of the workdirs near it: {listed(near, 8)}.")
    return config_error(what, "Give the config, or the folder that is its workdir.")


def config_error(what: str, remedy: str, *, why: str = "") -> Halt:
    """Return a Halt for a wrong config, model or input (exit 78)."""
    return Halt(ExitCode.CONFIG, what, remedy, why=why)
