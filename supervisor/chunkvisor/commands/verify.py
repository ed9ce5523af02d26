"""Re-checks every final and chunk file of a workdir against its record.

It never repairs: running again does.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.assemble.finalfiles import FinalPart, strays
from chunkvisor.assemble.manifest import read_manifest, recorded_parts, shards_of
from chunkvisor.errors import no_workdir
from chunkvisor.store.artifact import BadVectorsError, Inspection, chunk_key, inspect
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.ledger import Ledger, ledger_of
from chunkvisor.store.parts import read_quarantine
from chunkvisor.store.seal import DamagedError


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one file."""

    path: Path
    problem: str | None
    """None = it is as recorded."""


def verify(workdir: Path) -> Iterator[Finding]:
    """Every file in turn. Raises Halt (78) where the folder is no workdir."""
    layout = Layout(workdir)
    if not layout.outputs.is_dir():
        raise no_workdir(workdir)
    for folder in sorted(layout.outputs.glob("*/")):
        output = layout.output(folder.name)
        yield from _final(output)
        yield from _chunks(output)


def _final(layout: OutputLayout) -> Iterator[Finding]:
    if not (layout.final.exists() or layout.manifest.exists() or layout.done.exists()):
        return
    try:
        manifest = read_manifest(layout)
    except DamagedError:
        yield Finding(layout.manifest, "is not what was written: its seal does not hold")
        return
    if manifest is None:
        yield Finding(layout.manifest, "is missing")
        return
    yield Finding(layout.manifest, None)
    parts = recorded_parts(layout, manifest)
    zero_rows = 0
    for part, digest in parts:
        bad = sum(part.start <= row["row"] < part.stop for row in manifest["quarantined"])
        found, problem = _inspected(part, manifest["dimension"], digest, bad)
        zero_rows += found.zero_count if found else 0
        if part is parts[-1][0] and problem is None and zero_rows != manifest["zero_rows"]:
            problem = f"is zero throughout in {zero_rows} rows"
        yield Finding(part.path, problem)
    if shards_of(manifest) is not None:
        for path in strays(layout.shards, [part for part, _ in parts]):
            yield Finding(path, "is none of the shards, and readers take it for one")


def _inspected(part: FinalPart, dimension: int, digest: str, bad: int) -> tuple[Inspection | None, str | None]:
    """(what was found in the file, what is wrong with it)."""
    try:
        found = inspect(part.path, hashlib.sha256)
    except BadVectorsError as error:
        return None, str(error)
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    shape, problem = found.shape, None
    if (shape.rows, shape.dimension) != (part.rows, dimension):
        problem = f"has {shape.rows} x {shape.dimension}, its manifest says {part.rows} x {dimension}"
    elif found.digest != digest:
        problem = "has another digest than its manifest says: it was changed or damaged"
    elif found.not_finite_count != bad:
        problem = f"has NaN or infinity in {found.not_finite_count} rows"
    return found, problem


def _chunks(layout: OutputLayout) -> Iterator[Finding]:
    try:
        ledger = ledger_of(layout)
    except DamagedError as error:
        yield Finding(Path(str(error)), "is not what was written: its seal does not hold")
        return
    if ledger is None:
        if layout.chunks.exists() or layout.done.exists():
            yield Finding(layout.identity if not layout.identity.exists() else layout.staged, "is missing")
        return
    bad = {chunk: len(texts or ()) for chunk, texts in read_quarantine(layout)}
    for number, path in ledger.chunk_files():
        yield Finding(path, _chunk_problem(ledger, number, path, bad.get(number, 0)))


def _chunk_problem(ledger: Ledger, number: int, path: Path, bad_count: int) -> str | None:
    if number >= ledger.plan.count:
        return "is the file of no chunk"
    start, stop = ledger.plan.bounds(number)
    try:
        found = inspect(path)
    except BadVectorsError as error:
        return str(error)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not path.stem.endswith(chunk_key(ledger.fingerprint, start, stop, found.digest)):
        return "does not have the digest in its name: it was changed or damaged"
    if found.not_finite_count != bad_count:
        return f"has NaN or infinity in {found.not_finite_count} rows"
    return None
