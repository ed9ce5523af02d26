"""The form of a final: how many files, which format, which type of numbers. It may change without another vector."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.config.outputsection import OutputConfig
from chunkvisor.units import counted

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
