"""`chunkvisor retry` and `chunkvisor clean`: what is changed in a workdir between two runs."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from chunkvisor.assemble.badrows import bad_texts, count_of, forget
from chunkvisor.assemble.manifest import read_finished, read_recorded, replaces_another
from chunkvisor.assemble.sides import remove_sides
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.sources.table import TableFiles
from chunkvisor.store.artifact import BadVectorsError, inspect
from chunkvisor.store.identity import BadText
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import Ledger, ledger_of
from chunkvisor.store.records import DamagedError
from chunkvisor.store.reuse import read_reuse
from chunkvisor.store.workdir import hold, require_workdir
from chunkvisor_worker.contract.files import remove_folder, sync_folder, write_atomic


def retry(workdir: Path) -> int:
    """Take the quarantined texts of all outputs out of quarantine; returns how many there were.

    The next run tries them again, and no others. Raises Halt: 78 where the folder is no workdir, 75 while anybody is at
    work there, 74 where its records are damaged; OSError.
    """
    with _held(workdir) as outputs:
        return sum(map(_reopen, outputs))


def clean(workdir: Path) -> tuple[int, int]:
    """Remove the chunk and attempt files, and the staged texts, of finished outputs: (files removed, bytes freed).

    An output with rows in quarantine keeps them: `retry` needs the good vectors of its chunks. Raises Halt: 78 where
    the folder is no workdir, 75 while anybody is at work there.
    """
    sizes: list[int] = []
    with _held(workdir) as outputs:
        finished = [output for output in outputs if _is_over(output)]
        for output in finished:
            table = TableFiles(output.table)
            # The index stays, and its record: by it, other outputs find the texts that have a vector here.
            staged = [path for path in output.table.glob("*") if path not in (table.index, table.record)]
            sizes += _remove(output.chunks) + _remove(output.attempts)
            for path in staged:
                if path.is_file() and not path.is_symlink():
                    sizes.append(path.stat().st_size)
                    path.unlink()
    return len(sizes), sum(sizes)


def _is_over(output: OutputLayout) -> bool:
    manifest = read_finished(output)
    return manifest is not None and not manifest["quarantined"]


def _remove(folder: Path) -> list[int]:
    """Remove it; the sizes of the files that were in it."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    remove_folder(folder)
    return sizes


@contextlib.contextmanager
def _held(workdir: Path) -> Iterator[list[OutputLayout]]:
    layout = require_workdir(workdir)
    with hold(layout.lock, ""):
        yield [layout.output(folder.name) for folder in _folders(layout.outputs)]


def _folders(folder: Path) -> list[Path]:
    """Those in it, by name; none where it is missing. Raises OSError, where `glob` would find nothing."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def _damage_told() -> Iterator[None]:
    try:
        yield
    except DamagedError as error:
        raise Halt(ExitCode.DISK, f"{error} is damaged", remedy="`chunkvisor run` says what can be done") from None


def _reopen(layout: OutputLayout) -> int:
    with _damage_told():
        ledger, manifest = ledger_of(layout), read_finished(layout)
        if manifest is not None and manifest["quarantined"] and read_reuse(layout) is not None:
            # Its chunks have a part of it only: the next run takes all good rows over from its final file.
            write_atomic(layout.again, b"")
            return len(bad_texts(layout, manifest)) or count_of(manifest)
    if ledger is None:
        return 0
    known = bad_texts(layout, manifest) if manifest is not None else {}
    ledger.load()
    pending = _with_bad_texts(ledger)
    # A record that is lost, or that went with a damaged chunk, takes no text out of the manifest.
    bad = known.keys() | ledger.bad.keys()
    count = len(bad) + sum(map(len, pending.values()))
    if not count:
        return 0
    # The final file stays as it is until the next run replaces it; without these records it is not taken for done.
    if not replaces_another(layout):
        recorded = read_recorded(layout)
        forget(layout, recorded)
        if recorded is not None:
            remove_sides(layout, recorded)
        layout.done.unlink(missing_ok=True)
        layout.manifest.unlink(missing_ok=True)
        # On the disk first: an output that counts as done after a power cut, with no record of bad texts, has no retry.
        for folder in (layout.state, layout.workdir):
            sync_folder(folder)
    _forgive(ledger, pending, bad)
    return count


def _with_bad_texts(ledger: Ledger) -> dict[int, list[BadText]]:
    """Chunks that are taken apart, with their bad texts."""
    return {chunk: bad for chunk in ledger.taken_apart() if (bad := ledger.parts(chunk).bad)}


def _forgive(ledger: Ledger, taken_apart: Iterable[int], bad: Iterable[int]) -> None:
    """Make bad texts pending: all of these chunks, and these texts of committed ones."""
    for chunk in taken_apart:
        ledger.parts(chunk).forgive()
    _reopen_committed(ledger, bad)


def _reopen_committed(ledger: Ledger, bad: Iterable[int]) -> None:
    """Have chunks that are done but for some texts taken apart, with their file as the part that is done."""
    texts_of: dict[int, list[int]] = {}
    for text in sorted(bad):
        texts_of.setdefault(text // ledger.plan.chunk_size, []).append(text)
    for chunk, path in ledger.chunk_files():
        if chunk in texts_of:
            start, stop = ledger.plan.bounds(chunk)
            with contextlib.suppress(BadVectorsError):  # damaged as well: the whole chunk is computed again
                ledger.parts(chunk).add(start, stop, path, inspect(path).digest, tuple(texts_of[chunk]))
            sync_folder(path.parent)  # before its record goes: without that, its file would count as damaged
            ledger.discard(chunk)
    if texts_of:
        sync_folder(ledger.layout.quarantine)
