"""Sharded finals: the same rows in several files, kept, mended and cut anew as one file is."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import chunkvisor
from harness import SOAK_SEED, expected, sweep
from scripted_workplace import ScriptedWorkplace
from soaked import wide

TEXTS = ["t0", "t1", "t0", "t2", "t3", "t4", "t1", "t5", "t6", ""]


def finished(folder: Path, **changes: object) -> ScriptedWorkplace:
    """A complete output of three shards, unless the changes say otherwise."""
    place = ScriptedWorkplace.make(
        folder, TEXTS, chunk__size=2, **(changes or {"outputs__out__shards": 3})
    )
    assert place.run_here().returncode == 0
    return place


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ScriptedWorkplace:
    """One, for all."""
    return finished(tmp_path_factory.mktemp("finished") / "place")


@pytest.fixture
def place(made: ScriptedWorkplace, tmp_path: Path) -> ScriptedWorkplace:
    """A copy of it that knows its source again, which was copied as well."""
    place = made.copy(tmp_path / "place")
    assert place.run_here().returncode == 0
    return place


def shards(place: ScriptedWorkplace) -> list[Path]:
    """What is in the folder of the shards, in order."""
    return sorted((place.workdir / "out").iterdir())


def joined(place: ScriptedWorkplace) -> np.ndarray:
    """All rows."""
    return np.concatenate([np.load(path, allow_pickle=False) for path in shards(place)])


def visible(place: ScriptedWorkplace) -> set[str]:
    """Names in the workdir that belong to the output."""
    return {path.name for path in place.workdir.iterdir() if path.name.startswith("out")}


def test_shards_are_the_one_file_cut(place: ScriptedWorkplace) -> None:
    """Shards joined are the unsharded final byte for byte; every command and Python take them for what they are."""
    names = [path.name for path in shards(place)]
    assert names == ["0000.npy", "0001.npy", "0002.npy"]
    assert visible(place) == {"out", "out.json"}
    manifest = place.manifest()
    assert [(each["file"], each["rows"]) for each in manifest["shards"]] == [
        (f"out/{name}", rows) for name, rows in zip(names, (3, 3, 4), strict=True)
    ]
    status = json.loads(place.here("status", str(place.workdir), "--json").stdout)
    assert status["state"] == "complete"
    verified = place.here("verify", str(place.workdir))
    assert (verified.returncode, verified.stdout) == (0, "4 files checked: all are intact\n")
    assert place.here("clean", str(place.workdir)).returncode == 0
    calls = len(place.calls())
    again = place.run_here()
    assert again.returncode == 0
    assert "complete already" in again.stderr
    assert len(place.calls()) == calls
    final = chunkvisor.run(place.config_path).outputs["out"]
    assert (final.path, list(final.files)) == (place.workdir / "out", shards(place))
    np.testing.assert_array_equal(final.vectors(), expected(TEXTS))
    whole = finished(place.folder / "whole", outputs__out__shards=None)
    assert joined(place).tobytes() == whole.vectors().tobytes()
    np.testing.assert_array_equal(joined(place), expected(TEXTS))


def test_damaged_shard(place: ScriptedWorkplace) -> None:
    """A damaged shard is named by `verify`; the next run keeps the folder aside and makes it anew, again and again."""
    for number, words in enumerate(("has another digest", "cannot be read")):
        shard = shards(place)[1]
        if number:
            shard.unlink()
        else:  # the content of its neighbor, which is as long
            shutil.copy(shard.with_name("0000.npy"), shard)
        verified = place.here("verify", str(place.workdir))
        assert verified.returncode == 74
        assert f"0001.npy: {words}" in verified.stderr
        ended = place.run_here()
        assert ended.returncode == 0, ended.stderr
        assert "it is now out.aside" in ended.stderr
        np.testing.assert_array_equal(joined(place), expected(TEXTS))
    assert {"out.aside", "out.aside1"} <= visible(place)


@pytest.mark.parametrize(("before", "after"), [(None, 3), (3, None), (2, 300)])
def test_cut_anew(tmp_path: Path, before: int | None, after: int | None) -> None:
    """A complete output takes another number of shards without a chunk file and without a vector being computed."""
    place = finished(tmp_path / "place", outputs__out__shards=before)
    calls = len(place.calls())
    override = f"outputs.out.shards={json.dumps(after)}"
    for words in ("from its final file", "complete already"):
        ended = place.run_here("--set", override)
        assert ended.returncode == 0, ended.stderr
        assert words in ended.stderr
        assert ("from its final file" in ended.stderr) == (words != "complete already")
        found = place.vectors() if after is None else joined(place)
        np.testing.assert_array_equal(found, expected(TEXTS))
    assert len(place.calls()) == calls
    assert visible(place) == {"out.json", "out.npy" if after is None else "out"}
    assert place.here("verify", str(place.workdir)).returncode == 0


def test_cut_anew_keeps_what_is_not_ours(place: ScriptedWorkplace) -> None:
    """Something of a person's own in the folder of the shards is not lost with them."""
    (place.workdir / "out" / "index.faiss").write_bytes(b"mine")
    assert place.run_here("--set", "outputs.out.shards=2").returncode == 0
    assert (place.workdir / "out.aside" / "index.faiss").read_bytes() == b"mine"
    assert len(shards(place)) == 2


CUTS = [
    ({"shards": 3}, {"shards": 2}, "after"),
    ({}, {"dtype": "float16"}, "after"),
    *wide(
        ({}, {"shards": 3}, "before"),
        ({"shards": 3}, {"dtype": "float16"}, "before"),
        ({"shards": 3}, {}, "after"),
    ),
]


@pytest.mark.soak
@pytest.mark.parametrize(("before", "after", "when"), CUTS)
def test_killed_while_cutting(
    tmp_path: Path, before: dict[str, object], after: dict[str, object], when: str
) -> None:
    """A run killed at any step from one form to another loses no row; the next one ends with one form of them."""
    output = {"source": "rows.jsonl", "column": "text"}
    place = finished(tmp_path / "place", outputs={"out": output | before})
    place.write_config("scripted:make", chunk__size=2, outputs={"out": output | after})
    calls, right = len(place.calls()), finished(tmp_path / "right", outputs={"out": output | after})
    targets = [
        f"chunkvisor.assemble.manifest:{name}"
        for name in ("set_aside", "sync_folder", "remove_final")
    ]
    lines = sweep(
        "each",
        when,
        place.folder,
        tmp_path / "scratch",
        *targets,
        share="1:" if SOAK_SEED else "2:a",
    )
    assert lines
    for line in lines:
        assert line.get("returncode") == 0, line
        result = ScriptedWorkplace(Path(line["folder"]))
        assert visible(result) == visible(right), line
        for path in result.workdir.glob("out/*.npy"):
            assert (
                path.read_bytes() == (right.workdir / path.relative_to(result.workdir)).read_bytes()
            ), line
        for path in result.workdir.glob("out*.npy"):
            assert path.read_bytes() == (right.workdir / path.name).read_bytes(), line
        assert len(result.calls()) == calls, line
