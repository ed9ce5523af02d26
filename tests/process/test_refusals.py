"""What `run` refuses of a config, `plan` and `doctor` refuse in the same words."""

from pathlib import Path
from typing import Any

import pytest

from scripted_workplace import ScriptedWorkplace

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "task": ({"encode__task": "query"}, "encode.task is for a model of sentence-transformers"),
    "encode.kwargs": (
        {"encode__kwargs": {"a": 1}},
        "encode.kwargs is for a model of sentence-transformers",
    ),
    "pooling": ({"model__pooling": "cls"}, "pooling is for a model of sentence-transformers"),
    "batch_tokens": (
        {"encode__batch_tokens": 512},
        "encode.batch_tokens is for a model of sentence-transformers",
    ),
    "textfile": (
        {"metrics__textfile": "nowhere/figures.prom"},
        "metrics.textfile: there is no folder",
    ),
}


@pytest.mark.parametrize("command", ["run", "plan", "doctor"])
@pytest.mark.parametrize("which", REFUSED)
def test_refused_by_all(tmp_path: Path, command: str, which: str) -> None:
    """A config that cannot work ends each of the three with 78."""
    changes, words = REFUSED[which]
    place = ScriptedWorkplace.make(tmp_path / "place", ["t0"], **changes)
    ended = place.does(command, code=78)
    assert words in " ".join((ended.stdout + ended.stderr).split())
