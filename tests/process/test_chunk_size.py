"""`chunk.size: auto` in runs: what the first run fixes, and what a trial measures."""

import json
from pathlib import Path
from typing import Any

from scripted_workplace import ScriptedWorkplace


def planned(place: ScriptedWorkplace) -> tuple[dict[str, Any], str]:
    """(what `plan --json` says of the output, what `plan` says)."""
    figures = json.loads(place.does("plan", "--json").stdout)["outputs"]["out"]
    return figures, place.does("plan").stdout


def test_fixed_by_the_first_run(tmp_path: Path) -> None:
    """`plan` proposes with the reason, the first run takes that size, and no later rate changes it."""
    texts = [f"t{number}" for number in range(520)]
    place = ScriptedWorkplace.make(tmp_path / "place", texts, chunk__size="auto", chunk__keep=True)
    figures, words = planned(place)
    assert (figures["chunk_size"], figures["chunks"]) == (500, 2)
    assert "2 of 500 texts; usual for cpu" in words
    place.lay("t510", "damage!")
    first = place.ends(75, "--set", "recovery.attempts=1")
    assert "out: chunks of 500 texts, usual for cpu" in first.stderr
    place.lift("t510")
    again = place.gives(texts)
    assert "chunks of" not in again.stderr.replace("chunks of up to 500, 1 done", "")
    figures, words = planned(place)
    assert (figures["chunk_size"], figures["chunk_size_reason"]) == (500, None)
