"""The spool: texts of all rows as they come, with a hash of each, on disk.

It never keeps more than one batch in memory, and never compares two texts: `dedupe` does, by their hashes.
"""

import hashlib
import os
from pathlib import Path
from types import TracebackType

import duckdb
import numpy as np

from chunkvisor.ingest.table import TableFiles

_BATCH_ROWS = 50_000
_BATCH_BYTES = 32 << 20
_HASH_BYTES = 16
"""Of BLAKE2b. Two of n different texts share a hash with probability n**2 / 2**129: 4e-19 for ten billion texts."""


class Spool:
    """Appends texts to the table's text file, their lengths beside it, and their hashes to the table `hashes`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, files: TableFiles, lengths: Path) -> None:
        self.rows = 0
        self.batches: list[tuple[int, int]] = []
        """Rows and bytes of each batch, in their order in the files."""
        self._connection = connection
        connection.execute("CREATE TABLE hashes (row BIGINT, low UBIGINT, high UBIGINT)")
        self._texts = open(files.texts, "wb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self._lengths = open(lengths, "wb", buffering=0)  # noqa: SIM115 - as above
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._texts.close()
        self._lengths.close()

    def add(self, text: bytes) -> None:
        """Append the text of the next row, in UTF-8."""
        self._pending.append(text)
        self._pending_bytes += len(text)
        if len(self._pending) == _BATCH_ROWS or self._pending_bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = len(self._pending)
        blake2b = hashlib.blake2b
        digests = b"".join([blake2b(text, digest_size=_HASH_BYTES).digest() for text in self._pending])
        low, high = np.frombuffer(digests, dtype="<u8").reshape(rows, 2).T.copy()
        self._connection.register(
            "__chunkvisor_hashes", {"row": np.arange(self.rows, self.rows + rows), "low": low, "high": high}
        )
        self._connection.execute("INSERT INTO hashes SELECT row, low, high FROM __chunkvisor_hashes")
        write_all(self._texts.fileno(), b"".join(self._pending))
        write_all(self._lengths.fileno(), np.fromiter(map(len, self._pending), dtype="<u4", count=rows).tobytes())
        self.batches.append((rows, self._pending_bytes))
        self.rows += rows
        self._pending, self._pending_bytes = [], 0


def write_all(fd: int, data: bytes) -> None:
    """Write all of it: one write(2) may take less, such as on a disk that fills up. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
