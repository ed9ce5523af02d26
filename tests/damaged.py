"""Workdirs in every state, ways to damage their files, and what has to hold afterwards."""

import os
import subprocess
import sys
from pathlib import Path

from harness import Ended
from scripted_workplace import ScriptedWorkplace, made_once

TEXTS = ["t0", "t1", "t0", "t2", "t3", "t4", "t1", "t5", "t6", ""]
LAST = "t6"


@made_once
def unfinished(folder: Path) -> ScriptedWorkplace:
    """All chunks but the last are committed; that one failed, and an out-of-memory fault left its
    lesson.
    """
    place = ScriptedWorkplace.make(
        folder, TEXTS, chunk__size=2, recovery__attempts=1, encode__batch_size=2
    )
    place.lay("t0", "oom")
    place.lay(LAST, "damage!")
    place.ends(75)
    return place


@made_once
def unjudged(folder: Path) -> ScriptedWorkplace:
    """The last chunk's result was not looked at before the supervisor died."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2)
    place.lay(LAST, "kill_supervisor")
    assert place.apart().returncode == -9
    (attempt,) = (place.hidden / "outputs/out/0001" / "attempts" / "000003").iterdir()
    by_hand = [sys.executable, "-P", "-m", "chunkvisor_worker", str(attempt)]
    assert subprocess.run(by_hand, check=False, timeout=60).returncode == 0
    return place


@made_once
def complete(folder: Path) -> ScriptedWorkplace:
    """Nothing is left to be done."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=4)
    place.ends(0)
    return place


@made_once
def kept(folder: Path) -> ScriptedWorkplace:
    """Nothing is left to be done, and the chunk files are still there."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=4, chunk__keep=True)
    place.ends(0)
    return place


def truncate(path: Path) -> None:
    """Half of it is gone."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """It is there, with nothing in it."""
    os.truncate(path, 0)


def flip(path: Path) -> None:
    """One bit is another."""
    data = bytearray(path.read_bytes() or b"\0")
    data[len(data) * 2 // 3] ^= 1
    path.write_bytes(data)


def flip_in_place(path: Path) -> None:
    """With the old modification time, as a failing program with a mapped file may leave it."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(before.st_size * 2 // 3)
        byte = file.read(1)[0]
        file.seek(before.st_size * 2 // 3)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(path: Path) -> None:
    """It has the name of a neighbor, and the neighbor its own."""
    others = sorted(each for each in path.parent.iterdir() if each.is_file() and each != path)
    between = path.with_name("between")
    for other in others[:1]:
        path.rename(between)
        other.rename(path)
        between.rename(other)


def stray(path: Path) -> None:
    """Unknown things lie next to it: a file, a folder, and a link to itself."""
    path.with_name("stray.txt").touch()
    path.with_name("000001").mkdir(exist_ok=True)
    loop = path.with_name("loop")
    if not loop.is_symlink():
        loop.symlink_to("loop")


def pipe(path: Path) -> None:
    """A pipe stands in its place: whoever opens it to read waits for ever."""
    path.unlink()
    os.mkfifo(path)


def files_of(folder: Path) -> list[Path]:
    """All files with content, relative to the folder."""
    found = [Path(root) / name for root, _, names in os.walk(folder) for name in names]
    return sorted(path.relative_to(folder) for path in found if path.stat().st_size)


def harmless(place: ScriptedWorkplace, what: object) -> Ended:
    """Run it: there is a clear refusal, or the right vectors."""
    ended = place.run()
    words = f"{what}: {ended}"
    assert ended.returncode in (0, 74, 78), words
    assert "Traceback" not in ended.stderr, words
    if ended.returncode == 0:
        place.has(TEXTS)
    else:
        assert "chunkvisor: " in ended.stderr, words
        assert "do:  " in ended.stderr, words
    return ended
