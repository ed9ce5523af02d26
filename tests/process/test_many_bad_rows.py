"""More rows without a vector than a manifest can list: it has the first, a file beside it has all (audit, C1)."""

import json
from pathlib import Path

import numpy as np
import pytest

import chunkvisor
from chunkvisor.assemble.badrows import LISTED
from harness import expected
from scripted_workplace import ScriptedWorkplace

TEXTS = ["bad" if row % 2 else f"text {row % 40}" for row in range(2 * LISTED + 1000)]
"""Half of the rows have the one text that gets no vector."""
BAD = [row for row, text in enumerate(TEXTS) if text == "bad"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ScriptedWorkplace:
    """A finished output; tests work on copies."""
    place = ScriptedWorkplace.make(tmp_path_factory.mktemp("many") / "place", TEXTS, recovery__max_bad_rows=10_000)
    place.lay("bad", "nan!")
    ended = place.run_here()
    assert ended.returncode == 3, ended.stderr
    assert f"finished, but {len(BAD):,} rows could not be encoded" in ended.stderr
    assert ".quarantined.jsonl" in ended.stderr
    return place


@pytest.fixture
def place(finished: ScriptedWorkplace, tmp_path: Path) -> ScriptedWorkplace:
    """A copy of it."""
    return finished.copy(tmp_path / "copy")


def listed(place: ScriptedWorkplace) -> list[dict[str, object]]:
    """The file beside the manifest."""
    return [json.loads(line) for line in (place.workdir / "out.quarantined.jsonl").read_text().splitlines()]


def test_the_manifest_has_the_first_and_the_file_has_all(place: ScriptedWorkplace) -> None:
    """Row for row the file has all of them; running again, status, verify and Python count every row."""
    manifest = place.manifest()
    assert [each["row"] for each in manifest["quarantined"]] == BAD[:LISTED]
    assert manifest["quarantined_rows"] == len(BAD)
    assert [each["row"] for each in listed(place)] == BAD
    assert listed(place)[:LISTED] == manifest["quarantined"]
    assert np.flatnonzero(np.isnan(place.vectors()).any(axis=1)).tolist() == BAD
    assert place.run_here().returncode == 3
    assert place.status()["outputs"]["out"]["quarantined"] == len(BAD)
    ended = place.call("verify", str(place.workdir))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with pytest.warns(chunkvisor.QuarantineWarning, match=f"{len(BAD):,} rows"):
        report = chunkvisor.run(place.config_path)
    assert [each.row for each in report.outputs["out"].quarantined] == BAD


@pytest.mark.parametrize("lost", ["gone", "changed", "both"])
def test_a_file_that_is_lost_is_made_anew(place: ScriptedWorkplace, lost: str) -> None:
    """Verify names it, the next run mends it from its twin, or joins the output again; nothing is computed."""
    path = place.workdir / "out.quarantined.jsonl"
    before, calls = path.read_bytes(), len(place.calls())
    path.write_bytes(before[:-10])
    if lost != "changed":
        path.unlink()
    if lost == "both":
        (place.hidden / "outputs/out" / "quarantined.jsonl").unlink()
    assert place.call("verify", str(place.workdir)).returncode == 74

    assert place.run_here().returncode == 3
    assert path.read_bytes() == before
    assert len(place.calls()) == calls
    assert place.call("verify", str(place.workdir)).returncode == 0


def test_retry_takes_the_file_away(place: ScriptedWorkplace) -> None:
    """After a mend nothing of it is left."""
    place.lift("bad")
    assert place.call("retry", str(place.workdir)).returncode == 0

    assert place.run_here().returncode == 0
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    assert place.manifest()["quarantined"] == []
    assert not list(place.folder.rglob("*quarantined.jsonl"))


def test_encode_moves_it_beside_its_file(tmp_path: Path) -> None:
    """`chunkvisor encode` puts it beside the manifest of its own output."""
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS)
    place.lay("bad", "nan!")
    out = tmp_path / "out.npy"
    arguments = ("--model", "m", "--encoder", "scripted:make", "--column", "text", "--device", "cpu")
    ended = place.here(
        "encode", str(place.source), "-o", str(out), *arguments, "--set", "recovery.max_bad_rows=10000",
        "--set", f"env.PYTHONPATH={place.folder}",
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr

    manifest = json.loads(out.with_suffix(".json").read_text())
    assert manifest["quarantined_in"]["file"] == "out.quarantined.jsonl"
    assert len((tmp_path / "out.quarantined.jsonl").read_text().splitlines()) == len(BAD)
