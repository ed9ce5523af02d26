"""The first thing that a report says: how it stands, whether to worry, and what to do."""

from dataclasses import dataclass
from enum import StrEnum

from chunkvisor.errors import ExitCode
from chunkvisor.observe.report.history import History
from chunkvisor.observe.status import State, Status
from chunkvisor.units import counted, human_time

_AGAIN = "Run the same command again to go on; finished work is kept."
_NOT_HALTED = (ExitCode.COMPLETE, ExitCode.QUARANTINED, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
_MANY = 0.2
"""Share of failed attempts that is worth a look."""
_FEW = 5
_CHARS = 2000


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
    quarantined = sum(output.quarantined for output in status.outputs.values())
    last = history.runs[-1] if history.runs else None
    if status.state is State.HALTED:  # of slices, others may have ended well since
        last = next((run for run in reversed(history.runs) if run.ending and run.ending.code not in _NOT_HALTED), last)
    ending = last.ending if last is not None else None
    match status.state:
        case State.COMPLETE if quarantined:
            rows = counted(quarantined, "row")
            worry = f"All the rest is done, but {rows} could not be encoded and got no vector; see Quarantined rows."
            them, these = ("it", "this row") if quarantined == 1 else ("them", "these rows")
            todo = f"To try {them} again: `chunkvisor retry WORKDIR`, then run again. Or do without {these}."
            return Headline(Mood.CARE, "Complete, with rows in quarantine", worry, todo)
        case State.COMPLETE:
            worry = f"Nothing to worry about: every row has its vector.{_repeated(history.failed)}"
            return Headline(Mood.GOOD, "Complete", worry)
        case State.RUNNING:
            return _running(status, history, now_s)
        case State.HALTED if ending is not None:
            mood = Mood.CARE if ending.code == ExitCode.TRY_AGAIN else Mood.BAD
            worry = f"{_sentence(ending.what)} {_sentence(ending.why)}".strip()
            return Headline(mood, f"Halted (exit code {ending.code})", worry, _sentence(ending.remedy), ending.log)
        case _ if ending is not None and ending.code == ExitCode.QUARANTINED:
            return Headline(Mood.CARE, "Stopped", "The next run tries the rows without a vector again.", _AGAIN)
        case _ if ending is not None:
            worry = " ".join(filter(None, (_sentence(ending.what), _sentence(ending.why), "Finished work is kept.")))
            return Headline(Mood.CARE, "Stopped", worry, _AGAIN, ending.log)
        case _:
            worry = "The run ended without a message: it was killed, or its machine went down. Finished work is kept."
            return Headline(Mood.CARE, "Stopped", worry, _AGAIN)


def _running(status: Status, history: History, now_s: float) -> Headline:
    failed, tries = history.failed, sum(status.attempts.values())
    title = f"Running, about {human_time(status.eta_s)} left" if status.eta_s else "Running"
    if (stalled_s := history.pace.stalled_s(now_s)) is not None:
        usual = f"; usually it takes {human_time(history.pace.usual_s)}" if history.pace.usual_s else ""
        worry = f"No chunk was committed for {human_time(stalled_s)}{usual}."
        todo = "Look at the attempts and failures below, and at the newest worker.log."
        return Headline(Mood.CARE, title, worry, todo)
    if failed >= _FEW and failed > _MANY * tries:
        worry = f"{failed:,} of {tries:,} attempts have failed; the run recovers, but loses time by it."
        return Headline(Mood.CARE, title, worry, "See what failed, below.")
    return Headline(Mood.GOOD, title, f"Nothing to worry about.{_repeated(failed)}")


def _repeated(failed: int) -> str:
    """What went wrong on the way, if anything did."""
    were = "was" if failed == 1 else "were"
    return f" {counted(failed, 'attempt')} failed on the way and {were} repeated with success." if failed else ""


def _sentence(words: str) -> str:
    words = words[:_CHARS].strip()
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) or not words else ".")
