"""`--part K/N`: one of equal parts of the rows, for several machines or the tasks of an array."""

from pathlib import Path
from typing import Any

import duckdb
import pytest

from docpages import blocks
from harness import ROOT, kill, wait_for
from scripted_workplace import ScriptedWorkplace

TEXTS = [f"text {number % 13}" for number in range(30)]
PARTS = 8


@pytest.fixture
def place(tmp_path: Path) -> ScriptedWorkplace:
    """A CSV source of which one row in five is left out, and whose ids are carried along."""
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2)
    rows = (f"{number},{text}\n" for number, text in enumerate(TEXTS))
    (place.folder / "rows.csv").write_text(f"id,text\n{''.join(rows)}")
    asked = {"column": "text", "where": "id::INT % 5 <> 2", "columns": ["id"]}
    place.set(outputs={"out": {"source": "rows.csv", **asked}})
    return place


def carried(workdir: Path) -> list[tuple[int, ...]]:
    """(source_row, id) of each row of the final file."""
    table = workdir / "out.rows.parquet"
    rows = duckdb.connect().execute(f"SELECT source_row, id::INT FROM '{table}' ORDER BY row")
    return rows.fetchall()


def test_parts_joined_are_the_whole(place: ScriptedWorkplace) -> None:
    """Eight parts, of which one is killed and run again, are the whole one after the other, byte
    for byte; `plan`, `status` and `verify` find a part, and name the parts if the whole was not
    run.
    """
    workdirs = [Path(f"{place.workdir}-part-{part}-of-{PARTS}") for part in range(1, PARTS + 1)]
    killed = place.begin("--part", f"2/{PARTS}")
    wait_for(lambda: [*workdirs[1].glob(".chunkvisor/outputs/out/*/attempts/*")])
    kill(killed)

    for part in range(1, PARTS + 1):
        place.ends(0, "--part", f"{part}/{PARTS}")

    config = str(place.config_path)
    near = f"workdirs near it: {workdirs[0]}, {workdirs[1]}, "
    assert near in place.call("status", config, code=78).stderr
    place.ends(0)
    (block,) = blocks(ROOT / "docs" / "how-to" / "several-machines.md", "python")
    script = block.text.replace("cache/articles-", f"{place.workdir}-").replace("articles.", "out.")
    found: dict[str, Any] = {}
    exec(script, found)
    assert [len(each) for each in found["parts"]] == [3] * PARTS
    assert found["vectors"].tobytes() == place.vectors().tobytes()
    together = [row for workdir in workdirs for row in carried(workdir)]
    assert together == carried(place.workdir)
    asked = ("--part", f"3/{PARTS}")
    assert "3 rows" in place.call("plan", config, *asked, code=0).stdout
    assert str(workdirs[2]) in place.call("status", *asked, config, code=0).stdout
    assert "all are intact" in place.call("verify", config, *asked, code=0).stdout


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--part", "0/8"], 2, "0/8 is not a part such as 3/8, counted from 1"),
        (["--part", "9/8"], 2, "9/8 is not a part"),
        (["--part", "half"], 2, "half is not a part"),
        (["--part", "1/8", "--max-rows", "3"], 2, "--max-rows cannot be combined with --part"),
        (["--part", "1/100"], 78, "Take fewer parts."),
    ],
)
def test_what_is_no_part(
    options: list[str], code: int, words: str, place: ScriptedWorkplace
) -> None:
    """A part that cannot be is refused in words."""
    assert words in place.ends(code, *options).stderr
