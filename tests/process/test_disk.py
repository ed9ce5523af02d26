"""A disk that is full: said before it is, waited for when it is, and nothing that is done is lost."""

import errno
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.store.chunkfiles import ChunkFiles
from chunkvisor.store.ledger import Ledger
from scripted_workplace import ScriptedWorkplace

TEXTS = [f"t{number}" for number in range(8)]
"""Two chunks of four."""


@pytest.fixture
def place(tmp_path: Path) -> ScriptedWorkplace:
    """Two chunks, short patience."""
    return ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=4, recovery__wait_timeout=1)


def failing(
    times: int, owner: type, name: str, monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSPC
) -> None:
    """Have a method meet a full disk, or another error, so many times."""
    method, left = getattr(owner, name), [times]

    def fail(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(number, os.strerror(number))
        return method(*arguments, **options)

    monkeypatch.setattr(owner, name, fail)


def test_output_that_cannot_fit(place: ScriptedWorkplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the dimension is known the run says that the rest does not fit, keeps what is done, and
    goes on later.
    """
    monkeypatch.setattr("chunkvisor.store.disk.free_bytes", lambda folder: 1000)
    assert "output out does not fit on the disk" in place.ends(74).stderr
    assert place.progress()["chunks_done"] == 1
    monkeypatch.undo()
    place.gives(TEXTS)
    assert place.calls().count(TEXTS[:4]) == 1


def test_commit_never_finds_room(place: ScriptedWorkplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past recovery.wait_timeout the run ends with 74; the chunk that was committed before is not
    computed again.
    """
    place.ends(0)
    shutil.rmtree(place.workdir)
    place.lay("t4", "damage!")
    place.ends(75, "--set", "recovery.attempts=1")
    place.lift("t4")
    with monkeypatch.context() as patch:
        failing(1000, Ledger, "commit", patch)
        ended = place.ends(74)
    assert "No space left on device" in ended.stderr
    assert f" are free in {place.workdir}" in ended.stderr
    assert "finished work is kept" in ended.stderr
    calls = len(place.calls())
    place.gives(TEXTS)
    assert place.calls()[calls:] == []  # its vectors were still in the folder of the attempt


@pytest.mark.parametrize("method", ["add_vectors", "write_index", "merge_parts"])
def test_state_of_parts_waits_for_the_disk(
    place: ScriptedWorkplace, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Whatever is written while a chunk is taken apart, a full disk delays it and spoils nothing."""
    place.lay("t1", "nan!")
    place.lay("t6", "value_error!")
    place.lay("t7", "nan_beside!")
    failing(1, ChunkFiles, method, monkeypatch)
    place.gives(TEXTS, "--set", "recovery.attempts=1", bad=[1, 6])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_vectors_wait_for_the_disk(
    place: ScriptedWorkplace, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """What a full disk did not take is stored once there is room, and only what a failing one may
    have spoilt is encoded again, of which whoever owns the disk hears in any case.
    """
    failing(2, Ledger, "commit", monkeypatch, number)
    ended = place.gives(TEXTS, "--quiet", "--set", "recovery.wait_timeout=60")
    fails = number == errno.EIO
    assert (len(place.encoded()) > len(TEXTS)) == fails
    told = "the disk reported an error"
    assert (told in ended.stderr) == ("Input/output error" in ended.stderr) == fails


def test_saved_batches_wait_for_the_disk(
    place: ScriptedWorkplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do the finished batches of an attempt that failed, and in the next run if this one ends."""
    texts = [f"t{number:02}" for number in range(24)]
    place.write_source(texts)
    place.set(chunk__size=24, encode__batch_size=2)
    place.lay(texts[-1], "device_assert")
    with monkeypatch.context() as patch:
        failing(1000, ChunkFiles, "add_vectors", patch)
        place.ends(74)
    place.gives(texts)
    encoded = place.encoded()
    again = [text for text in texts if encoded.count(text) > 1]
    assert again
    assert len(again) < 12


@pytest.mark.parametrize("seen", ["before", "at the join"])
def test_a_final_file_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    """What `ulimit -f` does not allow ends the run with 74 in words, best before the rest is
    encoded; with the limit raised it goes on.
    """
    texts = ["t0", "t1"] * 10_000
    place = ScriptedWorkplace.make(tmp_path, texts, chunk__size=1)
    if seen == "at the join":
        monkeypatch.setattr("chunkvisor.store.disk.why_too_large", lambda *_: "")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        ended = place.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ended.returncode == 74, ended
    assert "ulimit -f unlimited" in ended.stderr
    place.gives(texts)
    assert place.calls().count(["t0"]) == 1
