"""What `chunkvisor.run` returns: the final files, and the rows that have no vector."""

import shlex
from collections.abc import Callable
from itertools import starmap
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.config.choices import FinalFormat
from chunkvisor.config.model import Config
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.messages import reasons_in_words, reasons_of
from chunkvisor.outputs.forms import FORMATS, VectorType, file_of, form_of
from chunkvisor.outputs.publish import all_quarantined
from chunkvisor.store.layout import Layout
from chunkvisor.store.records import read_sealed
from chunkvisor.units import counted, listed
from chunkvisor_worker.contract.frozen import frozen

_SHOWN = 3
_ROW = itemgetter("row", "outcome", "reason", "place")


@frozen
class QuarantinedRow:
    """A row that has no vector."""

    row: int
    """Its number in the source and in the final file, from 0."""
    outcome: str
    reason: str
    place: str
    """File and line."""


@frozen
class FinalFile:
    """The final file of one output, or of a combination."""

    path: Path
    """The .npy file of shape (rows, dimension), or the .parquet file."""
    manifest: dict[str, Any]
    """What <output>.json says: rows, dimension, model, versions, …"""
    quarantined: tuple[QuarantinedRow, ...]

    def vectors(self) -> npt.NDArray[Any]:
        """The vectors, of shape (rows, dimension).

        Those of an .npy file are mapped copy-on-write: if the caller changes them, the file stays
        as it is. Those of parquet are read into memory. Raises OSError.
        """
        form = form_of(self.manifest)
        if form.format is FinalFormat.NPY:
            mapped: npt.NDArray[Any] = np.load(self.path, mmap_mode="c", allow_pickle=False)
            return mapped
        vector_type = VectorType(form.dtype, self.manifest["dimension"])
        read = FORMATS[form.format].read
        return np.concatenate([*read(self.path, self.manifest["rows"], vector_type, None)])


@frozen
class Report:
    """A finished run."""

    workdir: Path
    outputs: dict[str, FinalFile]
    """By name, in the order of the config; combined ones at the end."""

    @classmethod
    def of(cls, config: Config) -> "Report":
        """Read what a finished run of the config has made. Raises OSError, Halt."""
        found = {}
        for name in (*config.outputs, *config.combine):
            layout = Layout(config.workdir).output(name)
            manifest = read_sealed(layout.manifest)
            if not manifest:
                raise Halt(
                    ExitCode.TRY_AGAIN,
                    f"{layout.manifest} was removed a moment ago",
                    "Run the same command again.",
                )
            rows = tuple(starmap(QuarantinedRow, map(_ROW, all_quarantined(layout, manifest))))
            found[name] = FinalFile(file_of(layout, manifest), manifest, rows)
        return cls(config.workdir, found)

    @property
    def quarantined(self) -> int:
        """Rows without a vector, in all outputs; combined ones do not count again."""
        return sum(
            len(output.quarantined)
            for output in self.outputs.values()
            if "combined" not in output.manifest
        )


def loss_in_words(report: Report, place: Callable[[int], str] | None, *, kept: bool) -> str:
    """Say how many rows have no vector, which are the first, why, and where all are listed.

    `place` names a row for the caller of `encode`; without it, output and row are named. The list
    is named only if the workdir is `kept`.
    """
    layout = Layout(report.workdir)
    names = []
    files = []
    rows_in_manifests = []
    for name, output in report.outputs.items():
        if "combined" in output.manifest:
            continue
        rows_in_manifests += output.manifest["quarantined"]
        for each in output.quarantined:
            names.append(place(each.row) if place else f"{name} row {each.row}")
        if output.quarantined:
            files.append(str(layout.output(name).quarantined))
    reasons = reasons_in_words(reasons_of(rows_in_manifests), len(names))
    again = shlex.join(["chunkvisor", "retry", str(report.workdir)])
    where = (
        f"listed in {listed(files, _SHOWN)}; to try them again: `{again}`, and then the same call"
    )
    if not kept:
        where = "to find them: numpy.isnan(vectors).any(axis=1)"
    verb = "has" if len(names) == 1 else "have"
    lost = f"{counted(len(names), 'row')} {verb} no vector: {listed(names, _SHOWN)}"
    return "\n  ".join([lost, *reasons, where])
