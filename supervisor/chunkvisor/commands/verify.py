"""Check every final and chunk file of a folder against its record. Running again repairs.

A final file is checked by its manifest, whether or not the state that it was made from is still there.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor.assemble.badrows import every_row
from chunkvisor.assemble.forms import FORMATS, FinalPart, Numbers, Positions, form_of, recorded_parts
from chunkvisor.assemble.manifest import damaged_sides, is_manifest, read_manifest, read_moved
from chunkvisor.config.choices import FinalDtype
from chunkvisor.errors import no_workdir
from chunkvisor.show.status import OutputStatus, read_output
from chunkvisor.store.artifact import BadVectorsError, chunk_key, inspect
from chunkvisor.store.artifact import bad_rows as find_bad_rows
from chunkvisor.store.layout import Layout, OutputLayout, is_workdir
from chunkvisor.store.ledger import chunk_files, ledger_of, read_quarantine
from chunkvisor.store.records import DamagedError
from chunkvisor.units import counted

_HEAD_BYTES = 4096
_BROKEN_SEAL = "is not what was written: its seal does not hold"


@dataclass(frozen=True, slots=True)
class FileCheck:
    """What was found of one file."""

    path: Path
    problem: str | None
    """None = it is as recorded."""
    needless: bool = False
    """Whether no run makes it anew: a chunk of an output whose final file is whole."""


def verify(workdir: Path) -> Iterator[FileCheck]:
    """Check every file of a folder; or one final file, if that is given, and what belongs to it.

    Raises Halt (78) if the folder is not a workdir and has no final file with its manifest.
    """
    if workdir.is_file():
        yield from _final(OutputLayout(workdir.parent, workdir.stem))
        return
    layout = Layout(workdir)
    names = {path.stem for path in workdir.glob("*.json") if is_final(path)}
    names -= {folder.name for folder in layout.all_combined.glob("*/")}
    if is_workdir(layout):
        names |= {folder.name for folder in layout.outputs.glob("*/")}
    elif not names:
        raise no_workdir(workdir)
    for output in map(layout.output, sorted(names)):
        finals = list(_final(read_moved(output, retried=True) or output))
        yield from finals
        yield from _chunks(output, whole=bool(finals) and not any(finding.problem for finding in finals))
    for folder in sorted(layout.all_combined.glob("*/")):
        yield from _final(layout.combined(folder.name))


def how_far(workdir: Path) -> dict[str, OutputStatus]:
    """Return how far each output is, by name; nothing if the folder is not a workdir."""
    layout = Layout(workdir)
    folders = sorted(layout.outputs.glob("*/")) if is_workdir(layout) else []
    return {path.name: read_output(layout.output(path.name)) for path in folders}


def is_final(path: Path) -> bool:
    """Whether it is a final file that has its manifest next to it, or is that manifest."""
    manifest = path.with_suffix(".json")
    with suppress(OSError):
        if manifest.is_file():
            with open(manifest, "rb") as file:
                return is_manifest(file.read(_HEAD_BYTES))
    return False


def _final(layout: OutputLayout) -> Iterator[FileCheck]:
    if not (layout.final.exists() or layout.manifest.exists() or layout.done.exists()):
        return
    try:
        manifest = read_manifest(layout)
    except DamagedError:
        yield FileCheck(layout.manifest, _BROKEN_SEAL)
        return
    if manifest is None:
        # After `retry` the manifest is gone on purpose, and the file is to be replaced.
        if layout.done.exists() or not layout.state.is_dir():
            yield FileCheck(layout.manifest, "is missing")
        return
    yield FileCheck(layout.manifest, None)
    try:
        bad_rows = np.fromiter((row["row"] for row in every_row(layout, manifest)), dtype=np.int64)
    except DamagedError:
        bad_rows = None
    parts, zero_rows = recorded_parts(layout, manifest), 0
    for part, digest in parts:
        zero, problem = _looked_at(part, digest, manifest, bad_rows)
        zero_rows += zero
        exact = form_of(manifest).dtype is FinalDtype.FLOAT32  # what is rounded may be zero if the vector was not
        if problem is None and exact and part is parts[-1][0] and zero_rows != manifest["zero_rows"]:
            problem = f"is zero throughout in {counted(zero_rows, 'row')}"
        yield FileCheck(part.path, problem)
    for path, damage in damaged_sides(layout, manifest):
        yield FileCheck(path, damage)


def _looked_at(
    part: FinalPart, digest: str, manifest: dict[str, Any], bad_rows: Positions | None
) -> tuple[int, str | None]:
    """Return the number of rows that are zero throughout, and what is wrong with the file, or None."""
    form, zero, missing = form_of(manifest), 0, 0
    numbers, told = Numbers(form.dtype, manifest["dimension"]), bad_rows is not None and form.dtype.is_float
    if part.path.exists() and not part.path.is_file():
        return 0, "is not a file"  # to read a pipe is to wait for whoever writes into it
    try:
        for rows in FORMATS[form.format].read(part.path, part.rows, numbers, digest):
            not_finite, empty = find_bad_rows(rows)
            missing, zero = missing + len(not_finite), zero + len(empty)
    except (BadVectorsError, OSError) as error:
        return zero, _unreadable(error)
    bad = 0 if bad_rows is None else int(((part.start <= bad_rows) & (bad_rows < part.stop)).sum())
    return zero, f"has NaN or infinity in {counted(missing, 'row')}" if told and missing != bad else None


def _unreadable(error: BadVectorsError | OSError) -> str:
    return f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)


def _chunks(layout: OutputLayout, *, whole: bool) -> Iterator[FileCheck]:
    """Check the chunk files; `whole`: the final file is there, and is as recorded."""
    try:
        ledger = ledger_of(layout)
    except DamagedError as error:
        yield FileCheck(Path(str(error)), _BROKEN_SEAL)
        return
    if ledger is None:
        if layout.chunks.exists() or layout.done.exists():
            yield FileCheck(layout.identity if not layout.identity.exists() else layout.staged, "is missing")
        return
    bad = {chunk: len(texts or ()) for chunk, texts in read_quarantine(layout)}
    for number, path in chunk_files(layout):
        problem = None
        if number >= ledger.plan.count:
            problem = "is the file of no chunk"
        else:
            try:
                found = inspect(path)
            except (BadVectorsError, OSError) as error:
                problem = _unreadable(error)
            else:
                if not path.stem.endswith(chunk_key(ledger.fingerprint, *ledger.plan.bounds(number), found.digest)):
                    problem = "does not have the digest in its name: it was changed or damaged"
                elif not whole and len(found.not_finite) != bad.get(number, 0):  # else the manifest lists them
                    problem = f"has NaN or infinity in {counted(len(found.not_finite), 'row')}"
        yield FileCheck(path, problem, needless=whole and problem is not None)
