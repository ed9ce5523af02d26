"""A file that is synced, read back and hashed while it grows: in the end it is known to be on the disk as given."""

import contextlib
import errno
import hashlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import xxhash

_BEHIND_BYTES = 64 << 20
"""Reading back stays this close, so that it finds in memory what was written."""

_SYNC_BYTES = 64 << 20
"""As much is left to be synced at the end, when nothing else is to do, or a few times that on a slow disk."""

_READ_BYTES = 1 << 20


class CheckedFile:
    """A new file, as a context; hashing lets go of the interpreter's lock. To pyarrow it is a file to write into."""

    closed = False

    def __init__(self, path: Path, size_bytes: int | None) -> None:
        """Reserve the space, where its size is known. Raises OSError."""
        self._path = path
        self._size_bytes = size_bytes
        self._written_bytes = self._synced_bytes = self._read_bytes = 0
        self._given = xxhash.xxh3_128()
        self._got, self._hash = xxhash.xxh3_128(), hashlib.sha256()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._to_read: deque[tuple[int, Future[None]]] = deque()
        self._sync: Future[None] | None = None
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            if size_bytes is not None:
                os.posix_fallocate(self._fd, 0, size_bytes)
        except BaseException:
            # ext4 keeps what it could reserve: whoever waits for space would wait for this.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            raise
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read-back")
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="sync")

    def __enter__(self) -> "CheckedFile":
        return self

    def __exit__(self, *error: object) -> None:
        """Close it, complete or not."""
        for pool in (self._reader, self._syncer):  # before the descriptor's number may be another file's
            pool.shutdown(cancel_futures=True)
        os.close(self._fd)

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Bytes that are written."""
        return self._written_bytes

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The context does it, once the file is read back."""

    def write(self, data: bytes | memoryview) -> None:
        """Append. Raises OSError, also for what was written before; EIO where that reads otherwise."""
        view = memoryview(data).cast("B")
        self._given.update(view)
        while view.nbytes:
            count = os.write(self._fd, view)
            view = view[count:]
            self._written_bytes += count
        self._to_read.append((self._written_bytes, self._reader.submit(self._read_back, self._written_bytes)))
        while self._to_read[0][0] + _BEHIND_BYTES < self._written_bytes:
            self._to_read.popleft()[1].result()
        if self._written_bytes - self._synced_bytes >= _SYNC_BYTES and (self._sync is None or self._sync.done()):
            self._sync_once()

    def finish(self) -> str:
        """Sync it and read it back to its end; returns its sha256, hex. Raises as `write` does."""
        self._sync_once()
        while self._to_read:
            self._to_read.popleft()[1].result()
        assert self._sync is not None
        self._sync.result()
        wanted_bytes = self._written_bytes if self._size_bytes is None else self._size_bytes
        if os.fstat(self._fd).st_size != wanted_bytes or self._given.digest() != self._got.digest():
            raise self._unlike()
        return self._hash.hexdigest()

    def _sync_once(self) -> None:
        if self._sync is not None:
            self._sync.result()  # an error of writing back is told once for a descriptor (errseq_t), perhaps here
        self._synced_bytes = self._written_bytes
        self._sync = self._syncer.submit(os.fsync, self._fd)

    def _read_back(self, end_bytes: int) -> None:
        while self._read_bytes < end_bytes:
            part = self._buffer[: end_bytes - self._read_bytes]
            count = os.preadv(self._fd, [part], self._read_bytes)
            if not count:
                raise self._unlike()
            self._got.update(part[:count])
            self._hash.update(part[:count])
            self._read_bytes += count

    def _unlike(self) -> OSError:
        return OSError(errno.EIO, "it does not hold what was written to it", str(self._path))
