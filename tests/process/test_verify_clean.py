"""`verify` finds what is damaged, `clean` removes what is not needed, and one run at a time has the
workdir.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chunkvisor.store.records import digest_file, read_sealed, write_sealed
from damaged import flip
from harness import expected, kill
from scripted_workplace import ScriptedWorkplace, fixture_of, made_once

TEXTS = ["t0", "t1", "t0", "t2", "t3"]


@made_once
def finished(folder: Path) -> ScriptedWorkplace:
    """A complete workdir with its chunks, and the remains of a failed attempt."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2, chunk__keep=True)
    place.lay("t0", "crash")
    place.ends(0)
    return place


place = fixture_of(finished)


def manifest(place: ScriptedWorkplace) -> Path:
    """Its manifest."""
    return place.workdir / "out.json"


def state(place: ScriptedWorkplace, name: str) -> Path:
    """A part of the output's state."""
    return place.hidden / "outputs/out/0001" / name


def chunk(place: ScriptedWorkplace) -> Path:
    """The first chunk."""
    return min(state(place, "chunks").rglob("*.npy"))


def cut(path: Path) -> None:
    """The last four bytes are gone."""
    path.write_bytes(path.read_bytes()[:-4])


def publish(place: ScriptedWorkplace, value: float) -> None:
    """Put another final file there, with a row of that value, and a manifest that takes it for the
    right one.
    """
    vectors = expected(TEXTS)
    vectors[3] = value
    np.save(place.final, vectors)
    content = read_sealed(manifest(place))
    assert content is not None
    write_sealed(manifest(place), {**content, "digest": f"sha256:{digest_file(place.final)}"})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda place: flip(place.final), "out.npy: has another digest"),
        (lambda place: cut(place.final), "out.npy: has 284 bytes where 5 rows x 8 need 288"),
        (lambda place: publish(place, np.nan), "out.npy: has NaN or infinity in 1 row"),
        (lambda place: publish(place, 0), "out.npy: is zero throughout in 1 row"),
        (lambda place: manifest(place).unlink(), "out.json: is missing"),
        (lambda place: flip(manifest(place)), "out.json: failed its integrity check"),
        (lambda place: flip(chunk(place)), "does not have the digest in its name"),
        (
            lambda place: flip(state(place, "identity.json")),
            "identity.json: failed its integrity check",
        ),
        (lambda place: state(place, "identity.json").unlink(), "identity.json: is missing"),
    ],
)
def test_verify_finds(
    place: ScriptedWorkplace, damage: Callable[[ScriptedWorkplace], None], words: str
) -> None:
    """Each kind of damage is named with its file, and is exit 74."""
    damage(place)
    ended = place.does("verify", code=74)
    assert words in ended.stderr
    assert "damaged, changed or missing" in ended.stderr


def test_a_damaged_chunk_that_no_run_needs_is_cleaned_away(place: ScriptedWorkplace) -> None:
    """`verify` names `clean`, after which nothing is damaged."""
    flip(chunk(place))
    assert "`chunkvisor clean` removes chunk files" in place.does("verify", code=74).stderr
    place.does("clean")
    assert place.does("verify").stdout == "2 files checked: all are intact\n"


@pytest.mark.parametrize("lost", ["record", "chunk"])
def test_retry_finds_what_the_manifest_lists(tmp_path: Path, lost: str) -> None:
    """D16: whatever is lost, no text is left in quarantine for ever, and after `retry` nothing
    counts as damaged.
    """
    place = ScriptedWorkplace.make(tmp_path / "quarantined", TEXTS, chunk__size=2)
    place.lay("t2", "nan!")
    place.ends(3)
    (record,) = state(place, "parts").glob("*/index.json")
    damaged = next(state(place, "chunks").rglob(f"{record.parent.name}-*.npy"))
    {"record": record, "chunk": damaged}[lost].unlink()
    place.lift("t2")

    assert place.does("retry").stdout.startswith("1 text to try again")
    assert "not complete" in place.does("verify").stdout
    place.gives(TEXTS)


def test_clean(place: ScriptedWorkplace) -> None:
    """Chunks, attempts and texts go, final files stay; the run still is complete, and can still
    mend damage.
    """
    place.ends(0)  # it reads the source again, which was copied
    kept = {path: path.read_bytes() for path in (place.final, manifest(place))}
    assert any(state(place, "attempts").rglob("worker.log"))
    assert "files removed" in place.does("clean").stdout
    assert not any(state(place, name).exists() for name in ("chunks", "attempts"))
    assert {path.name for path in state(place, "table").iterdir()} == {"index.bin", "table.json"}
    assert {path: path.read_bytes() for path in kept} == kept
    calls = len(place.calls())
    assert "complete already" in place.ends(0).stderr
    assert len(place.calls()) == calls
    assert place.does("clean").stdout == "0 files removed, 0 B freed\n"
    flip(place.final)
    place.gives(TEXTS)


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_clean_leaves_what_is_needed(
    place: ScriptedWorkplace, damage: Callable[[Path], None]
) -> None:
    """An output that is not finished, or whose final file is damaged, keeps everything."""
    damage(place.final)
    files = sorted(place.workdir.rglob("*"))
    assert place.does("clean").stdout == "0 files removed, 0 B freed\n"
    assert sorted(place.workdir.rglob("*")) == files


def test_one_run_at_a_time(tmp_path: Path) -> None:
    """While a run holds the workdir, a second one and `clean` end with 75 and name its pid; both
    harm nothing.
    """
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2)
    place.lay("t2", "wait")
    process = place.begin_to(2)
    for command in ("run", "clean"):
        assert f"another run (pid {process.pid} on " in place.does(command, code=75).stderr
    assert process.poll() is None
    kill(process)
    place.gives(TEXTS)
