"""Runs that are killed at one call after the other, and what has to hold afterwards."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness import SOAK_SEED, expected, sweep
from scripted_workplace import ScriptedWorkplace

TEXTS = ["t0", "t1", "t0", "t2", "t3", "t1", "t2"]
MORE = ["u0", "u1"]


def eventful(folder: Path) -> ScriptedWorkplace:
    """Two outputs, three chunks, a standby, an out-of-memory fault and a crash: every kind of event
    occurs.
    """
    more = {"source": "more.jsonl", "column": "text"}
    place = ScriptedWorkplace.make(
        folder, TEXTS, chunk__size=2, encode__batch_size=2, workers__standby=1, outputs__more=more
    )
    place.write_source(MORE, "more")
    place.lay("t0", "oom!")
    place.lay("t3", "crash")
    return place


RENAMES = ("pathlib:Path.rename", "pathlib:Path.replace", "pathlib:Path.unlink", "shutil:rmtree")
"""Calls that change a name."""


def killed_anywhere(
    place: ScriptedWorkplace,
    scratch: Path,
    when: str,
    share: str,
    *targets: str,
    code: int = 0,
    soak: str = "1:",
    **options: Any,
) -> Iterator[ScriptedWorkplace]:
    """Kill runs at a share of the calls, which the soak has larger, and yield what the next run makes of the rest."""
    share = soak if SOAK_SEED else share
    told = sweep("each", when, place.folder, scratch, *targets or RENAMES, share=share, **options)
    assert told
    for line in told:
        assert line["returncode"] == code, line
        assert "Traceback" not in line["stderr"], line
        yield ScriptedWorkplace(Path(line["folder"]))


def assert_whole(folder: Path) -> None:
    """Both final files have the right bytes, and nothing that was half-written lies about."""
    workdir = folder / "work"
    for name, texts in {"out": TEXTS, "more": MORE}.items():
        vectors = np.load(workdir / f"{name}.npy", allow_pickle=False)
        np.testing.assert_array_equal(vectors, expected(texts))
        assert json.loads((workdir / f"{name}.json").read_text())["rows"] == len(texts)
    left = [path for path in workdir.rglob("*") if path.suffix in {".tmp", ".partial", ".damaged"}]
    assert not left, left
