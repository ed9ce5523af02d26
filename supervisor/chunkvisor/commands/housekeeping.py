"""`chunkvisor verify`, `retry` and `clean`: check or change a workdir between two runs.

`verify` checks every final and chunk file against its record. A final file is checked by its
manifest, whether or not the state that it was made from still exists.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from chunkvisor.config.choices import FinalDtype
from chunkvisor.errors import no_workdir
from chunkvisor.outputs.forms import FORMATS, Manifest, VectorType, digest_in, form_of
from chunkvisor.outputs.publish import (
    check_side_files,
    complete_publication,
    reopen,
    rows_without_vector,
)
from chunkvisor.outputs.state import is_manifest, read
from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.artifact import BadVectorsError, bad_rows, inspect
from chunkvisor.store.chunkfiles import chunk_files
from chunkvisor.store.layout import Layout, OutputLayout, hold_lock, is_workdir, require_workdir
from chunkvisor.store.records import DamagedError, read_sealed
from chunkvisor.store.reuse import ledger_of, read_reuse
from chunkvisor.units import counted
from chunkvisor_worker.contract.files import remove_folder

_DAMAGED = "failed its integrity check"


class FileCheck(NamedTuple):
    """What was found of one file."""

    path: Path
    problem: str | None = None  # None = it is as recorded


def verify(workdir: Path) -> Iterator[FileCheck]:
    """Check every file of a workdir, or one final file and the files that belong to it.

    Raises Halt (78) if the folder is not a workdir and has no final file with its manifest.
    """
    if workdir.is_file():
        yield from final_checks(OutputLayout(workdir.parent, workdir.stem, place=workdir))
        return
    layout = Layout(workdir)
    combined = sorted(folder.name for folder in layout.all_combined.glob("*/"))
    names = {path.stem for path in workdir.glob("*.json") if is_final(path)}.difference(combined)
    if is_workdir(layout):
        names |= {folder.name for folder in layout.outputs.glob("*/")}
    elif not names:
        raise no_workdir(workdir)
    for output in map(layout.output, sorted(names)):
        yield from final_checks(read(output, check_file=False).layout)
        yield from _chunk_checks(output)
    for name in combined:
        yield from final_checks(layout.combined(name))


def is_final(path: Path) -> bool:
    """Say whether it is a final file with its manifest next to it, or that manifest."""
    manifest = path.with_suffix(".json")
    with suppress(OSError):
        if manifest.is_file():  # to open a pipe would wait
            with open(manifest, "rb") as file:
                return is_manifest(file.read(4096))
    return False


def final_checks(layout: OutputLayout) -> Iterator[FileCheck]:
    """Check a final file, its manifest and its side files."""
    if not (layout.final.exists() or layout.manifest.exists() or layout.done.exists()):
        return
    try:
        manifest = read_sealed(layout.manifest)
    except DamagedError:
        yield FileCheck(layout.manifest, _DAMAGED)
        return
    if manifest is None:
        # If the state has no record of it either, a kill came between the file and its manifest.
        if layout.done.exists() or not layout.state.is_dir():
            yield FileCheck(layout.manifest, "is missing")
        return
    yield FileCheck(layout.manifest)
    form = form_of(manifest)
    final = layout.file(form.format)
    vector_type = VectorType(form.dtype, manifest["dimension"])
    missing = 0
    zero_rows = 0
    problem = None
    try:
        if final.exists() and not final.is_file():  # to read a pipe would wait
            raise BadVectorsError("is not a file")
        read = FORMATS[form.format].read
        for rows in read(final, manifest["rows"], vector_type, digest_in(manifest)):
            not_finite, empty = bad_rows(rows)
            missing += len(not_finite)
            zero_rows += len(empty)
    except (BadVectorsError, OSError) as error:
        problem = _unreadable(error)
    else:
        if missing != manifest["quarantined_rows"]:
            problem = f"has NaN or infinity in {counted(missing, 'row')}"
        # A float16 may be rounded to zero.
        elif form.dtype is FinalDtype.FLOAT32 and zero_rows != manifest["zero_rows"]:
            problem = f"is zero throughout in {counted(zero_rows, 'row')}"
    yield FileCheck(final, problem)
    yield from (FileCheck(path, damage) for path, damage in check_side_files(layout, manifest))


def _unreadable(error: BadVectorsError | OSError) -> str:
    """Say what is wrong with a file of vectors that could not be read."""
    return f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)


def _chunk_checks(layout: OutputLayout) -> Iterator[FileCheck]:
    """Check the chunk files, whose digests are in their names."""
    try:
        ledger = ledger_of(layout)
    except DamagedError as error:
        yield FileCheck(Path(str(error)), _DAMAGED)
        return
    if ledger is None:
        if layout.chunks.exists() or layout.done.exists():
            yield FileCheck(layout.identity, "is missing")
        return
    for number, path in chunk_files(layout):
        problem = None
        try:
            digest = inspect(path).digest
        except (BadVectorsError, OSError) as error:
            problem = _unreadable(error)
        else:
            if number >= ledger.plan.count:
                problem = "does not belong to any chunk"
            elif not ledger.files.is_name_of(number, path, digest):
                problem = "does not have the digest in its name: it was changed or damaged"
        yield FileCheck(path, problem)


def retry(workdir: Path) -> int:
    """Take the texts of all outputs out of quarantine; return how many there were.

    The next run encodes only these. Raises Halt: 78 if the folder is not a workdir, 75 while a run
    uses it, 74 if its records are damaged; OSError.
    """
    with _locked_outputs(workdir) as outputs:
        return sum(map(_retry_output, outputs))


def clean(workdir: Path) -> tuple[int, int]:
    """Remove chunk files, attempts and staged texts of finished outputs.

    Return (files removed, bytes freed). An output with quarantined rows keeps its files: `retry`
    needs the good vectors of its chunks. Raises Halt: 78 if the folder is not a workdir, 75 while a
    run uses it.
    """
    sizes = list[int]()
    with _locked_outputs(workdir) as outputs:
        for output in outputs:
            manifest = read(output).manifest
            if manifest is None or manifest["quarantined"]:
                continue
            # By the index and its record, other outputs find the texts that have a vector here.
            table = TableFiles(output.table)
            staged = set(filter(Path.is_file, output.table.glob("*")))
            staged -= {table.index, table.record}
            files = [*staged, *output.chunks.rglob("*"), *output.attempts.rglob("*")]
            sizes += [path.stat().st_size for path in files if path.is_file()]
            for path in staged:
                path.unlink()
            for folder in (output.chunks, output.attempts):
                remove_folder(folder)
    return len(sizes), sum(sizes)


@contextmanager
def _locked_outputs(workdir: Path) -> Iterator[list[OutputLayout]]:
    """Yield the outputs of a workdir, which no run uses meanwhile."""
    layout = require_workdir(workdir)
    with hold_lock(layout.lock):
        # Not `glob`, which finds nothing in a folder that cannot be read.
        found = layout.outputs.iterdir() if layout.outputs.exists() else ()
        yield [layout.output(path.name) for path in sorted(found) if path.is_dir()]


def _bad_texts(layout: OutputLayout, manifest: Manifest) -> set[int]:
    """Return the texts without a vector, by their numbers in chunks; none without staged texts."""
    with suppress(DamagedError):
        rows = rows_without_vector(layout, manifest)
        texts = StagedTable.open(layout.table).row_text_at(rows)
        reuse = read_reuse(layout)
        # `where_of` gives ~n for a text that is number n of those in chunks.
        return set((texts if reuse is None else ~reuse.where_of(texts)).tolist())
    return set()


def _retry_output(layout: OutputLayout) -> int:
    """Take the texts of one output out of quarantine; return how many. Raises DamagedError."""
    found = complete_publication(layout)
    ledger = ledger_of(found.layout)
    if ledger is None:
        return 0
    known = _bad_texts(found.layout, found.manifest) if found.manifest else set()
    ledger.load()
    # The manifest knows bad texts as well: a record of the ledger may be lost.
    bad = known.union(ledger.bad)
    for chunk in ledger.taken_apart():
        bad.update(text.text for text in ledger.parts(chunk).bad)
    if bad:
        # On the disk first: an output that counts as done after a power cut, with no record of bad
        # texts, has no retry.
        reopen(found)
    # The file of a chunk that is done but for some texts becomes the part of it that is done.
    chunks = {text // ledger.plan.chunk_size for text in bad}
    for chunk, path in chunk_files(layout):
        if chunk not in chunks:
            continue
        start, stop = ledger.plan.bounds(chunk)
        if ledger.files.is_whole(chunk, path):  # else the whole chunk is computed again
            good = [text for text in range(start, stop) if text not in bad]
            ledger.parts(chunk).add_vectors(start, path, good)
        ledger.discard(chunk)
    for chunk in chunks:
        ledger.parts(chunk).forgive()
    return len(bad)
