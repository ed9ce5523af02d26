"""What is run while its calls fail: a folder, a command, and the final files that must come of it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from inspect import unwrap
from pathlib import Path

from damaged import LAST, TEXTS, complete, unfinished
from killed import eventful
from scripted_workplace import ScriptedWorkplace

RUN = ("run", "{config}")


@dataclass(frozen=True)
class Scenario:
    """One command over one folder."""

    make: Callable[[Path], ScriptedWorkplace]
    """Fills the folder."""
    command: tuple[str, ...] = RUN
    """What is disturbed; a run follows, and before it the same again where it was no run and did
    not end with 0."""
    code: int = 0
    """With which an undisturbed run ends."""
    finals: tuple[str, ...] = ("out.npy",)
    """Files of the workdir whose bytes are compared."""


def _apart(folder: Path) -> ScriptedWorkplace:
    """One text is bad, and one vector beside it: chunks are taken apart, kept in parts, and put
    together.
    """
    place = ScriptedWorkplace.make(
        folder, TEXTS, chunk__size=4, recovery__attempts=1, encode__batch_size=2
    )
    place.lay("t1", "value_error!")
    place.lay("t5", "nan_beside!")
    return place


def _begun(folder: Path) -> ScriptedWorkplace:
    """All but the last chunk is committed, and an out-of-memory fault has left its lesson."""
    place: ScriptedWorkplace = unwrap(unfinished)(folder)
    place.lift(LAST)
    return place


def _quarantined(folder: Path) -> ScriptedWorkplace:
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=4, recovery__attempts=1)
    place.lay("t1", "value_error!")
    place.ends(3)
    place.lift("t1")
    return place


def _csv(folder: Path) -> ScriptedWorkplace:
    """The source is a CSV of which SQL makes the texts."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=4)
    rows = "".join(f'{json.dumps(text)},"n"\n' for text in TEXTS)
    (folder / "source.csv").write_text("a,b\n" + rows)
    place.write_config(
        "scripted:make",
        chunk__size=4,
        outputs={"out": {"source": str(folder / "source.csv"), "sql": "a || b"}},
    )
    return place


def _plain(folder: Path) -> ScriptedWorkplace:
    """Two chunks, and a text in both."""
    return ScriptedWorkplace.make(folder, TEXTS[:5], chunk__size=2)


def warm_up(folder: Path) -> None:
    """Have this process import, compile and look up once what every run does."""
    _plain(folder).ends(0)


SCENARIOS = {
    "plain": Scenario(_plain),
    "eventful": Scenario(eventful, finals=("out.npy", "more.npy")),
    "apart": Scenario(_apart, code=3),
    "begun": Scenario(_begun),
    "complete": Scenario(unwrap(complete)),
    "from-scratch": Scenario(unwrap(complete), (*RUN, "--from-scratch")),
    "sql": Scenario(_csv),
    "warm": Scenario(
        lambda folder: ScriptedWorkplace.make(folder, TEXTS, chunk__size=4, workers__start="warm")
    ),
    "retry": Scenario(_quarantined, ("retry", "{work}")),
}
"""By name."""
