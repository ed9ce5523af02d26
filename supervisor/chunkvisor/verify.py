"""Re-checks every final and chunk file of a workdir against its record.

It never repairs: running again does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.artifact import BadVectorsError, chunk_key, inspect
from chunkvisor.errors import no_workdir
from chunkvisor.fixed import ledger_of
from chunkvisor.layout import Layout, OutputLayout
from chunkvisor.ledger import Ledger
from chunkvisor.manifest import read_manifest
from chunkvisor.parts import read_quarantine
from chunkvisor.seal import DamagedError


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
    try:
        found = inspect(layout.final)
    except BadVectorsError as error:
        yield Finding(layout.final, str(error))
        return
    except OSError as error:
        yield Finding(layout.final, f"cannot be read: {error.strerror}")
        return
    wanted = (manifest["rows"], manifest["dimension"])
    problem = None
    if (found.shape.rows, found.shape.dimension) != wanted:
        problem = f"has {found.shape.rows} x {found.shape.dimension}, its manifest says {wanted[0]} x {wanted[1]}"
    elif manifest["digest"] != f"sha256:{found.digest}":
        problem = "has another digest than its manifest says: it was changed or damaged"
    elif found.not_finite_count != len(manifest["quarantined"]):
        problem = f"has NaN or infinity in {found.not_finite_count} rows"
    elif found.zero_count != manifest["zero_rows"]:
        problem = f"is zero throughout in {found.zero_count} rows"
    yield Finding(layout.final, problem)


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
