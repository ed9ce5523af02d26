"""Which files hold the rows of a final: one file, or a folder of shards whose sorted names give their order."""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.assemble.form import Form
from chunkvisor.assemble.formats import FORMATS
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import DamagedError, read_sealed

_SHARD_NAME = re.compile(r"\d{4}\.(" + "|".join(each.suffix for each in FORMATS.values()) + ")")


@dataclass(frozen=True, slots=True)
class FinalPart:
    """One file of a final."""

    path: Path
    start: int
    """Its first row."""
    stop: int
    """One past its last row."""

    @property
    def rows(self) -> int:
        """Number of its rows, at least 1."""
        return self.stop - self.start


def place_of(layout: OutputLayout, form: Form) -> Path:
    """The file, or the folder of the shards."""
    return layout.shards if form.shards is not None else layout.file(FORMATS[form.format].suffix)


def partial_of(layout: OutputLayout, form: Form) -> Path:
    """The same while it is being made; in the same folder, so that one rename publishes it."""
    return layout.partial_shards if form.shards is not None else layout.partial(FORMATS[form.format].suffix)


def all_places(layout: OutputLayout) -> list[Path]:
    """Where a final may be, whatever its form."""
    return [*(layout.file(each.suffix) for each in FORMATS.values()), layout.shards]


def all_partials(layout: OutputLayout) -> list[Path]:
    """What may be there of a final that is not complete."""
    files = [layout.partial(each.suffix) for each in FORMATS.values()]
    return [*files, layout.partial_shards, layout.partial_rows]


def parts_of(place: Path, rows: int, form: Form) -> list[FinalPart]:
    """The files of a final at `place`, in the order of their rows.

    Rows are split evenly: no shard has more than one row more than another. There are no empty shards, so that fewer
    rows than shards make fewer shards.
    """
    count = form.of(rows).shards
    if count is None:
        return [FinalPart(place, 0, rows)]
    suffix = FORMATS[form.format].suffix
    bounds = [rows * number // count for number in range(count + 1)]
    return [FinalPart(place / f"{number:04d}.{suffix}", *bounds[number : number + 2]) for number in range(count)]


def remove_final(place: Path) -> None:
    """Remove a file, or the shards in a folder and the folder if nothing else is in it. Raises OSError."""
    if place.is_symlink() or not place.is_dir():
        place.unlink(missing_ok=True)
        return
    for path in place.iterdir():
        if _SHARD_NAME.fullmatch(path.name):
            path.unlink()
    with contextlib.suppress(OSError):  # somebody has put something of his own there
        place.rmdir()


def mark_of(place: Path) -> list[int]:
    """Size and modification time (ns): they stay when a file or folder is renamed, or copied with its times."""
    found = place.stat()
    return [found.st_size, found.st_mtime_ns]


def is_ours(layout: OutputLayout, place: Path) -> bool:
    """Whether what is there was published by a run of this workdir, and is as it was. Raises OSError."""
    try:
        record = read_sealed(layout.published)
    except DamagedError:
        return False
    marks = record.get("marks") if record is not None else None
    return isinstance(marks, list) and place.exists() and mark_of(place) in marks


def strays(place: Path, parts: list[FinalPart]) -> Iterator[Path]:
    """What is in or beneath the folder of the shards and would be read as rows, though it is none of them.

    embedding-reader takes every `**/*.npy`, in the order of their paths (its get_file_list.py).
    """
    own, suffixes = {part.path for part in parts}, tuple({part.path.suffix for part in parts})
    for root, folders, names in os.walk(place):
        for name in (*folders, *names):
            path = Path(root, name)
            if name.endswith(suffixes) and path not in own:
                yield path
