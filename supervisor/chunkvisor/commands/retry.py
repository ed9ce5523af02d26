"""Takes quarantined rows out of quarantine: the next run tries them again, and nothing else.

It never computes anything itself, and never gives up a good vector.
"""

import contextlib
from pathlib import Path

from chunkvisor.errors import ExitCode, Halt, no_workdir
from chunkvisor.store.artifact import BadVectorsError, inspect
from chunkvisor.store.layout import Layout
from chunkvisor.store.ledger import Ledger, ledger_of
from chunkvisor.store.seal import DamagedError
from chunkvisor.store.slicelock import hold_workdir


def retry(workdir: Path) -> int:
    """Make the bad texts of all outputs pending again; returns how many there were.

    Raises Halt: 78 where the folder is no workdir, 75 while anybody is at work there, 74 where its records are
    damaged; OSError.
    """
    layout = Layout(workdir)
    if not layout.outputs.is_dir():
        raise no_workdir(workdir)
    count = 0
    with hold_workdir(layout, ""):
        for folder in sorted(layout.outputs.glob("*/")):
            try:
                ledger = ledger_of(layout.output(folder.name))
            except DamagedError as error:
                raise Halt(
                    ExitCode.DISK, f"{error} is damaged", remedy="`chunkvisor run` says what can be done"
                ) from None
            if ledger is not None:
                count += _reopen(ledger)
    return count


def _reopen(ledger: Ledger) -> int:
    layout = ledger.layout
    ledger.load()
    pending = [chunk for chunk in ledger.taken_apart() if ledger.parts(chunk).bad]
    count = len(ledger.bad) + sum(len(ledger.parts(chunk).bad) for chunk in pending)
    if not count:
        return 0
    # The final file stays as it is until the next run replaces it; without these records it is not taken for done.
    layout.done.unlink(missing_ok=True)
    layout.manifest.unlink(missing_ok=True)
    for chunk in pending:
        ledger.parts(chunk).forgive()
    texts_of: dict[int, list[int]] = {}
    for text in sorted(ledger.bad):
        texts_of.setdefault(text // ledger.plan.chunk_size, []).append(text)
    for chunk, path in ledger.chunk_files():
        if chunk in texts_of:
            start, stop = ledger.plan.bounds(chunk)
            with contextlib.suppress(BadVectorsError):  # damaged as well: the whole chunk is computed again
                ledger.parts(chunk).add(start, stop, path, inspect(path).digest, tuple(texts_of[chunk]))
            ledger.discard(chunk)
    return count
