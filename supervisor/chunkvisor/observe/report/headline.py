"""The first thing that a report says: how it stands, whether to worry, and what to do.

Pure: it never reads the folder; status and history are handed in.
"""

from dataclasses import dataclass
from enum import StrEnum

from chunkvisor.errors import ExitCode
from chunkvisor.observe.report.history import History
from chunkvisor.observe.status import State, Status
from chunkvisor.units import human_time

_AGAIN = "Run the same command again to go on; what is done stays done."
_NOT_HALTED = (None, ExitCode.COMPLETE, ExitCode.QUARANTINED, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
_MANY = 0.2
"""Share of failed attempts that is worth a look."""
_FEW = 5


class Mood(StrEnum):
    """Whether to worry."""

    GOOD = "good"
    CARE = "care"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Headline:
    """What a person reads in the first ten seconds."""

    mood: Mood
    title: str
    worry: str
    todo: str = ""
    log: str = ""


def headline(status: Status, history: History, now_s: float) -> Headline:
    """The words for this state of things."""
    failed = sum(failure.count for failure in history.failures.values())
    quarantined = sum(output.quarantined for output in status.outputs.values())
    last = history.runs[-1] if history.runs else None
    if status.state is State.HALTED:  # of slices, others may have ended well since
        last = next((run for run in reversed(history.runs) if run.code not in _NOT_HALTED), last)
    match status.state:
        case State.COMPLETE if quarantined:
            rows = f"{quarantined:,} row{'s' * (quarantined != 1)}"
            worry = (
                f"All the rest is done, but {rows} could not be encoded and got no vector (NaN); see Quarantined rows."
            )
            todo = "Mend the cause, then: chunkvisor retry, and run again. Or leave them out downstream."
            return Headline(Mood.CARE, "Complete, with rows in quarantine", worry, todo)
        case State.COMPLETE:
            return Headline(
                Mood.GOOD, "Complete", f"Nothing to worry about: every row has its vector.{_mended(failed)}"
            )
        case State.RUNNING:
            return _running(status, history, failed, now_s)
        case State.HALTED if last is not None:
            mood = Mood.CARE if last.code == ExitCode.TRY_AGAIN else Mood.BAD
            worry = f"{_sentence(last.what)} {_sentence(last.why)}".strip()
            return Headline(mood, f"Halted (exit code {last.code})", worry, _sentence(last.remedy), last.log)
        case _ if last is not None and last.code == ExitCode.QUARANTINED:
            return Headline(Mood.CARE, "Stopped", "Rows that had no vector are pending again.", _AGAIN)
        case _ if last is not None and last.code is not None:
            return Headline(Mood.CARE, "Stopped", f"{_sentence(last.what)} Nothing that was committed is lost.", _AGAIN)
        case _:
            worry = (
                "The run ended without a last word: it was killed, or its machine went down. Nothing committed is lost."
            )
            return Headline(Mood.CARE, "Stopped", worry, _AGAIN)


def _running(status: Status, history: History, failed: int, now_s: float) -> Headline:
    left = f", about {human_time(status.eta_s)} left" if status.eta_s else ""
    title = f"Running{left}"
    if (stalled_s := history.pace.stalled_s(now_s)) is not None:
        usual = f"; usually it takes {human_time(history.pace.usual_s)}" if history.pace.usual_s else ""
        worry = f"No chunk was committed for {human_time(stalled_s)}{usual}."
        return Headline(
            Mood.CARE, title, worry, "Look at the attempts and failures below, and at the newest worker.log."
        )
    tries = sum(history.outcomes.values())
    if failed >= _FEW and failed > _MANY * tries:
        worry = f"{failed:,} of {tries:,} attempts have failed; the run recovers, but loses time by it."
        return Headline(Mood.CARE, title, worry, "See what failed, below.")
    return Headline(Mood.GOOD, title, f"Nothing to worry about.{_mended(failed)}")


def _mended(failed: int) -> str:
    if not failed:
        return ""
    return (
        f" {failed:,} attempt{'s' * (failed != 1)} failed on the way and {'was' if failed == 1 else 'were'} made good."
    )


def _sentence(words: str) -> str:
    words = words.strip()
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) or not words else ".")
