"""Finals in the form that the config asks for, from a run as a person starts it: made, found done,
made anew.
"""

import importlib.util
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import chunkvisor
from damaged import flip
from harness import events_in, expected, vector_of, write_lines
from killed import killed_anywhere
from scripted_workplace import ScriptedWorkplace
from soaked import wide

TEXTS = ["t0", "t1", "t0", "t2", "t3", "t4", "t1", "t5"]


def own_files(place: ScriptedWorkplace) -> set[str]:
    """Names in the workdir that belong to the output."""
    return {path.name for path in place.workdir.iterdir() if path.name.startswith("out")}


def set_form(place: ScriptedWorkplace, form: dict[str, Any]) -> None:
    """Have the config ask for this form of the output."""
    place.set(**{f"outputs.out.{key}": value for key, value in form.items()})


def test_from_the_chunks_to_the_bytes(tmp_path: Path) -> None:
    """float16 with a bad row: NaN, listed and told by code 3; retried it is whole; no other form is
    made of it.
    """
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2, outputs__out__dtype="float16")
    place.lay("t1", "value_error!")
    place.ends(3)
    assert own_files(place) == {"out.npy", "out.json", "out.quarantined.jsonl"}
    place.has(TEXTS, [1, 6], dtype="float16")
    place.does("verify")
    place.lift("t1")
    place.does("retry")
    place.ends(0)
    place.has(TEXTS, dtype="float16")
    refused = place.ends(78, "--set", "outputs.out.dtype=float32")
    assert "output out is complete in float16, and the config now asks" in refused.stderr
    # The chunks are kept: what is rounded can be made anew from them.
    place.ends(0, "--from-scratch", "--yes", "--set", "chunk.keep=true")
    calls = len(place.calls())
    place.gives(TEXTS, "--set", "outputs.out.dtype=float32", "--set", "chunk.keep=true")
    assert (own_files(place), len(place.calls())) == ({"out.npy", "out.json"}, calls)


def test_the_manifest_says_which_text_was_encoded(tmp_path: Path) -> None:
    """Column, or template and condition: whoever finds a file a year later knows what its vectors
    are of.
    """
    place = ScriptedWorkplace.make(tmp_path, TEXTS)
    place.ends(0)
    assert place.manifest()["text"] == {"column": "text"}
    text = {"template": "{text}!", "where": "text <> 't0'"}
    place.write_config("scripted:make", outputs={"out": {"source": "rows.jsonl", **text}})
    place.ends(0, "--update")
    assert place.manifest()["text"] == text


def test_parquet(tmp_path: Path) -> None:
    """A table of row and vector, null where a row has no vector, made from the finished array
    without encoding.
    """
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2)
    place.lay("t1", "value_error!")
    place.ends(3)
    calls = len(place.calls())
    place.ends(3, "--set", "outputs.out.format=parquet")
    assert len(place.calls()) == calls
    assert own_files(place) == {"out.parquet", "out.json", "out.quarantined.jsonl"}
    table = pq.read_table(place.workdir / "out.parquet")
    assert table.column_names == ["row", "vector"]
    assert table["row"].to_pylist() == list(range(len(TEXTS)))
    right = [None if text == "t1" else vector_of(text).tolist() for text in TEXTS]
    assert table["vector"].to_pylist() == right
    with pytest.warns(chunkvisor.QuarantineWarning):
        report = chunkvisor.run(place.config_path, set="outputs.out.format=parquet")
    np.testing.assert_array_equal(report.outputs["out"].vectors()[0], expected(TEXTS)[0])
    assert place.status()["state"] == "complete"
    place.does("verify")
    flip(place.workdir / "out.parquet")
    assert "out.parquet" in place.does("verify", code=74).stderr


FORMS = [
    ({}, {"dtype": "float16"}, "after"),
    *wide(
        ({}, {"format": "parquet"}, "before"),
        ({"format": "parquet"}, {"dtype": "float16"}, "before"),
        ({"format": "parquet"}, {}, "after"),
    ),
]


@pytest.mark.soak
@pytest.mark.parametrize(("before", "after", "when"), FORMS)
def test_killed_between_two_forms(
    tmp_path: Path, before: dict[str, str], after: dict[str, str], when: str
) -> None:
    """A run killed at any step from one form to another loses no row; the next one ends with one
    form of them.
    """
    if "format" in before | after:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    place, right = (
        ScriptedWorkplace.make(tmp_path / name, TEXTS, chunk__size=2) for name in ("place", "right")
    )
    for each, form in ((place, before), (right, after)):
        set_form(each, form)
        each.ends(0)
    place.write_config("scripted:make", chunk__size=2)
    set_form(place, after)
    calls = len(place.calls())
    names = ("set_aside", "sync", "write_sealed", "write_record")
    steps = (f"chunkvisor.outputs.publish:{name}" for name in names)
    for result in killed_anywhere(place, tmp_path / "scratch", when, "2:a", *steps):
        assert own_files(result) == own_files(right)
        for name in own_files(right) - {"out.json"}:
            assert (result.workdir / name).read_bytes() == (right.workdir / name).read_bytes()
        assert len(result.calls()) == calls


SOURCE = [
    {"text": text, "id": number, "split": "b" if number == 3 else "a"}
    for number, text in enumerate(TEXTS)
]
KEPT = [number for number in range(len(TEXTS)) if number != 3]


def rows_of(path: Path) -> list[tuple[object, ...]]:
    """A parquet file as tuples, its columns' names first."""
    cursor = duckdb.connect().execute(f"FROM '{path}'")
    return [tuple(column[0] for column in cursor.description or ()), *cursor.fetchall()]


def test_rows_left_out_and_columns_carried(tmp_path: Path) -> None:
    """Rows that `where` leaves out are in no final; the table beside it says which row is which,
    also after `clean`.
    """
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2)
    write_lines(place.source, SOURCE)
    set_form(place, {"where": "split = 'a'", "columns": ["id"]})
    place.gives([TEXTS[number] for number in KEPT])
    table = place.workdir / "out.rows.parquet"
    right = [
        ("row", "source_row", "id"),
        *((row, number, number) for row, number in enumerate(KEPT)),
    ]
    assert rows_of(table) == right
    calls = len(place.calls())
    place.does("clean")
    assert "complete already" in place.run().stderr
    table.write_bytes(b"mine")
    assert "out.rows.parquet" in place.does("verify", code=74).stderr
    place.ends(0)
    assert rows_of(table) == right
    place.ends(0, "--set", "outputs.out.columns=[split, id]")
    assert rows_of(table)[:2] == [("row", "source_row", "split", "id"), (0, 0, "a", 0)]
    place.does("verify")
    refused = place.ends(78, "--set", "outputs.out.where=split = 'b'")
    assert "where: \"split = 'a'\" before" in refused.stderr
    assert len(place.calls()) == calls
    if importlib.util.find_spec("pyarrow") is not None:
        place.ends(0, "--set", "outputs.out.format=parquet")
        names, *found = rows_of(place.workdir / "out.parquet")
        assert names == ("row", "source_row", "id", "vector")
        assert [row[:3] for row in found] == right[1:]
        vectors = [row[3] for row in found]
        np.testing.assert_array_equal(vectors, expected([TEXTS[number] for number in KEPT]))
        assert not table.exists()
        assert len(place.calls()) == calls


def combining(folder: Path, **changes: object) -> ScriptedWorkplace:
    """Two outputs over two sources, and both side by side."""
    again = {"source": "more.jsonl", "column": "text", **changes}
    both = {"outputs__again": again, "combine": {"both": ["out", "again"]}}
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2, **both)
    place.write_source(TEXTS[::-1], "more")
    return place


def test_side_by_side(tmp_path: Path) -> None:
    """Row i is row i of each, a row without a vector in either is marked; found done, made anew
    after a change.
    """
    place = combining(tmp_path / "place")
    place.lay("t5", "value_error!")
    place.ends(3)
    right = np.concatenate([expected(TEXTS), expected(TEXTS[::-1])], axis=1)
    right[7, :8], right[0, 8:] = np.nan, np.nan
    np.testing.assert_array_equal(place.vectors("both"), right)
    manifest = place.manifest("both")
    assert [row["row"] for row in manifest["quarantined"]] == [0, 7]
    parts = [(each["output"], each["dimension"]) for each in manifest["combined"]]
    assert parts == [("out", 8), ("again", 8)]
    place.does("verify")
    stamp = (place.workdir / "both.npy").stat().st_mtime_ns
    place.ends(3)
    assert (place.workdir / "both.npy").stat().st_mtime_ns == stamp
    place.lift("t5")
    place.does("retry")
    place.ends(0)
    right = np.concatenate([expected(TEXTS), expected(TEXTS[::-1])], axis=1)
    np.testing.assert_array_equal(place.vectors("both"), right)
    assert chunkvisor.run(place.config_path).outputs["both"].manifest["dimension"] == 16
    flip(place.workdir / "both.npy")
    assert "both.npy: has another digest" in place.does("verify", code=74).stderr
    place.ends(0)
    np.testing.assert_array_equal(place.vectors("both"), right)


def test_side_by_side_in_float16(tmp_path: Path) -> None:
    """Outputs of one dtype are combined in it."""
    place = combining(tmp_path / "place", dtype="float16")
    set_form(place, {"dtype": "float16"})
    place.ends(0)
    parts = [place.vectors(name) for name in ("out", "again")]
    found = place.vectors("both")
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.concatenate(parts, axis=1))
    place.does("verify")


def rows_in(path: Path) -> list[int]:
    """Numbers of the rows that a list next to a final has."""
    return [line["row"] for line in events_in(path)]


def test_more_rows_than_a_manifest_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows without a vector are in a list next to each final; whatever counts or names them has
    all.
    """
    monkeypatch.setattr("chunkvisor.outputs.publish.MOST_LISTED", 2)
    place = combining(tmp_path / "place")
    bad = {"out": [0, 1, 2, 6], "again": [1, 5, 6, 7], "both": [0, 1, 2, 5, 6, 7]}
    place.lay(("t0", "t1"), "value_error!")
    for _ in range(2):
        ended = place.ends(3)
        assert "8 rows could not be encoded" in ended.stderr
        assert "of the first 4:" in ended.stderr
        for name, rows in bad.items():
            made = place.manifest(name)
            assert [each["row"] for each in made["quarantined"]] == rows[:2]
            assert made["quarantined_rows"] == len(rows)
            assert rows_in(place.workdir / f"{name}.quarantined.jsonl") == rows
    place.does("verify")
    assert place.progress()["quarantined"] == 4
    assert place.does("audit").stdout.count("4 rows encoded again; 0 differ") == 2
    with pytest.warns(chunkvisor.QuarantineWarning, match="8 rows have no vector"):
        report = chunkvisor.run(place.config_path)
    assert [each.row for each in report.outputs["out"].quarantined] == bad["out"]
    assert report.quarantined == 8

    # The list is checked, and comes back from the state.
    mine = place.workdir / "out.quarantined.jsonl"
    for damage in (lambda: mine.write_text("mine"), mine.unlink):
        damage()
        assert mine.name in place.does("verify", code=74).stderr
        place.ends(3)
        assert rows_in(mine) == bad["out"]

    # Another output takes over what has a vector and nothing else, and `retry` finds all texts.
    set_form(place, {"where": "text <> 't5'"})
    place.ends(3, "--update", "--set", "combine={}")
    assert rows_in(mine) == bad["out"]
    place.lift("t0", "t1")
    assert "4 texts" in place.does("retry").stdout
    place.ends(0, "--set", "combine={}")
    place.does("verify")
    place.has(TEXTS[:-1])
    (left,) = place.workdir.glob("*.quarantined.jsonl")
    assert left.name == "both.quarantined.jsonl"


def test_other_rows_are_not_side_by_side(tmp_path: Path) -> None:
    """Outputs of different length are refused by name before anything is encoded, by `run` and by
    `plan`.
    """
    place = combining(tmp_path / "place")
    place.write_source(["t0"], "more")
    for command in ("run", "plan"):
        ended = place.does(command, code=78)
        assert "combine.both: out has 8 rows, again has 1 row" in ended.stderr
    assert place.calls() == []
