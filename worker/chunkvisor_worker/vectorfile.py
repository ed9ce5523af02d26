"""The file of an attempt's vectors, written batch by batch, so that what is encoded outlives a worker that dies.

It is not synced: checksums tell whether all of it is there, and the parent syncs what it takes over.
"""

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

import numpy as np
import xxhash

from chunkvisor_worker.batching import Indices, Vectors
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import BatchLine, Facts
from chunkvisor_worker.contract.wire import to_json
from chunkvisor_worker.plugin import BadOutputError

_BLOCK_BYTES = 2 << 20


class VectorFile:
    """Takes the vectors of an attempt as they come. Each method raises OSError."""

    def __init__(self, files: AttemptFiles, count: int, skip: Sequence[int], facts: Callable[[], Facts]) -> None:
        """`count` texts in all; those at the positions in `skip` are not encoded here, and stay zero."""
        self._files = files
        self._count = count
        self._places = np.delete(np.arange(count, dtype=np.int64), list(skip))
        self._facts = facts
        self._filled = np.zeros(len(self._places), dtype=bool)
        self._dimension = self._offset = 0
        self._file: FileIO | None = None
        self._log = _create(files.batches, os.O_APPEND | os.O_TRUNC)

    def note_cut(self, texts: Indices, cut: Indices) -> None:
        """Say which of the `texts` (positions here of those that the encoder has) are cut; see `texts_cut`."""
        if len(cut):
            pairs = np.column_stack([self._places[texts[cut[:, 0]]], np.minimum(cut[:, 1], np.iinfo(np.int32).max)])
            with _create(self._files.cut, os.O_APPEND) as file:
                file.write(np.ascontiguousarray(pairs, dtype="<i4").tobytes())

    def begin(self, indices: Indices | None) -> None:
        """A batch of the texts at these positions begins; None = the canary, which is none of them."""
        self._say(BatchLine(rows=() if indices is None else tuple(self._places[indices].tolist())))

    def add(self, indices: Indices, block: Vectors) -> None:
        """Write vectors of the oldest batch under way: float32 (n, width). Raises BadOutputError for a new width."""
        file = self._file or self._open(block.shape[1])
        if block.shape[1] != self._dimension:
            raise BadOutputError(f"vectors of {block.shape[1]} dimensions follow vectors of {self._dimension}")
        block = np.ascontiguousarray(block, dtype="<f4")
        rows, first = self._places[indices], 0
        for stop in [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]:
            _write(file, self._offset + int(rows[first]) * 4 * self._dimension, block[first:stop].data.cast("B"))
            first = stop
        self._filled[indices] = True
        self._say(BatchLine(digest=xxhash.xxh3_64_hexdigest(block.data)))

    def pass_canary(self, block: Vectors) -> None:
        """The canary has its vector. Raises BadOutputError if it is not one that a sound device gives."""
        if not np.isfinite(block).all() or not block.any():
            raise BadOutputError("a text that had a good vector before has none now: NaN, infinity or zero throughout")
        self._say(BatchLine(facts=self._facts()))
        self._say(BatchLine(digest=xxhash.xxh3_64_hexdigest(np.ascontiguousarray(block).data)))

    @property
    def left(self) -> int:
        """Texts that have no vector yet."""
        return len(self._filled) - int(self._filled.sum())

    def finish(self) -> tuple[str, int]:
        """Give the file its name; returns (xxh3-128, size in bytes). Raises BadOutputError if a text has no vector."""
        if self._file is None or self.left:
            raise BadOutputError(f"the encoder left {self.left} of {len(self._filled)} texts without a vector")
        digest = xxhash.xxh3_128()
        self._file.seek(0)
        while block := self._file.read(_BLOCK_BYTES):
            digest.update(block)
        size_bytes = self._file.tell()
        self.close()
        self._files.partial.replace(self._files.vectors)
        return digest.hexdigest(), size_bytes

    def close(self) -> None:
        """Close what is open; a worker that fails just ends."""
        self._log.close()
        if self._file is not None:
            self._file.close()

    def _say(self, line: BatchLine) -> None:
        self._log.write(to_json(line))

    def _open(self, dimension: int) -> FileIO:
        header = io.BytesIO()
        shape = {"descr": "<f4", "fortran_order": False, "shape": (self._count, dimension)}
        np.lib.format.write_array_header_1_0(header, shape)
        self._dimension, self._offset = dimension, header.tell()
        self._file = file = _create(self._files.partial, os.O_TRUNC)
        try:
            # The space is reserved first, so that a full disk shows before the second batch is computed.
            os.posix_fallocate(file.fileno(), 0, self._offset + self._count * 4 * dimension)
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(0)  # ext4 keeps what it could reserve, down to the last byte of the disk
            raise
        _write(file, 0, header.getbuffer())
        self._say(BatchLine(facts=self._facts()))
        return file


def _write(file: FileIO, offset: int, data: memoryview) -> None:
    while data.nbytes:
        written = os.pwrite(file.fileno(), data, offset)
        offset, data = offset + written, data[written:]


def _create(path: Path, flags: int) -> FileIO:
    return open(os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666), "r+b", buffering=0)
