"""A text that has a vector is not encoded again: in another output, an earlier state or form,
another workdir.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import expected
from scripted_workplace import ScriptedWorkplace

FIRST = ["a", "b", "c", "a", "d", "e"]
SECOND = ["x", "d", "y", "b", "x", "b", "e"]


def add(place: ScriptedWorkplace, texts: Sequence[str], name: str = "more", **keys: object) -> None:
    """One more output over these texts."""
    place.write_source(texts, name)
    place.set(**{f"outputs.{name}": {"source": f"{name}.jsonl", "column": "text", **keys}})


def test_finished_output_serves_a_new_one(tmp_path: Path) -> None:
    """A later output takes over what a finished one has."""
    place = ScriptedWorkplace.make(tmp_path, FIRST, chunk__size=2)
    place.ends(0)
    place.does("clean")
    add(place, SECOND)
    place.ends(0)
    assert place.encoded()[5:] == ["x", "y"]
    place.has(SECOND, name="more")


@pytest.mark.parametrize(
    ("flags", "keys"), [(["--set", "reuse=false"], {}), ([], {"encode": {"prompt": "q: "}})]
)
def test_nothing_to_take_over(tmp_path: Path, flags: list[str], keys: dict[str, Any]) -> None:
    """With `reuse: false`, and where the vectors would be others, everything is encoded."""
    place = ScriptedWorkplace.make(tmp_path, FIRST, chunk__size=2)
    place.ends(0)
    add(place, SECOND, **keys)
    place.ends(0, *flags)
    assert {text.removeprefix("q: ") for text in place.encoded()[5:]} == set(SECOND)


def times(folder: Path) -> dict[Path, tuple[int, int]]:
    """When each file in the folder was changed."""
    found = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (each.st_mtime_ns, each.st_ctime_ns) for path, each in found.items()}


def test_other_workdir_is_only_read(tmp_path: Path) -> None:
    """Another workdir's vectors are taken over once and for all, and nothing of it is written."""
    other = ScriptedWorkplace.make(tmp_path / "other", FIRST, chunk__size=2)
    other.ends(0)
    before = times(other.workdir)
    place = ScriptedWorkplace.make(
        tmp_path / "place", SECOND, chunk__size=2, reuse_from=[str(other.workdir)]
    )
    place.lay("y", "crash!")
    place.ends(78, "--set", "recovery.attempts=1", "--set", "recovery.on_bad_row=fail")
    assert times(other.workdir) == before
    other.final.unlink()
    place.lift("y")
    calls = len(place.encoded())  # a text that was taken over may have been the canary
    place.gives(SECOND)
    assert not {"b", "d", "e"}.intersection(place.encoded()[calls:])
    assert str(other.workdir) in place.manifest()["reused"][0]["from"]


def test_folder_that_is_no_workdir(tmp_path: Path) -> None:
    """A folder in reuse_from that is no workdir is refused by its name."""
    place = ScriptedWorkplace.make(tmp_path, FIRST, reuse_from=["nowhere"])
    ended = place.ends(78)
    assert "reuse_from" in ended.stderr
    assert str(tmp_path / "nowhere") in ended.stderr


def test_bad_rows_are_no_vectors(tmp_path: Path) -> None:
    """A row without a vector is not taken for one; after a mend, `retry` has only its text encoded,
    for all outputs.
    """
    place = ScriptedWorkplace.make(tmp_path, FIRST, chunk__size=2)
    add(place, SECOND)
    place.lay("b", "value_error!")
    place.gives(FIRST, bad=[1])
    place.has(SECOND, [3, 5], "more")
    add(place, ["b", "c"], "third")
    place.ends(3)
    place.has(["b", "c"], [0], "third")
    place.lift("b")
    before = len(place.encoded())
    place.does("retry")
    place.ends(0)
    assert set(place.encoded()[before:]) == {"b"}
    for name, texts in {"out": FIRST, "more": SECOND, "third": ["b", "c"]}.items():
        place.has(texts, name=name)


TEXTS = [f"t{number}" for number in range(8)]
NEW_TEXTS = ["n0", *TEXTS[3:], TEXTS[4]]


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [("float32", "float16", ["n0"]), ("float16", "float32", list(dict.fromkeys(NEW_TEXTS)))],
)
def test_dtypes(tmp_path: Path, before: str, after: str, new: list[str]) -> None:
    """From float32, only new texts are encoded, whatever is made of it; nothing is taken from what
    is rounded.
    """
    place = ScriptedWorkplace.make(
        tmp_path / "place", TEXTS, chunk__size=3, outputs__out__dtype=before
    )
    place.ends(0)
    done = len(place.encoded())
    place.write_source(NEW_TEXTS)
    place.set(outputs__out__dtype=after)
    ended = place.ends(0, "--update")
    assert sorted(place.encoded()[done:]) == sorted(new)
    assert ("which is rounded" in ended.stderr) == (before == "float16")
    assert {path.name for path in place.workdir.glob("out*")} == {"out.npy", "out.json"}
    fresh = ScriptedWorkplace.make(
        tmp_path / "fresh", NEW_TEXTS, chunk__size=3, outputs__out__dtype=after
    )
    fresh.ends(0)
    assert place.final.read_bytes() == fresh.final.read_bytes()
    place.does("verify")
    assert "complete already" in place.ends(0).stderr


def test_what_tables_have_is_not_encoded_again(tmp_path: Path) -> None:
    """Finished tables serve another output, another workdir, and `retry`."""
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=3)
    place.set(outputs__out__format="parquet")
    place.ends(0)
    done = len(place.encoded())
    more = [*TEXTS[::-1], "n1", "bad"]
    add(place, more, format="parquet")
    place.lay("bad", "value_error!")
    assert "8 of 10 texts already have a vector, from output out" in place.ends(3).stderr
    assert set(place.encoded()[done:]) == {"bad", "n1", TEXTS[-1]}  # the last one is the canary

    from_place = {"reuse_from": [str(place.workdir)]}
    other = ScriptedWorkplace.make(tmp_path / "other", more, chunk__size=3, **from_place)
    other.gives(more)
    assert other.encoded() == ["bad"]
    place.lift("bad")
    done = len(place.encoded())
    place.does("retry")
    place.ends(0)
    assert place.encoded()[done:] == ["bad"]
    table = pq.read_table(place.workdir / "more.parquet")
    assert table["vector"].to_pylist() == expected(more).tolist()
    place.does("verify")
