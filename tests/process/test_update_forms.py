"""Updates of finals in other forms than float32, and into them; other rows by `where`."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness import SOAK_SEED, expected, sweep
from scripted_workplace import ScriptedWorkplace
from soaked import wide

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


def test_parquet(tmp_path: Path) -> None:
    """An array becomes a table by an update, which goes with it; an update of the table takes its vectors."""
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=3)
    assert place.run_here().returncode == 0
    done = len(calls(place))
    set_output(place, format="parquet")
    for texts, new in (([*TEXTS, "n0"], ["n0"]), (["n1", *TEXTS[:3]], ["n1"])):
        place.write_source(texts)
        ended = place.run_here("--update")
        assert ended.returncode == 0, ended.stderr
        assert sorted(calls(place)[done:]) == sorted(new)
        assert own_files(place) == {"out.parquet", "out.json"}
        assert pq.read_table(place.workdir / "out.parquet")["vector"].to_pylist() == expected(texts).tolist()
        assert place.here("verify", str(place.workdir)).returncode == 0
        done += len(new)


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


@pytest.mark.parametrize("keys", [{"format": "parquet"}, {"dtype": "int8"}])
def test_retry_that_is_killed(tmp_path: Path, keys: dict[str, str]) -> None:
    """A `retry` over vectors of the earlier final that is killed is taken up by the next run, not forgotten."""
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=3)
    assert place.run_here().returncode == 0
    place.write_source(NEW_TEXTS)
    set_output(place, **keys)
    place.lay("n0", "value_error!")
    assert place.run_here("--update").returncode == 3
    assert place.here("retry", str(place.workdir)).returncode == 0
    place.lay("n0", "kill_both")
    assert place.run().returncode == -9
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    assert place.manifest()["quarantined"] == []
    assert own_files(place) == FILES[keys.get("dtype", "float32")] - {"out.npy"} | {f"out.{keys.get('format', 'npy')}"}
    assert place.here("verify", str(place.workdir)).returncode == 0


def test_other_outputs_that_are_rounded(tmp_path: Path) -> None:
    """Nothing is taken from an output that is int8, so it comes last, and takes what the others have."""
    more = {"source": "more.jsonl", "column": "text", "dtype": "int8"}
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=3, outputs__more=more)
    (place.folder / "more.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[::-1]))
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    assert len(calls(place)) == len(TEXTS)


def test_other_rows(tmp_path: Path) -> None:
    """Another `where` wants --update, and then only new texts are encoded; the table of rows goes with the final."""
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=3)
    rows = [{"text": text, "id": number} for number, text in enumerate(TEXTS)]
    place.source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    set_output(place, where="id < 6", columns=["id"])
    assert place.run_here().returncode == 0
    done = len(calls(place))
    set_output(place, where="id > 2")
    refused = place.run_here()
    assert refused.returncode == 78
    assert 'where: "id < 6" before, "id > 2" now' in refused.stderr
    assert "--update" in refused.stderr
    ended = place.run_here("--update")
    assert ended.returncode == 0, ended.stderr
    assert calls(place)[done:] == ["t6", "t7"]
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS[3:]))
    assert own_files(place) == {"out.npy", "out.json", "out.rows.parquet"}
    assert place.here("verify", str(place.workdir)).returncode == 0
    set_output(place, columns=["id", "text"])
    assert place.run_here().returncode == 0
    assert place.here("verify", str(place.workdir)).returncode == 0
    assert calls(place)[done:] == ["t6", "t7"]


@pytest.mark.parametrize("when", ["after", *wide("before")])
def test_killed_anywhere(tmp_path: Path, when: str) -> None:
    """Killed at any change of a name or of a record on the way to int8, the same command or a plain run goes on."""
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=3, outputs__out__shards=2)
    assert place.run_here().returncode == 0
    done = len(calls(place))
    place.write_source(NEW_TEXTS)
    set_output(place, dtype="int8", shards=None)
    right = as_fresh(NEW_TEXTS, tmp_path / "fresh", "int8")
    targets = ("pathlib:Path.rename", "pathlib:Path.replace", "pathlib:Path.unlink", "shutil:rmtree")
    share = "1:" if SOAK_SEED else f"6:{random.Random(0).random()}"
    told = sweep("each", when, place.folder, tmp_path / "scratch", *targets, options="--update", share=share)
    assert told
    for line in told:
        left = ScriptedWorkplace(Path(line["folder"]))
        assert line["returncode"] == 0, (line["call"], line["stderr"])
        assert (left.workdir / "out.npy").read_bytes() == right, line["call"]
        assert own_files(left) == FILES["int8"], line["call"]
        assert sorted(set(calls(left)[done:])) == ["n0"], line["call"]
