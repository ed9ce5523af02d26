"""The forms of a final: its format (npy here, parquet next door), dtype and shards, and which files it consists of."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from chunkvisor.assemble import parquet
from chunkvisor.assemble.checkedfile import CheckedFile
from chunkvisor.assemble.numbers import Numbers, Positions, Stored
from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.config.model import OutputConfig
from chunkvisor.store.artifact import BadVectorsError, Hash, bad_rows, blocks, npy_header, read_shape
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import DamagedError, read_sealed
from chunkvisor.units import counted


class NpyWriter:
    """One new file, as a context."""

    def __init__(self, path: Path, rows: int, numbers: Numbers) -> None:
        """Reserve the space of all rows. Raises OSError."""
        header = npy_header(rows, numbers.width, numbers.numpy)
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(CheckedFile(path, len(header) + rows * numbers.row_bytes))
            self._file.write(header)
            self._open = stack.pop_all()

    def __enter__(self) -> "NpyWriter":
        return self

    def __exit__(self, *error: object) -> None:
        """Close it, complete or not."""
        self._open.close()

    def write(self, rows: Stored, missing: Positions) -> None:  # noqa: ARG002 - they are NaN or zero already
        """Append rows. Raises OSError."""
        self._file.write(np.ascontiguousarray(rows).data)

    def finish(self) -> str:
        """The sha256 of the complete file, which has been read back. Raises OSError."""
        return self._file.finish()


def create_npy(path: Path, rows: int, numbers: Numbers, first_row: int, rows_table: Path | None) -> NpyWriter:  # noqa: ARG001 - a row is its place, and columns lie beside it
    """See `forms.Format`."""
    return NpyWriter(path, rows, numbers)


def read_npy(path: Path, rows: int, numbers: Numbers, digest: Hash | None) -> Iterator[tuple[Stored, Positions | None]]:
    """See `forms.Format`; of numbers that have no NaN it cannot be told which rows have no vector."""
    with open(path, "rb") as file:
        shape = read_shape(file, numbers.numpy)
        if (shape.rows, shape.dimension) != (rows, numbers.width):
            there, said = f"{shape.rows} x {shape.dimension}", f"{rows} x {numbers.width}"
            raise BadVectorsError(f"has {there}, its manifest says {said}")
        if digest is not None:
            file.seek(0)
            digest.update(memoryview(file.read(shape.offset_bytes)))
        for block in blocks(file, shape, numbers.numpy):
            if digest is not None:
                digest.update(block.data.cast("B"))
            yield block, bad_rows(block)[0] if numbers.is_float else None


class PartWriter(Protocol):
    """A new file of a final, as a context; it is synced and read back while it grows, see `checkedfile`."""

    def __enter__(self) -> "PartWriter":
        """Itself."""

    def __exit__(self, *error: object) -> None:
        """Close it, complete or not."""

    def write(self, rows: Stored, missing: Positions) -> None:
        """Append rows; `missing` are the positions of those without a vector. Raises OSError."""

    def finish(self) -> str:
        """Write what is left, and return the sha256 of the file, hex. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Format:
    """What is to be known of a format."""

    suffix: str
    """Of its files, without the dot."""
    create: Callable[[Path, int, Numbers, int, Path | None], PartWriter]
    """Begins a file for that number of rows; then the number of the first, and the rows table. Raises OSError."""
    read: Callable[[Path, int, Numbers, Hash | None], Iterator[tuple[Stored, Positions | None]]]
    """All rows in blocks, and which of each have no vector (None = cannot be told); the digest gets each byte.

    Raises BadVectorsError where the file is not what it should be, OSError."""
    package: str | None = None
    """What it needs to be installed."""
    extra: str = ""
    """The extra of ours that has it."""

    @property
    def can_be_read(self) -> bool:
        """Whether what it needs is installed."""
        return self.package is None or find_spec(self.package) is not None


FORMATS = {
    FinalFormat.NPY: Format("npy", create_npy, read_npy),
    FinalFormat.PARQUET: Format("parquet", parquet.create, parquet.read, "pyarrow", "parquet"),
}


FORM_KEYS = ("shards", "format", "dtype", "columns")
"""Keys of an output in the config that make its form."""


@dataclass(frozen=True, slots=True)
class Form:
    """As the config asks for it, or as a manifest has it. Without arguments: one .npy of float32."""

    shards: int | None = None
    """Number of files in a folder; None = one file."""
    format: FinalFormat = FinalFormat.NPY
    dtype: FinalDtype = FinalDtype.FLOAT32
    carried: str | None = None
    """sha256 of the rows table that is carried along, hex."""

    def __str__(self) -> str:
        files = "one file" if self.shards is None else counted(self.shards, "shard")
        return files if self.is_of_rows else f"{files} of {self.dtype} in {self.format}"

    @property
    def is_of_rows(self) -> bool:
        """Whether it holds the vectors as they are committed, in arrays."""
        return (self.format, self.dtype) == (FinalFormat.NPY, FinalDtype.FLOAT32)

    @property
    def is_exact(self) -> bool:
        """Whether it holds the vectors as they are committed, in whatever files."""
        return self.dtype is FinalDtype.FLOAT32

    @property
    def lost(self) -> str:
        """What stands in the place of a vector that a row does not have."""
        if self.format is FinalFormat.PARQUET:
            return "null"
        return "NaN" if self.dtype.is_float else "zeros"

    def of(self, rows: int) -> Self:
        """The form that this number of rows takes: there are no empty shards."""
        return self if self.shards is None else replace(self, shards=min(self.shards, rows))

    @property
    def has_rows_table(self) -> bool:
        """Whether what is carried along lies beside the final; parquet has it inside."""
        return self.carried is not None and self.format is FinalFormat.NPY

    def can_become(self, other: Self) -> bool:
        """Whether the other can be made of it: what is rounded cannot be made exact again."""
        return self.dtype in (FinalDtype.FLOAT32, other.dtype)


def asked_form(output: OutputConfig, carried: str | None = None) -> Form:
    """What the config asks for, with that rows table."""
    return Form(output.shards, output.format, output.dtype, carried)


def without_vectors(rows: int, manifests: Mapping[str, dict[str, Any]]) -> str:
    """`have no vector (in their place: NaN)`, of so many rows in these outputs, by name."""
    found = {name: form_of(manifest).lost for name, manifest in manifests.items()}
    alike = len(set(found.values())) == 1
    lost = next(iter(found.values())) if alike else ", ".join(f"{each} in {name}" for name, each in found.items())
    return f"{'has no vector (in its' if rows == 1 else 'have no vector (in their'} place: {lost})"


def form_of(manifest: dict[str, Any]) -> Form:
    """What the manifest describes; one of an earlier version has no format. Raises ValueError for what is no form."""
    shards = len(manifest["shards"]) if "shards" in manifest else None
    dtype = manifest.get("dtype", "float32")
    carried = manifest["carried"]["digest"].removeprefix("sha256:") if "carried" in manifest else None
    return Form(shards, FinalFormat(manifest.get("format", "npy")), FinalDtype(dtype), carried)


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
