"""`chunkvisor retry` and `chunkvisor clean`: what is changed in a workdir between two runs."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from chunkvisor.assemble.badrows import bad_texts, count_of
from chunkvisor.assemble.finished import follow_final
from chunkvisor.assemble.manifest import read_finished
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.sources.table import TableFiles
from chunkvisor.store.layout import OutputLayout, hold, require_workdir
from chunkvisor.store.ledger import Ledger, chunk_files, ledger_of, read_reuse
from chunkvisor.store.records import DamagedError
from chunkvisor_worker.contract.files import remove_folder, write_atomic


def retry(workdir: Path) -> int:
    """Take the quarantined texts of all outputs out of quarantine; return how many there were.

    The next run tries them again, and no others. Raises Halt: 78 if the folder is not a workdir, 75 while a run is at
    work there, 74 if its records are damaged; OSError.
    """
    with _held(workdir) as outputs:
        try:
            return sum(map(_reopen, outputs))
        except DamagedError as error:
            raise Halt(ExitCode.DISK, f"{error} is damaged", remedy="`chunkvisor run` says what can be done") from None


def clean(workdir: Path) -> tuple[int, int]:
    """Remove chunk files, attempts and staged texts of finished outputs; return (files removed, bytes freed).

    An output with quarantined rows keeps them: `retry` needs the good vectors of its chunks. Raises Halt: 78 if the
    folder is not a workdir, 75 while a run is at work there.
    """
    sizes: list[int] = []
    with _held(workdir) as outputs:
        manifests = [(output, read_finished(output)) for output in outputs]
        for output in [output for output, manifest in manifests if manifest and not manifest["quarantined"]]:
            for folder in (output.chunks, output.attempts):
                sizes += [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
                remove_folder(folder)
            # The index stays, and its record: by it, other outputs find the texts that have a vector here.
            table = TableFiles(output.table)
            for path in {*output.table.glob("*")} - {table.index, table.record}:
                if path.is_file() and not path.is_symlink():
                    sizes.append(path.stat().st_size)
                    path.unlink()
    return len(sizes), sum(sizes)


@contextlib.contextmanager
def _held(workdir: Path) -> Iterator[list[OutputLayout]]:
    layout = require_workdir(workdir)
    with hold(layout.lock, ""):
        try:
            # Not `glob`, which finds nothing in a folder that cannot be read.
            names = sorted(path.name for path in layout.outputs.iterdir() if path.is_dir())
        except FileNotFoundError:
            names = []
        yield [layout.output(name) for name in names]


def _reopen(layout: OutputLayout) -> int:
    """Make the bad texts of one output pending; return how many. Raises DamagedError."""
    ledger, manifest = ledger_of(layout), read_finished(layout)
    if manifest is not None and manifest["quarantined"] and read_reuse(layout) is not None:
        # Its chunks have a part of it only: the next run takes all good rows over from its final file.
        write_atomic(layout.again, b"")
        return len(bad_texts(layout, manifest)) or count_of(manifest)
    if ledger is None:
        return 0
    known = bad_texts(layout, manifest) if manifest is not None else {}
    ledger.load()
    pending = {chunk: found for chunk in ledger.taken_apart() if (found := ledger.parts(chunk).bad)}
    # A record that is lost, or that went with a damaged chunk, takes no text out of the manifest.
    bad = known.keys() | ledger.bad.keys()
    count = len(bad) + sum(map(len, pending.values()))
    if count:
        # On the disk first: an output that counts as done after a power cut, with no record of bad texts, has no retry.
        follow_final(layout)
    for chunk in pending:
        ledger.parts(chunk).forgive()
    _reopen_committed(ledger, bad)
    return count


def _reopen_committed(ledger: Ledger, bad: Iterable[int]) -> None:
    """Take chunks apart that are done but for some texts."""
    bad = set(bad)
    chunks = {text // ledger.plan.chunk_size for text in bad}
    for chunk, path in chunk_files(ledger.layout):
        if chunk in chunks:
            start, stop = ledger.plan.bounds(chunk)
            if ledger.is_whole(chunk, path):  # else the whole chunk is computed again
                ledger.parts(chunk).add(start, path, [text for text in range(start, stop) if text not in bad])
            ledger.discard(chunk)
