"""What `chunkvisor.run` hands back.

The final files of a finished run, and the rows that have no vector.
"""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.config.choices import FinalFormat
from chunkvisor.config.model import Config
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.messages import reasons_in_words, reasons_of
from chunkvisor.outputs.forms import FORMATS, Numbers, file_of, form_of
from chunkvisor.outputs.publish import all_quarantined
from chunkvisor.store.layout import Layout
from chunkvisor.store.records import read_sealed
from chunkvisor.units import counted, listed
from chunkvisor_worker.contract.frozen import frozen

_SHOWN = 3


@frozen
class QuarantinedRow:
    """A row that has no vector."""

    row: int
    """Its number in source and final file, from 0."""
    outcome: str
    reason: str
    place: str
    """File and line."""


@frozen
class FinalFile:
    """One complete output."""

    path: Path
    """The .npy or .parquet, rows x dimension."""
    manifest: dict[str, Any]
    """What <output>.json says: rows, dimension, model, versions, …"""
    quarantined: tuple[QuarantinedRow, ...]

    def vectors(self) -> npt.NDArray[Any]:
        """The vectors, of shape (rows, dimension).

        Mapped, copied where it is written to: the file never changes; of parquet, read into memory.
        Raises OSError.
        """
        form = form_of(self.manifest)
        if form.format is FinalFormat.NPY:
            mapped: npt.NDArray[Any] = np.load(self.path, mmap_mode="c", allow_pickle=False)
            return mapped
        numbers = Numbers(form.dtype, self.manifest["dimension"])
        read = FORMATS[form.format].read
        return np.concatenate([*read(self.path, self.manifest["rows"], numbers, None)])


@frozen
class Report:
    """A finished run."""

    workdir: Path
    outputs: dict[str, FinalFile]
    """By name, in the order of the config; combined ones at the end."""

    @classmethod
    def of(cls, config: Config) -> "Report":
        """Read what the finished run of the config has made. Raises OSError."""
        found = dict[str, FinalFile]()
        keys = ("row", "outcome", "reason", "place")
        for name in (*config.outputs, *config.combine):
            layout = Layout(config.workdir).output(name)
            manifest = read_sealed(layout.manifest)
            if manifest is None:
                raise Halt(
                    ExitCode.TRY_AGAIN,
                    f"{layout.manifest} was removed a moment ago",
                    "Run the same command again.",
                )
            rows = tuple(
                QuarantinedRow(**{key: each[key] for key in keys})
                for each in all_quarantined(layout, manifest)
            )
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


def loss_in_words(
    report: Report, place: Callable[[int], str] | None = None, *, kept: bool = True
) -> str:
    """Say how many rows have no vector, which first, why, and where all are listed.

    The list is named if it is `kept`.

    `place` is what the caller of `encode` calls the text of a row.
    """
    own = {
        name: output for name, output in report.outputs.items() if "combined" not in output.manifest
    }
    rows = [(name, each) for name, output in own.items() for each in output.quarantined]
    first = listed(
        [place(each.row) if place else f"{name} row {each.row}" for name, each in rows], _SHOWN
    )
    first_rows = [each for output in own.values() for each in output.manifest["quarantined"]]
    reasons = reasons_in_words(reasons_of(first_rows), len(rows))
    layout = Layout(report.workdir)
    files = [
        str(layout.output(name).quarantined) for name, output in own.items() if output.quarantined
    ]
    again = shlex.join(["chunkvisor", "retry", str(report.workdir)])
    where = (
        f"listed in {listed(files, _SHOWN)}; to try them again: `{again}`, and then the same call"
    )
    if not kept:
        where = "to find them: numpy.isnan(vectors).any(axis=1)"
    lost = f"{counted(len(rows), 'row')} {'has' if len(rows) == 1 else 'have'} no vector: {first}"
    return "\n  ".join([lost, *reasons, where])
