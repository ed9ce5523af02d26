"""Digests computed beside the reading and writing."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from chunkvisor.digests import Digest


@pytest.mark.parametrize("blocks", [[], [b""], [b"a"], [b"a" * 5000, b"", b"b" * 70_000, b"c"]])
def test_digest(blocks: list[bytes]) -> None:
    """The digest is that of all blocks in their order, whenever it is asked for, and of several at a time."""
    with ThreadPoolExecutor(2) as pool:
        first, second = Digest(pool, b"header"), Digest(pool)
        truth, other = hashlib.sha256(b"header"), hashlib.sha256()
        for block in blocks:
            for digest, hashed in ((first, truth), (second, other)):
                digest.update(memoryview(block))
                hashed.update(block)
            assert first.hexdigest() == truth.hexdigest()
        assert (first.hexdigest(), second.hexdigest()) == (truth.hexdigest(), other.hexdigest())
