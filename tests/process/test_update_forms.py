"""Updates of finals in other forms than float32, and into them; other rows by `where`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness import expected
from scripted_workplace import ScriptedWorkplace

TEXTS = [f"t{number}" for number in range(8)]
NEW_TEXTS = ["n0", *TEXTS[3:], TEXTS[4]]
FILES: dict[str, set[str]] = {
    "float32": {"out.npy", "out.json"},
    "float16": {"out.npy", "out.json"},
    "int8": {"out.npy", "out.json", "out.ranges.npy"},
}


def own_files(place: ScriptedWorkplace) -> set[str]:
    """Names in the workdir that belong to the output."""
    return {path.name for path in place.workdir.iterdir() if path.name.startswith("out")}


def calls(place: ScriptedWorkplace) -> list[str]:
    """The texts that were encoded so far."""
    return [text for call in place.calls() for text in call]


def set_output(place: ScriptedWorkplace, name: str = "out", **keys: Any) -> None:
    """Other keys of an output."""
    config = yaml.safe_load(place.config_path.read_text())
    config["outputs"].setdefault(name, {}).update(keys)
    place.config_path.write_text(yaml.safe_dump(config))


def as_fresh(texts: list[str], folder: Path, dtype: str) -> bytes:
    """The final that a fresh workdir has."""
    fresh = ScriptedWorkplace.make(folder, texts, chunk__size=3, outputs__out__dtype=dtype)
    assert fresh.run_here().returncode == 0
    return (fresh.workdir / "out.npy").read_bytes()


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        ("float32", "int8", ["n0"]),
        ("float32", "float16", ["n0"]),
        ("int8", "float32", list(dict.fromkeys(NEW_TEXTS))),
    ],
)
def test_dtypes(tmp_path: Path, before: str, after: str, new: list[str]) -> None:
    """From float32, only new texts are encoded, whatever is made of it; nothing is taken from what is rounded."""
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=3, outputs__out__dtype=before)
    assert place.run_here().returncode == 0
    done = len(calls(place))
    place.write_source(NEW_TEXTS)
    set_output(place, dtype=after)
    ended = place.run_here("--update")
    assert ended.returncode == 0, ended.stderr
    assert sorted(calls(place)[done:]) == sorted(new)
    assert ("which is rounded" in ended.stderr) == (before == "int8")
    assert own_files(place) == FILES[after]
    assert (place.workdir / "out.npy").read_bytes() == as_fresh(NEW_TEXTS, tmp_path / "fresh", after)
    assert place.here("verify", str(place.workdir)).returncode == 0
    assert "complete already" in place.run_here().stderr


def test_what_tables_have_is_not_encoded_again(tmp_path: Path) -> None:
    """Tables in one run share texts, in one file and in shards, and so do those of another workdir; `retry` as well."""
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    table = {"format": "parquet", "column": "text"}
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=3)
    set_output(place, **table, shards=3)
    set_output(place, "more", **table, source="more.jsonl")
    more = [*TEXTS[::-1], "n1", "bad"]
    (place.folder / "more.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in more))
    place.lay("bad", "value_error!")
    ended = place.run_here()
    assert ended.returncode == 3, ended.stderr
    assert "from output more" in ended.stderr
    assert sorted(set(calls(place))) == sorted({*more})
    others = TEXTS[:-1]  # the last one, the first of `more`, is the canary, too
    assert sorted(text for text in calls(place) if text in others) == others

    other = ScriptedWorkplace.make(
        tmp_path / "other",
        more,
        chunk__size=3,
        reuse_from=[str(place.workdir)],
    )
    assert other.run_here().returncode == 0
    assert calls(other) == ["bad"]
    np.testing.assert_array_equal(other.vectors(), expected(more))
    place.lift("bad")
    done = len(calls(place))
    assert place.here("retry", str(place.workdir)).returncode == 0
    assert place.run_here().returncode == 0
    assert calls(place)[done:] == ["bad"]
    assert pq.read_table(place.workdir / "more.parquet")["vector"].to_pylist() == expected(more).tolist()
    assert place.here("verify", str(place.workdir)).returncode == 0


def test_chunks_that_are_kept(tmp_path: Path) -> None:
    """Where the chunks of a rounded final are kept, an update takes their vectors."""
    place = ScriptedWorkplace.make(
        tmp_path / "place", TEXTS, chunk={"size": 3, "keep": True}, outputs__out__dtype="int8"
    )
    assert place.run_here().returncode == 0
    done = len(calls(place))
    place.write_source(NEW_TEXTS)
    ended = place.run_here("--update")
    assert ended.returncode == 0, ended.stderr
    assert calls(place)[done:] == ["n0"]
    assert (place.workdir / "out.npy").read_bytes() == as_fresh(NEW_TEXTS, tmp_path / "fresh", "int8")


def test_other_outputs_that_are_rounded(tmp_path: Path) -> None:
    """Nothing is taken from an output that is int8, so it comes last, and takes what the others have."""
    more = {"source": "more.jsonl", "column": "text", "dtype": "int8"}
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=3, outputs__more=more)
    (place.folder / "more.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[::-1]))
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    assert len(calls(place)) == len(TEXTS)
