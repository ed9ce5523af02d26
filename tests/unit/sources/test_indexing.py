"""An index that is made later is, byte for byte, that which staging makes."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.sources import index
from chunkvisor.sources.index import index_of
from chunkvisor.sources.table import StagedTable, TableFiles
from ingest_files import Stage


@pytest.fixture
def table(stage_here: Stage, tmp_path: Path) -> StagedTable:
    """Of some hundred texts, many of them more than once."""
    lines = (json.dumps({"t": f"text {number * number % 997}"}) + "\n" for number in range(3000))
    (tmp_path / "a.jsonl").write_text("".join(lines))
    return stage_here("a.jsonl", column="t")


def nothing() -> None:
    """Nobody waits."""


@pytest.mark.parametrize("part_texts", [1 << 20, 100, 3])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_same_index(
    table: StagedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_texts: int, elsewhere: bool
) -> None:
    """In one part or in many, in its place or elsewhere; in its place it is found the next time."""
    monkeypatch.setattr(index, "_PART_TEXTS", part_texts)
    monkeypatch.setattr(index, "_BLOCK_TEXTS", 70)
    files = TableFiles(table.folder)
    made = files.index.read_bytes()
    files.index.unlink()
    before = {path.name for path in table.folder.iterdir()}
    found = index_of(table.folder, nothing, tmp_path / "other" if elsewhere else None)
    assert found == (tmp_path / "other" if elsewhere else files.index)
    assert found is not None
    assert found.read_bytes() == made
    assert files.holds_index() is not elsewhere
    assert {path.name for path in table.folder.iterdir()} == before | ({"index.bin"} if not elsewhere else set())
    if not elsewhere:
        monkeypatch.setattr(index, "_write", None)
        assert index_of(table.folder, nothing) == files.index


def test_texts_that_are_gone(table: StagedTable, tmp_path: Path) -> None:
    """Without the texts there is no index, and nothing is left."""
    TableFiles(table.folder).index.unlink()
    TableFiles(table.folder).texts.unlink()
    before = sorted(table.folder.iterdir())
    assert index_of(table.folder, nothing) is None
    assert index_of(table.folder, nothing, tmp_path / "other") is None
    assert sorted(table.folder.iterdir()) == before
    assert not (tmp_path / "other").exists()


def test_a_stop_meanwhile(table: StagedTable) -> None:
    """What the caller raises while it waits ends it, and nothing is left beside the texts."""
    TableFiles(table.folder).index.unlink()
    before = sorted(table.folder.iterdir())

    def stop() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index_of(table.folder, stop)
    assert sorted(table.folder.iterdir()) == before
