"""A sample of the texts of several tables."""

from pathlib import Path

from chunkvisor.sources.table import pick, sampled
from ingest_files import Stage


def test_the_sample_has_all_lengths() -> None:
    """It is spread evenly from the shortest to the longest text."""
    assert pick([30, 10, 20], 5) == [0, 1, 2]
    lengths = list(range(1000, 0, -1))
    chosen = sorted(lengths[number] for number in pick(lengths, 10))
    assert chosen == [51, 151, 251, 351, 451, 551, 651, 751, 851, 951]


def test_several_tables(tmp_path: Path, stage_here: Stage) -> None:
    """They give texts by their shares, at least one each, the same ones each time."""
    tables = []
    for name, count in (("many", 90), ("some", 9), ("one!", 1)):
        lines = [f"{'é' * number}{name}\n" for number in range(count)]
        (tmp_path / f"{name}.txt").write_text("".join(lines[::-1]))
        tables.append(stage_here(f"{name}.txt", column="text"))
    many, some, one = sampled(tables, 20)
    assert [many, some, one] == sampled(tables, 20)
    assert sorted(len(text) - 4 for text in many) == list(range(2, 90, 5))
    assert [len(some), one] == [2, ["one!"]]
