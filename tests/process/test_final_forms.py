"""Finals in the form that the config asks for, from a run as a person starts it: made, found done,
made anew.
"""

import importlib.util
import json
from pathlib import Path

import duckdb
import numpy as np
import pytest
import yaml

import chunkvisor
from harness import SOAK_SEED, expected, sweep
from scripted_workplace import ScriptedWorkplace
from soaked import wide

TEXTS = ["t0", "t1", "t0", "t2", "t3", "t4", "t1", "t5"]


def own_files(place: ScriptedWorkplace) -> set[str]:
    """Names in the workdir that belong to the output."""
    return {path.name for path in place.workdir.iterdir() if path.name.startswith("out")}


def set_form(place: ScriptedWorkplace, form: dict[str, str]) -> None:
    """Have the config ask for this form of the output."""
    config = yaml.safe_load(place.config_path.read_text())
    config["outputs"]["out"] |= form
    place.config_path.write_text(yaml.safe_dump(config))


def test_from_the_chunks_to_the_bytes(tmp_path: Path) -> None:
    """float16 with a bad row: NaN, listed and told by code 3; retried it is whole; no other form is
    made of it.
    """
    place = ScriptedWorkplace.make(
        tmp_path / "place", TEXTS, chunk__size=2, outputs__out__dtype="float16"
    )
    place.lay("t1", "value_error!")
    assert place.run_here().returncode == 3
    assert own_files(place) == {"out.npy", "out.json", "out.quarantined.jsonl"}
    assert [row["row"] for row in place.manifest()["quarantined"]] == [1, 6]
    right = expected(TEXTS).astype(np.float16)
    whole = right.copy()
    right[[1, 6]] = np.nan
    np.testing.assert_array_equal(np.load(place.workdir / "out.npy"), right)
    assert place.here("verify", str(place.workdir)).returncode == 0
    place.lift("t1")
    assert place.here("retry", str(place.workdir)).returncode == 0
    assert place.run_here().returncode == 0
    np.testing.assert_array_equal(np.load(place.workdir / "out.npy"), whole)
    refused = place.run_here("--set", "outputs.out.dtype=float32")
    assert refused.returncode == 78
    assert "output out is complete in float16, and the config now asks" in refused.stderr
    # The chunks are kept: what is rounded can be made anew from them.
    again = place.run_here("--from-scratch", "--yes", "--set", "chunk.keep=true")
    assert again.returncode == 0, again.stderr
    calls = len(place.calls())
    ended = place.run_here("--set", "outputs.out.dtype=float32", "--set", "chunk.keep=true")
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    assert (own_files(place), len(place.calls())) == ({"out.npy", "out.json"}, calls)


def test_the_manifest_says_which_text_was_encoded(tmp_path: Path) -> None:
    """Column, or template and condition: whoever finds a file a year later knows what its vectors
    are of.
    """
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS)
    assert place.run_here().returncode == 0
    assert place.manifest()["text"] == {"column": "text"}
    text = {"template": "{text}!", "where": "text <> 't0'"}
    place.write_config("scripted:make", outputs={"out": {"source": "rows.jsonl", **text}})
    assert place.run_here("--update").returncode == 0
    assert place.manifest()["text"] == text


def test_parquet(tmp_path: Path) -> None:
    """A table of row and vector, null where a row has no vector, made from the finished array
    without encoding.
    """
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=2)
    place.lay("t1", "value_error!")
    assert place.run_here().returncode == 3
    calls = len(place.calls())
    ended = place.run_here("--set", "outputs.out.format=parquet")
    assert ended.returncode == 3, ended.stderr
    assert len(place.calls()) == calls
    assert own_files(place) == {"out.parquet", "out.json", "out.quarantined.jsonl"}
    table = pq.read_table(place.workdir / "out.parquet")
    assert table.column_names == ["row", "vector"]
    assert table["row"].to_pylist() == list(range(len(TEXTS)))
    right = [
        None if text == "t1" else row.tolist()
        for text, row in zip(TEXTS, expected(TEXTS), strict=True)
    ]
    assert table["vector"].to_pylist() == right
    with pytest.warns(chunkvisor.QuarantineWarning):
        report = chunkvisor.run(place.config_path, set="outputs.out.format=parquet")
    np.testing.assert_array_equal(report.outputs["out"].vectors()[0], expected(TEXTS)[0])
    status = json.loads(place.here("status", str(place.workdir), "--json").stdout)
    assert status["state"] == "complete"
    verified = place.here("verify", str(place.workdir))
    assert verified.returncode == 0, verified.stderr
    data = bytearray((place.workdir / "out.parquet").read_bytes())
    data[len(data) // 3] ^= 1
    (place.workdir / "out.parquet").write_bytes(data)
    assert "out.parquet" in place.here("verify", str(place.workdir)).stderr


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
        assert each.run_here().returncode == 0
    place.write_config("scripted:make", chunk__size=2)
    set_form(place, after)
    calls = len(place.calls())
    names = ("set_aside", "sync_folder", "write_sealed", "write_record")
    lines = sweep(
        "each",
        when,
        place.folder,
        tmp_path / "scratch",
        *(f"chunkvisor.outputs.publish:{name}" for name in names),
        share="1:" if SOAK_SEED else "2:a",
    )
    assert lines
    for line in lines:
        assert line.get("returncode") == 0, line
        result = ScriptedWorkplace(Path(line["folder"]))
        assert own_files(result) == own_files(right), line
        for name in own_files(right) - {"out.json"}:
            found = (result.workdir / name).read_bytes()
            assert found == (right.workdir / name).read_bytes(), line
        assert len(result.calls()) == calls, line


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
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=2)
    place.source.write_text("".join(json.dumps(row) + "\n" for row in SOURCE))
    config = yaml.safe_load(place.config_path.read_text())
    config["outputs"]["out"] |= {"where": "split = 'a'", "columns": ["id"]}
    place.config_path.write_text(yaml.safe_dump(config))
    assert place.run_here().returncode == 0
    np.testing.assert_array_equal(place.vectors(), expected([TEXTS[number] for number in KEPT]))
    table = place.workdir / "out.rows.parquet"
    right = [
        ("row", "source_row", "id"),
        *((row, number, number) for row, number in enumerate(KEPT)),
    ]
    assert rows_of(table) == right
    calls = len(place.calls())
    assert place.here("clean", str(place.workdir)).returncode == 0
    assert "complete already" in place.run_here().stderr
    table.write_bytes(b"mine")
    assert "out.rows.parquet" in place.here("verify", str(place.workdir)).stderr
    assert place.run_here().returncode == 0
    assert rows_of(table) == right
    ended = place.run_here("--set", "outputs.out.columns=[split, id]")
    assert ended.returncode == 0, ended.stderr
    assert rows_of(table)[:2] == [("row", "source_row", "split", "id"), (0, 0, "a", 0)]
    assert place.here("verify", str(place.workdir)).returncode == 0
    refused = place.run_here("--set", "outputs.out.where=split = 'b'")
    assert refused.returncode == 78
    assert "where: \"split = 'a'\" before" in refused.stderr
    assert len(place.calls()) == calls
    if importlib.util.find_spec("pyarrow") is not None:
        assert place.run_here("--set", "outputs.out.format=parquet").returncode == 0
        names, *found = rows_of(place.workdir / "out.parquet")
        assert names == ("row", "source_row", "id", "vector")
        assert [row[:3] for row in found] == right[1:]
        vectors = [row[3] for row in found]
        np.testing.assert_array_equal(vectors, expected([TEXTS[number] for number in KEPT]))
        assert not table.exists()
        assert len(place.calls()) == calls


def combining(folder: Path, **changes: object) -> ScriptedWorkplace:
    """Two outputs over two sources, and both side by side."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2, combine={"both": ["out", "again"]})
    more = folder / "more.jsonl"
    more.write_text("".join(json.dumps({"text": text}) + "\n" for text in reversed(TEXTS)))
    config = yaml.safe_load(place.config_path.read_text())
    config["outputs"]["again"] = {"source": str(more), "column": "text", **changes}
    place.config_path.write_text(yaml.safe_dump(config))
    return place


def test_side_by_side(tmp_path: Path) -> None:
    """Row i is row i of each, a row without a vector in either is marked; found done, made anew
    after a change.
    """
    place = combining(tmp_path / "place")
    place.lay("t5", "value_error!")
    assert place.run_here().returncode == 3
    right = np.concatenate([expected(TEXTS), expected(TEXTS[::-1])], axis=1)
    right[7, :8], right[0, 8:] = np.nan, np.nan
    np.testing.assert_array_equal(np.load(place.workdir / "both.npy"), right)
    manifest = json.loads((place.workdir / "both.json").read_text())
    assert [row["row"] for row in manifest["quarantined"]] == [0, 7]
    assert [(each["output"], each["dimension"]) for each in manifest["combined"]] == [
        ("out", 8),
        ("again", 8),
    ]
    assert place.here("verify", str(place.workdir)).returncode == 0
    stamp = (place.workdir / "both.npy").stat().st_mtime_ns
    assert place.run_here().returncode == 3
    assert (place.workdir / "both.npy").stat().st_mtime_ns == stamp
    place.lift("t5")
    assert place.here("retry", str(place.workdir)).returncode == 0
    assert place.run_here().returncode == 0
    right = np.concatenate([expected(TEXTS), expected(TEXTS[::-1])], axis=1)
    np.testing.assert_array_equal(np.load(place.workdir / "both.npy"), right)
    assert chunkvisor.run(place.config_path).outputs["both"].manifest["dimension"] == 16
    data = bytearray((place.workdir / "both.npy").read_bytes())
    data[-3] ^= 1
    (place.workdir / "both.npy").write_bytes(data)
    assert "both.npy: has another digest" in place.here("verify", str(place.workdir)).stderr
    assert place.run_here().returncode == 0
    np.testing.assert_array_equal(np.load(place.workdir / "both.npy"), right)


def test_side_by_side_in_float16(tmp_path: Path) -> None:
    """Outputs of one dtype are combined in it."""
    place = combining(tmp_path / "place", dtype="float16")
    set_form(place, {"dtype": "float16"})
    assert place.run_here().returncode == 0
    parts = [np.load(place.workdir / f"{name}.npy") for name in ("out", "again")]
    found = np.load(place.workdir / "both.npy")
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.concatenate(parts, axis=1))
    assert place.here("verify", str(place.workdir)).returncode == 0


def rows_in(path: Path) -> list[int]:
    """Numbers of the rows that a list next to a final has."""
    return [json.loads(line)["row"] for line in path.read_text().splitlines()]


def test_more_rows_than_a_manifest_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows without a vector are in a list next to each final; whatever counts or names them has
    all.
    """
    monkeypatch.setattr("chunkvisor.outputs.publish.MOST_LISTED", 2)
    place = combining(tmp_path / "place")
    bad = {"out": [0, 1, 2, 6], "again": [1, 5, 6, 7], "both": [0, 1, 2, 5, 6, 7]}
    for text in ("t0", "t1"):
        place.lay(text, "value_error!")
    for _ in range(2):
        ended = place.run_here()
        assert ended.returncode == 3, ended.stderr
        assert "8 rows could not be encoded" in ended.stderr
        assert "of the first 4:" in ended.stderr
        for name, rows in bad.items():
            made = json.loads((place.workdir / f"{name}.json").read_text())
            assert [each["row"] for each in made["quarantined"]] == rows[:2]
            assert made["quarantined_rows"] == len(rows)
            assert rows_in(place.workdir / f"{name}.quarantined.jsonl") == rows
    assert place.here("verify", str(place.workdir)).returncode == 0
    assert place.status()["outputs"]["out"]["quarantined"] == 4
    audited = place.here("audit", str(place.config_path))
    assert (audited.returncode, audited.stdout.count("4 rows encoded again; 0 differ")) == (0, 2)
    with pytest.warns(chunkvisor.QuarantineWarning, match="8 rows have no vector"):
        report = chunkvisor.run(place.config_path)
    assert [each.row for each in report.outputs["out"].quarantined] == bad["out"]
    assert report.quarantined == 8

    # The list is checked, and comes back from the state.
    mine = place.workdir / "out.quarantined.jsonl"
    for damage in (lambda: mine.write_text("mine"), mine.unlink):
        damage()
        assert mine.name in place.here("verify", str(place.workdir)).stderr
        assert place.run_here().returncode == 3
        assert rows_in(mine) == bad["out"]

    # Another output takes over what has a vector and nothing else, and `retry` finds all texts.
    set_form(place, {"where": "text <> 't5'"})
    assert place.run_here("--update", "--set", "combine={}").returncode == 3
    assert rows_in(mine) == bad["out"]
    for text in ("t0", "t1"):
        place.lift(text)
    retried = place.here("retry", str(place.workdir))
    assert "4 texts" in retried.stdout
    assert place.run_here("--set", "combine={}").returncode == 0
    assert place.here("verify", str(place.workdir)).returncode == 0
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS[:-1]))
    assert {path.name for path in place.workdir.glob("*.quarantined.jsonl")} == {
        "both.quarantined.jsonl"
    }


def test_other_rows_are_not_side_by_side(tmp_path: Path) -> None:
    """Outputs of different length are refused by name before anything is encoded, by `run` and by
    `plan`.
    """
    place = combining(tmp_path / "place")
    (place.folder / "more.jsonl").write_text('{"text": "t0"}\n')
    for command in ("run", "plan"):
        ended = place.here(command, str(place.config_path))
        assert ended.returncode == 78
        assert "combine.both: out has 8 rows, again has 1 row" in ended.stderr
    assert place.calls() == []
