"""The words with which a run ends that has done what it could: stopped, refused by its machine, or short of some rows.

Pure: it never decides that a run ends. `lastwords` has those about workers and texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.decide.lastwords import last_remedy
from chunkvisor.decide.outcome import Verdict
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.store.layout import Layout
from chunkvisor.supervise.signals import Signals
from chunkvisor_worker.contract.files import AttemptFiles


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A chunk that exhausted its tries."""

    output: str
    chunk: int
    verdict: Verdict
    files: AttemptFiles


def stopped(signals: Signals) -> Halt:
    """The end of a run that was asked to stop."""
    assert signals.first is not None
    code = ExitCode.INTERRUPTED if signals.first.name == "SIGINT" else ExitCode.TERMINATED
    return Halt(code, f"stopped by {signals.first.name}", remedy="run the same command again to go on; nothing is lost")


def with_bad_rows(layout: Layout, quarantined: dict[str, list[dict[str, Any]]]) -> Halt:
    """The end of a run whose outputs have these rows without a vector, as their manifests list them."""
    rows = [f"{name} row {each['row']} ({each['place']})" for name, found in quarantined.items() for each in found]
    more = f" and {len(rows) - 10} more" if len(rows) > 10 else ""
    first = next(each for found in quarantined.values() for each in found)
    return Halt(
        ExitCode.QUARANTINED,
        f"finished, but {len(rows)} row{'s' * (len(rows) != 1)} could not be encoded and are NaN: "
        + ", ".join(rows[:10])
        + more,
        why=f"{first['outcome']}: {first['reason']}",
        remedy=f"the manifests list them; after a mend: chunkvisor retry {layout.workdir}, then run again; "
        "a mended source needs --from-scratch instead",
        see="quarantine",
    )


def gave_up(given_up: Sequence[GivenUp]) -> Halt:
    """The end of a run in which these chunks have exhausted their tries."""
    chunks = list(dict.fromkeys(f"{each.output} chunk {each.chunk}" for each in given_up))  # each may be in parts
    names = ", ".join(chunks[:10])
    more = f" and {len(chunks) - 10} more" if len(chunks) > 10 else ""
    last = given_up[-1]
    return Halt(
        ExitCode.TRY_AGAIN,
        f"not complete: {names}{more} failed in every try; everything else is done",
        why=f"{last.verdict.outcome}: {last.verdict.reason}",
        remedy=f"{last_remedy(last.verdict)} Then run the same command again.",
        log=last.files.log,
        see=last.verdict.see,
    )


def cannot_be_killed(pid: int, output: str, chunk: int, log: Path) -> Halt:
    """The end of a machine on which SIGKILL does not end a worker."""
    return Halt(
        ExitCode.MACHINE,
        f"worker {pid} of {output} chunk {chunk} cannot be killed",
        why="it hangs inside the kernel (D state): the GPU driver or the disk is stuck",
        remedy="reboot the machine, then run the same command again",
        log=log,
    )


def texts_damaged(error: Exception) -> Halt:
    """The end of a run whose staged texts are not what they were."""
    return Halt(
        ExitCode.DISK,
        "the staged texts were changed while the run was reading them",
        why=str(error),
        remedy="run the same command again: it reads the source anew",
    )
