"""`chunkvisor verify`: re-checks every final and chunk file of a folder against its record. Running again repairs.

A final file is checked by its manifest, whether or not the state that it was made from is still there.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from chunkvisor.assemble import badrows
from chunkvisor.assemble.finalfiles import strays
from chunkvisor.assemble.manifest import is_manifest, read_manifest, recorded_parts, shards_of
from chunkvisor.errors import no_workdir
from chunkvisor.store.artifact import BadVectorsError, Hash, Inspection, chunk_key, inspect
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.ledger import ledger_of
from chunkvisor.store.mark import is_workdir
from chunkvisor.store.parts import read_quarantine
from chunkvisor.store.seal import DamagedError
from chunkvisor_worker.contract.files import open_regular

_HEAD_BYTES = 4096
_BROKEN_SEAL = "is not what was written: its seal does not hold"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one file."""

    path: Path
    problem: str | None
    """None = it is as recorded."""
    needless: bool = False
    """Whether a run would not make it anew: a chunk of an output whose final file is whole."""


def verify(workdir: Path) -> Iterator[Finding]:
    """Every file in turn. Raises Halt (78) where the folder is no workdir, and has no final file with its manifest."""
    layout = Layout(workdir)
    with_state = {folder.name for folder in layout.outputs.glob("*/")} if is_workdir(layout) else set()
    alone = {path.stem for path in workdir.glob("*.json") if _is_manifest(path)}
    if not with_state | alone and not is_workdir(layout):
        raise no_workdir(workdir)
    for name in sorted(with_state | alone):
        output = layout.output(name)
        finals = list(_final(output))
        yield from finals
        yield from _chunks(output, whole=bool(finals) and not any(finding.problem for finding in finals))


def _is_manifest(path: Path) -> bool:
    with suppress(OSError), open_regular(path) as file:
        return is_manifest(file.read(_HEAD_BYTES))
    return False


def _final(layout: OutputLayout) -> Iterator[Finding]:
    if not (layout.final.exists() or layout.manifest.exists() or layout.done.exists()):
        return
    try:
        manifest = read_manifest(layout)
    except DamagedError:
        yield Finding(layout.manifest, _BROKEN_SEAL)
        return
    yield Finding(layout.manifest, None if manifest is not None else "is missing")
    if manifest is None:
        return
    parts = recorded_parts(layout, manifest)
    try:
        bad_rows = np.fromiter((row["row"] for row in badrows.every_row(layout, manifest)), dtype=np.int64)
    except DamagedError:
        bad_rows = None
    if "quarantined_in" in manifest:
        whole = badrows.holds(layout.quarantined, manifest)
        yield Finding(layout.quarantined, None if whole else "is missing, or is not what was written")
    zero_rows = 0
    for part, digest in parts:
        found, problem = _inspected(part.path, hashlib.sha256)
        if found is not None:
            zero_rows += found.zero_count
            shape, dimension = found.shape, manifest["dimension"]
            bad = None if bad_rows is None else int(((part.start <= bad_rows) & (bad_rows < part.stop)).sum())
            if (shape.rows, shape.dimension) != (part.rows, dimension):
                problem = f"has {shape.rows} x {shape.dimension}, its manifest says {part.rows} x {dimension}"
            elif found.digest != digest:
                problem = "has another digest than its manifest says: it was changed or damaged"
            elif bad is not None and found.not_finite_count != bad:
                problem = f"has NaN or infinity in {found.not_finite_count} rows"
            elif part is parts[-1][0] and zero_rows != manifest["zero_rows"]:
                problem = f"is zero throughout in {zero_rows} rows"
        yield Finding(part.path, problem)
    if shards_of(manifest) is not None:
        for path in strays(layout.shards, [part for part, _ in parts]):
            yield Finding(path, "is none of the shards, and readers take it for one")


def _chunks(layout: OutputLayout, *, whole: bool) -> Iterator[Finding]:
    """`whole`: the final file is there, and is as recorded."""
    try:
        ledger = ledger_of(layout)
    except DamagedError as error:
        yield Finding(Path(str(error)), _BROKEN_SEAL)
        return
    if ledger is None:
        if layout.chunks.exists() or layout.done.exists():
            yield Finding(layout.identity if not layout.identity.exists() else layout.staged, "is missing")
        return
    bad = {chunk: len(texts or ()) for chunk, texts in read_quarantine(layout)}
    for number, path in ledger.chunk_files():
        if number >= ledger.plan.count:
            yield Finding(path, "is the file of no chunk", needless=whole)
            continue
        found, problem = _inspected(path, xxhash.xxh3_128)
        needless = whole and problem is not None
        if found is not None:
            key = chunk_key(ledger.fingerprint, *ledger.plan.bounds(number), found.digest)
            if not path.stem.endswith(key):
                problem, needless = "does not have the digest in its name: it was changed or damaged", whole
            elif found.not_finite_count != bad.get(number, 0):
                problem = f"has NaN or infinity in {found.not_finite_count} rows"
        yield Finding(path, problem, needless)


def _inspected(path: Path, digest_by: Callable[[bytes], Hash]) -> tuple[Inspection | None, str | None]:
    """(what is in a file of vectors, None), or (None, why it cannot be read as one)."""
    try:
        return inspect(path, digest_by), None
    except BadVectorsError as error:
        return None, str(error)
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
