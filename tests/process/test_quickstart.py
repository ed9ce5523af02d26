"""The quickstart's own scripts: what they harvest, link and print."""

import re
import sys
from pathlib import Path

import numpy as np

from harness import ROOT, events_in, said_by


def script(name: str, *arguments: str | Path) -> str:
    """Run one of the quickstart's scripts as make does, and return what it prints."""
    return said_by(sys.executable, ROOT / "quickstart" / name, *arguments)


def test_harvest_and_neighbors(tmp_path: Path) -> None:
    """The harvest has some thousand rows; neighbors come from the row's own module, never from a
    row of NaN.
    """
    harvest = tmp_path / "docstrings.jsonl"
    script("harvest.py", "--out", harvest)
    rows = events_in(harvest)
    names = [row["name"] for row in rows]
    assert 1000 <= len(rows) <= 1500
    assert names == sorted(set(names))
    assert not [name for name in names if any(part.startswith("_") for part in name.split("."))]
    assert all(set(row) == {"name", "kind", "doc"} and row["doc"] for row in rows)

    modules = sorted({name.partition(".")[0] for name in names})
    vectors = np.eye(len(modules), dtype=np.float32)[
        [modules.index(name.partition(".")[0]) for name in names]
    ]
    vectors[3] = np.nan
    np.save(tmp_path / "vectors.npy", vectors)
    said = script("neighbors.py", tmp_path / "vectors.npy", harvest)
    blocks = re.findall(r"^(\w\S*)\n((?:  .*\n){3})", said, re.MULTILINE)
    assert len(blocks) == 5
    for name, neighbors in blocks:
        assert re.findall(r"1\.00  (\w+)", neighbors) == [name.partition(".")[0]] * 3
    assert f"  {names[3]}\n" not in said
    assert "nan" not in said
