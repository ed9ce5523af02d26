"""A text that has a vector is not encoded again: in another output, an earlier state or form,
another workdir.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness import expected
from scripted_workplace import ScriptedWorkplace

FIRST = ["a", "b", "c", "a", "d", "e"]
SECOND = ["x", "d", "y", "b", "x", "b", "e"]
OF_MORE = {"source": "more.jsonl", "column": "text"}


def write_more(place: ScriptedWorkplace, texts: Sequence[str], name: str = "more") -> None:
    """The source of a second output."""
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (place.folder / f"{name}.jsonl").write_text("".join(lines))


def set_output(place: ScriptedWorkplace, name: str = "more", **keys: object) -> None:
    """One more output, or other keys of one that is there."""
    config = yaml.safe_load(place.config_path.read_text())
    config["outputs"].setdefault(name, {"source": f"{name}.jsonl", "column": "text"}).update(keys)
    place.config_path.write_text(yaml.safe_dump(config))


def encoded(place: ScriptedWorkplace) -> list[str]:
    """The texts that were encoded so far, in order."""
    return [text for call in place.calls() for text in call]


def vectors(place: ScriptedWorkplace, name: str) -> np.ndarray:
    """A final file."""
    return np.load(place.workdir / f"{name}.npy", allow_pickle=False)


def manifest(place: ScriptedWorkplace, name: str) -> dict[str, object]:
    """Of an output."""
    found: dict[str, object] = json.loads((place.workdir / f"{name}.json").read_text())
    return found


def test_finished_output_serves_a_new_one(tmp_path: Path) -> None:
    """A later output takes over what a finished one has."""
    place = ScriptedWorkplace.make(tmp_path, FIRST, chunk__size=2)
    assert place.run_here().returncode == 0
    assert place.here("clean", str(place.workdir)).returncode == 0
    write_more(place, SECOND)
    set_output(place)
    assert place.run_here().returncode == 0
    assert encoded(place)[5:] == ["x", "y"]
    np.testing.assert_array_equal(vectors(place, "more"), expected(SECOND))


@pytest.mark.parametrize(
    ("flags", "keys"), [(["--set", "reuse=false"], {}), ([], {"encode": {"prompt": "q: "}})]
)
def test_nothing_to_take_over(tmp_path: Path, flags: list[str], keys: dict[str, Any]) -> None:
    """With `reuse: false`, and where the vectors would be others, everything is encoded."""
    place = ScriptedWorkplace.make(tmp_path, FIRST, chunk__size=2)
    assert place.run_here().returncode == 0
    write_more(place, SECOND)
    set_output(place, **keys)
    assert place.run_here(*flags).returncode == 0
    assert sorted(text.removeprefix("q: ") for text in encoded(place)[5:]) == [
        "b",
        "d",
        "e",
        "x",
        "y",
    ]


def test_other_workdir_is_only_read(tmp_path: Path) -> None:
    """Another workdir's vectors are taken over once and for all, and nothing of it is written."""
    other = ScriptedWorkplace.make(tmp_path / "other", FIRST, chunk__size=2)
    assert other.run_here().returncode == 0
    before = {path: path.stat() for path in other.workdir.rglob("*") if path.is_file()}
    place = ScriptedWorkplace.make(
        tmp_path / "place", SECOND, chunk__size=2, reuse_from=[str(other.workdir)]
    )
    place.lay("y", "crash!")
    assert place.run_here(
        "--set", "recovery.attempts=1", "--set", "recovery.on_bad_row=fail"
    ).returncode not in (0, 3)
    after = {path: path.stat() for path in other.workdir.rglob("*") if path.is_file()}
    assert {path: (each.st_mtime_ns, each.st_ctime_ns) for path, each in before.items()} == {
        path: (each.st_mtime_ns, each.st_ctime_ns) for path, each in after.items()
    }
    (other.workdir / "out.npy").unlink()
    place.lift("y")
    # after the crash a text that was taken over may have been the canary
    calls = len(encoded(place))
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    assert not {"b", "d", "e"}.intersection(encoded(place)[calls:])
    np.testing.assert_array_equal(place.vectors(), expected(SECOND))
    assert str(other.workdir) in place.manifest()["reused"][0]["from"]


def test_folder_that_is_no_workdir(tmp_path: Path) -> None:
    """A folder in reuse_from that is no workdir is refused by its name."""
    place = ScriptedWorkplace.make(tmp_path, FIRST, reuse_from=["nowhere"])
    ended = place.run_here()
    assert ended.returncode == 78
    assert "reuse_from" in ended.stderr
    assert str(tmp_path / "nowhere") in ended.stderr


def test_bad_rows_are_no_vectors(tmp_path: Path) -> None:
    """A row without a vector is not taken for one; after a mend, `retry` has only its text encoded,
    for all outputs.
    """
    place = ScriptedWorkplace.make(tmp_path, FIRST, chunk__size=2, outputs__more=OF_MORE)
    write_more(place, SECOND)
    place.lay("b", "value_error!")
    ended = place.run_here()
    assert ended.returncode == 3, ended.stderr
    assert [each["row"] for each in place.manifest()["quarantined"]] == [1]
    assert [each["row"] for each in manifest(place, "more")["quarantined"]] == [3, 5]  # type: ignore[attr-defined]
    write_more(place, ["b", "c"], "third")
    set_output(place, "third")
    ended = place.run_here()
    assert ended.returncode == 3, ended.stderr
    assert [each["row"] for each in manifest(place, "third")["quarantined"]] == [0]  # type: ignore[attr-defined]
    place.lift("b")
    before = len(encoded(place))
    assert place.here("retry", str(place.workdir)).returncode == 0
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    assert set(encoded(place)[before:]) == {"b"}
    for name, texts in {"out": FIRST, "more": SECOND, "third": ["b", "c"]}.items():
        np.testing.assert_array_equal(vectors(place, name), expected(texts))


TEXTS = [f"t{number}" for number in range(8)]
NEW_TEXTS = ["n0", *TEXTS[3:], TEXTS[4]]


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        ("float32", "float16", ["n0"]),
        ("float16", "float32", list(dict.fromkeys(NEW_TEXTS))),
    ],
)
def test_dtypes(tmp_path: Path, before: str, after: str, new: list[str]) -> None:
    """From float32, only new texts are encoded, whatever is made of it; nothing is taken from what
    is rounded.
    """
    place = ScriptedWorkplace.make(
        tmp_path / "place", TEXTS, chunk__size=3, outputs__out__dtype=before
    )
    assert place.run_here().returncode == 0
    done = len(encoded(place))
    place.write_source(NEW_TEXTS)
    set_output(place, "out", dtype=after)
    ended = place.run_here("--update")
    assert ended.returncode == 0, ended.stderr
    assert sorted(encoded(place)[done:]) == sorted(new)
    assert ("which is rounded" in ended.stderr) == (before == "float16")
    assert {path.name for path in place.workdir.glob("out*")} == {"out.npy", "out.json"}
    fresh = ScriptedWorkplace.make(
        tmp_path / "fresh", NEW_TEXTS, chunk__size=3, outputs__out__dtype=after
    )
    assert fresh.run_here().returncode == 0
    assert (place.workdir / "out.npy").read_bytes() == (fresh.workdir / "out.npy").read_bytes()
    assert place.here("verify", str(place.workdir)).returncode == 0
    assert "complete already" in place.run_here().stderr


def test_what_tables_have_is_not_encoded_again(tmp_path: Path) -> None:
    """Finished tables serve another output, another workdir, and `retry`."""
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=3)
    set_output(place, "out", format="parquet")
    assert place.run_here().returncode == 0
    done = len(encoded(place))
    set_output(place, format="parquet")
    more = [*TEXTS[::-1], "n1", "bad"]
    write_more(place, more)
    place.lay("bad", "value_error!")
    ended = place.run_here()
    assert ended.returncode == 3, ended.stderr
    assert "8 of 10 texts already have a vector, from output out" in ended.stderr
    assert set(encoded(place)[done:]) == {"bad", "n1", TEXTS[-1]}  # the last one is the canary

    other = ScriptedWorkplace.make(
        tmp_path / "other",
        more,
        chunk__size=3,
        reuse_from=[str(place.workdir)],
    )
    assert other.run_here().returncode == 0
    assert encoded(other) == ["bad"]
    np.testing.assert_array_equal(other.vectors(), expected(more))
    place.lift("bad")
    done = len(encoded(place))
    assert place.here("retry", str(place.workdir)).returncode == 0
    assert place.run_here().returncode == 0
    assert encoded(place)[done:] == ["bad"]
    assert (
        pq.read_table(place.workdir / "more.parquet")["vector"].to_pylist()
        == expected(more).tolist()
    )
    assert place.here("verify", str(place.workdir)).returncode == 0
