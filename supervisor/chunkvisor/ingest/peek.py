"""The start of a row's text out of a staged table, for people: nothing of the table is checked, or written."""

import os
import struct
from pathlib import Path

from chunkvisor.ingest.tablefiles import TableFiles
from chunkvisor_worker.contract.files import open_regular

_ITEM_BYTES = 8


def peek(folder: Path, row: int, most_bytes: int) -> str | None:
    """At most so many bytes of it, as text; None where the table is not there, or is not what it was."""
    paths = TableFiles(folder)
    try:
        (number,) = struct.unpack("<q", _read(paths.row_text, _ITEM_BYTES, row * _ITEM_BYTES))
        begin, end = struct.unpack("<QQ", _read(paths.offsets, 2 * _ITEM_BYTES, number * _ITEM_BYTES))
        return _read(paths.texts, min(max(0, end - begin), most_bytes), begin).decode(errors="replace")
    except (OSError, OverflowError, struct.error):
        return None


def _read(path: Path, size_bytes: int, offset: int) -> bytes:
    with open_regular(path) as file:
        return os.pread(file.fileno(), size_bytes, offset)
