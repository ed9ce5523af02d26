"""Damages files of a workdir at random, between runs, and keeps what is needed to undo the one damage without a cure.

It never touches anything outside the workdir, and never adds a file that a reader could take for the truth.
"""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path


def truncate(path: Path, chance: random.Random) -> None:
    """Cut it short."""
    os.truncate(path, chance.randrange(path.stat().st_size or 1))


def flip(path: Path, chance: random.Random) -> None:
    """One bit is another."""
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)


def empty(path: Path, chance: random.Random) -> None:
    """It is there, with nothing in it."""
    os.truncate(path, 0)


def delete(path: Path, chance: random.Random) -> None:
    """It is gone."""
    path.unlink()


def rename(path: Path, chance: random.Random) -> None:
    """It has another name."""
    path.rename(path.with_name(f"{path.stem}.moved{path.suffix}"))


def swap(path: Path, chance: random.Random) -> None:
    """It has the name of a neighbour, and the neighbour its own."""
    other = chance.choice(sorted(each for each in path.parent.iterdir() if each.is_file()))
    between = path.with_name("between")
    for source, target in ((path, between), (other, path), (between, other)):
        if source.exists():
            source.rename(target)


def overwrite(path: Path, chance: random.Random) -> None:
    """It holds noise of the same size."""
    path.write_bytes(chance.randbytes(path.stat().st_size))


def stray_file(path: Path, chance: random.Random) -> None:
    """Something unknown lies beside it."""
    path.with_name(chance.choice(["stray", "000000", "stray.json", "000001.json", "core"])).write_bytes(b"what?")


def stray_folder(path: Path, chance: random.Random) -> None:
    """A folder lies beside it."""
    (path.parent / chance.choice(["lost+found", "000001", "777"]) / "inside").mkdir(parents=True, exist_ok=True)


def stray_link(path: Path, chance: random.Random) -> None:
    """A link to itself lies beside it."""
    loop = path.with_name("loop")
    loop.unlink(missing_ok=True)
    loop.symlink_to("loop")


def stray_pipe(path: Path, chance: random.Random) -> None:
    """A pipe stands in its place: whoever opens it to read waits for ever."""
    path.unlink()
    os.mkfifo(path)


KINDS: list[Callable[[Path, random.Random], None]] = [
    *(truncate, flip, flip, empty, delete, rename, swap, overwrite),
    *(stray_file, stray_folder, stray_link, stray_pipe),
]


class Vandal:
    """Damages a workdir, and can bring back the identities of its outputs as they were last seen whole."""

    def __init__(self, workdir: Path, safe: Path, chance: random.Random) -> None:
        self._workdir = workdir
        self._safe = safe
        self._chance = chance

    def save_identities(self) -> None:
        """Remember them; only the first is sure to be whole, and it never changes."""
        for path in self._workdir.glob(".chunkvisor/outputs/*/identity.json"):
            copy = self._safe / path.parent.name
            if not copy.exists() and path.is_file() and path.stat().st_size:
                shutil.copy(path, copy)

    def restore_identities(self) -> None:
        """Bring them back."""
        for copy in self._safe.iterdir():
            path = self._workdir / ".chunkvisor" / "outputs" / copy.name / "identity.json"
            if path.parent.is_dir():
                path.unlink(missing_ok=True)
                shutil.copy(copy, path)

    def forget_identities(self) -> None:
        """A run that begins anew makes others."""
        for copy in self._safe.iterdir():
            copy.unlink()

    def damage(self, spare: frozenset[str]) -> str:
        """Damage one file that is not named in `spare`; returns how and which, or nothing where there is none."""
        files = sorted(
            path
            for path in self._workdir.rglob("*")
            if path.is_file() and not path.is_symlink() and path.name not in spare
        )
        if not files:
            return ""
        # Kinds of files first: there are hundreds of chunk files, and one lessons.json.
        suffixes = sorted({self._kind_of(path) for path in files})
        suffix = self._chance.choice(suffixes)
        path = self._chance.choice([each for each in files if self._kind_of(each) == suffix])
        kind = self._chance.choice(KINDS)
        kind(path, self._chance)
        return f"{kind.__name__} {path.relative_to(self._workdir)}"

    def _kind_of(self, path: Path) -> str:
        return "chunk" if path.parent.parent.name == "chunks" else path.suffix if path.stem.isdecimal() else path.name
