"""The file of an attempt's vectors, written batch by batch, so that what is encoded outlives a worker that dies.

It is not synced: checksums tell whether all of it is there, and the supervisor syncs what it takes over.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path

import numpy as np
import xxhash

from chunkvisor_worker.batching import Indices, Vectors
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Facts
from chunkvisor_worker.contract.wire import BatchLog
from chunkvisor_worker.plugin import BadOutputError

_BLOCK_BYTES = 2 << 20


class VectorFile:
    """Takes the vectors of an attempt as they come."""

    def __init__(self, files: AttemptFiles, count: int, skip: Sequence[int], facts: Callable[[], Facts]) -> None:
        """`count` texts in all; those at the positions in `skip` are not encoded here, and stay zero."""
        self._files = files
        self._count = count
        self._places = np.delete(np.arange(count, dtype=np.int64), list(skip))
        self._facts = facts
        self._filled = np.zeros(len(self._places), dtype=bool)
        self._dimension = self._offset = 0
        self._file: FileIO | None = None
        self._log_file = _create(files.batches, os.O_APPEND)
        self._log = BatchLog(self._log_file)

    def note_cut(self, texts: Indices, cut: Indices) -> None:
        """Say which texts are cut, before their vectors are there; see `Encoder.texts_cut`. Raises OSError.

        `texts` are those that the encoder has, by their positions here.
        """
        if not len(cut):
            return
        pairs = np.column_stack([self._places[texts[cut[:, 0]]], np.minimum(cut[:, 1], np.iinfo(np.int32).max)])
        with _create(self._files.cut, os.O_APPEND, truncate=False) as file:
            file.write(np.ascontiguousarray(pairs, dtype="<i4").tobytes())

    def begin(self, indices: Indices) -> None:
        """A batch of the texts at these positions begins. Raises OSError."""
        self._log.begin(self._places[indices].tolist())

    def add(self, indices: Indices, block: Vectors) -> None:
        """The vectors of the oldest batch under way; float32 of shape (n, dimension).

        Raises BadOutputError where the dimension is not that of the batches before; OSError.
        """
        if self._file is None:
            self._open(block.shape[1])
        if block.shape[1] != self._dimension:
            raise BadOutputError(f"vectors of {block.shape[1]} dimensions follow vectors of {self._dimension}")
        block = np.ascontiguousarray(block, dtype="<f4")
        rows, first = self._places[indices], 0
        for stop in [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]:
            self._write(self._offset + int(rows[first]) * 4 * self._dimension, block[first:stop].data.cast("B"))
            first = stop
        self._filled[indices] = True
        self._log.written(xxhash.xxh3_64_hexdigest(block.data))

    def begin_canary(self) -> None:
        """The canary begins. Raises OSError."""
        self._log.begin(())

    def pass_canary(self, block: Vectors) -> None:
        """The canary has its vector, of which only the dimension is noted.

        Raises BadOutputError where the vector is not one that a sound device gives; OSError.
        """
        if not np.isfinite(block).all() or not block.any():
            raise BadOutputError("a text that had a good vector before has none now: NaN, infinity or zero throughout")
        self._log.opened(self._facts())
        self._log.written(xxhash.xxh3_64_hexdigest(np.ascontiguousarray(block).data))

    @property
    def left(self) -> int:
        """Texts that have no vector yet."""
        return len(self._filled) - int(self._filled.sum())

    def finish(self) -> tuple[str, int]:
        """Give the file its name; returns (xxh3-128 of it, its size in bytes).

        Raises BadOutputError where a text has no vector; OSError.
        """
        if self._file is None or self.left:
            raise BadOutputError(f"the encoder left {self.left} of {len(self._filled)} texts without a vector")
        digest, size_bytes = xxhash.xxh3_128(), 0
        for block in _blocks(self._file):
            digest.update(block)
            size_bytes += len(block)
        self.close()
        self._files.partial.replace(self._files.vectors)
        return digest.hexdigest(), size_bytes

    def close(self) -> None:
        """Close what is open; a worker that fails just ends."""
        self._log_file.close()
        if self._file is not None:
            self._file.close()

    def _open(self, dimension: int) -> None:
        header = io.BytesIO()
        shape = {"descr": "<f4", "fortran_order": False, "shape": (self._count, dimension)}
        np.lib.format.write_array_header_1_0(header, shape)
        self._dimension, self._offset = dimension, header.tell()
        self._file = _create(self._files.partial, 0)
        # The space is reserved first, so that a full disk shows before the second batch is computed.
        size_bytes = self._offset + self._count * 4 * dimension
        try:
            os.posix_fallocate(self._file.fileno(), 0, size_bytes)
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(0)  # ext4 keeps what it could reserve, down to the last byte of the disk
            raise
        self._write(0, header.getbuffer())
        self._log.opened(self._facts())

    def _write(self, offset: int, data: memoryview) -> None:
        assert self._file is not None
        while data.nbytes:
            written = os.pwrite(self._file.fileno(), data, offset)
            offset, data = offset + written, data[written:]


def _create(path: Path, flags: int, *, truncate: bool = True) -> FileIO:
    return open(
        os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if truncate else 0) | flags, 0o666), "r+b", buffering=0
    )


def _blocks(file: FileIO) -> Iterator[bytes]:
    file.seek(0)
    while block := file.read(_BLOCK_BYTES):
        yield block
