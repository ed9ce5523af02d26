"""Indexes the texts of a table that has no index. In bounded memory.

By such an index the texts are found in another table, see `textindex`.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.ingest.spool import BINS, hashes_of, write_all
from chunkvisor.ingest.table import StagedTable
from chunkvisor.ingest.tablefiles import TableFiles, add_index
from chunkvisor.ingest.textindex import RECORD, records
from chunkvisor.store.seal import DamagedError
from chunkvisor_worker.contract.files import open_kept, open_new, remove_folder

_BLOCK_TEXTS = 20_000
_PART_TEXTS = 1 << 20
"""Sorted at a time, about: 100 MB."""

Records = npt.NDArray[np.void]


def index_of(folder: Path, on_wait: Callable[[], None], elsewhere: Path | None = None) -> Path | None:
    """The index of the table in `folder`, made where there is none; None where its texts are not there any more.

    It is made in the folder, or as the file `elsewhere`, and then the folder is only read. Calls `on_wait` now and
    then; what that raises ends it. Raises OSError.
    """
    files = TableFiles(folder)
    if files.holds_index():
        return files.index
    partial = elsewhere or folder / "index.partial"
    scratch = partial.with_name(partial.name + ".parts")
    try:
        table = StagedTable.open(folder, only_read=elsewhere is not None)
        remove_folder(scratch)
        scratch.mkdir(mode=0o700)
        _write(table, partial, scratch, on_wait)
    except DamagedError:
        return None
    finally:
        remove_folder(scratch)
    if elsewhere is not None:
        return elsewhere
    partial.replace(files.index)
    add_index(folder)
    return files.index


def _write(table: StagedTable, path: Path, scratch: Path, on_wait: Callable[[], None]) -> None:
    """Put the records by in parts of rising hashes, then sort part after part."""
    parts = min(BINS, -(-table.distinct // _PART_TEXTS))
    for block in _blocks(table):
        on_wait()
        part_of = (block["high"] >> np.uint64(56)).astype(np.int64) * parts // BINS
        for part in np.unique(part_of):
            with open(open_kept(scratch / f"{part:03d}"), "ab", buffering=0) as file:
                write_all(file.fileno(), block[part_of == part].tobytes())
    with open_new(path) as index:
        for part in range(parts):
            on_wait()
            with contextlib.suppress(FileNotFoundError):  # no hash is in it
                found = np.fromfile(scratch / f"{part:03d}", dtype=RECORD)
                index.write(found[np.lexsort((found["low"], found["high"]))].tobytes())
        index.flush()
        os.fsync(index.fileno())


def _blocks(table: StagedTable) -> Iterator[Records]:
    for start in range(0, table.distinct, _BLOCK_TEXTS):
        stop = min(start + _BLOCK_TEXTS, table.distinct)
        hashes = hashes_of([text.encode() for text in table.texts(start, stop)])
        yield records(hashes, table.first_row(start, stop))
