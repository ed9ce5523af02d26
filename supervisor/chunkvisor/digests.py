"""sha256 of what passes by, computed beside the reading and writing: hashlib lets go of the interpreter's lock.

It never copies a block, and is never more than one block behind with a digest.
"""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor


class Digest:
    """A digest under way."""

    def __init__(self, pool: ThreadPoolExecutor, data: bytes = b"") -> None:
        """`data` comes first."""
        self._pool = pool
        self._hash = hashlib.sha256(data)
        self._pending: Future[None] | None = None

    def update(self, block: memoryview) -> None:
        """Take in a block, which nobody may change from now on."""
        self._wait()
        self._pending = self._pool.submit(self._hash.update, block)

    def hexdigest(self) -> str:
        """Of all that was taken in."""
        self._wait()
        return self._hash.hexdigest()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None
