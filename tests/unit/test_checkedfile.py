"""Files that are synced, read back and hashed while they grow."""

import errno
import hashlib
import os
import threading
from pathlib import Path
from unittest import mock

import pytest

from chunkvisor.assemble import checkedfile
from chunkvisor.assemble.checkedfile import CheckedFile

BLOCKS = [b"header", b"", b"a" * 5000, b"b" * 70_000, b"c"]
SIZE_BYTES = sum(map(len, BLOCKS))


@pytest.fixture(params=[(1 << 20, 1 << 20, 1 << 20), (7, 100, 11), (1000, 0, 1)], ids=str, autouse=True)
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is read at once, may be behind, and is synced at once."""
    for name, value in zip(("_READ_BYTES", "_BEHIND_BYTES", "_SYNC_BYTES"), request.param, strict=True):
        monkeypatch.setattr(checkedfile, name, value)


def write_all(path: Path) -> str:
    """Write the blocks; the digest."""
    with CheckedFile(path, SIZE_BYTES) as file:
        for block in BLOCKS:
            file.write(block)
        return file.finish()


def test_whole(tmp_path: Path) -> None:
    """The bytes are there in their order, for the user alone, the digest is their sha256, and no thread is left."""
    before = threading.active_count()
    digest = write_all(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"".join(BLOCKS)
    assert digest == hashlib.sha256(b"".join(BLOCKS)).hexdigest()
    assert threading.active_count() == before


def open_descriptors() -> int:
    """Their number in this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def changed(data: memoryview) -> bytes:
    """The last bit is another."""
    return bytes(data[:-1]) + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("block", [0, 2, 3, 4])
def test_other_content(tmp_path: Path, block: int) -> None:
    """What reads otherwise than it was written is an error of the disk."""
    write, calls = os.write, []

    def lie(fd: int, data: memoryview) -> int:
        calls.append(data)
        return write(fd, changed(data) if bytes(data) == BLOCKS[block] else data)

    with (
        mock.patch("chunkvisor.assemble.checkedfile.os.write", lie),
        pytest.raises(OSError, match="does not hold") as caught,
    ):
        write_all(tmp_path / "file")
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(tmp_path / "file")
    assert calls


@pytest.mark.parametrize("size_bytes", [1, SIZE_BYTES - 1, SIZE_BYTES + 1])
def test_other_size(tmp_path: Path, size_bytes: int) -> None:
    """A file that is shorter or longer than what was written is not taken for it."""
    write = os.write

    def cut(fd: int, data: memoryview) -> int:
        count = write(fd, data)
        if bytes(data) == BLOCKS[-1]:
            os.truncate(tmp_path / "file", size_bytes)
        return count

    with mock.patch("chunkvisor.assemble.checkedfile.os.write", cut), pytest.raises(OSError, match="does not hold"):
        write_all(tmp_path / "file")


@pytest.mark.parametrize("failing", [1, 2])
def test_failing_sync(tmp_path: Path, failing: int) -> None:
    """An error of syncing, which the kernel tells once for a descriptor, is not lost, whenever it comes."""
    calls: list[int] = []

    def sync(fd: int) -> None:
        calls.append(fd)
        if len(calls) == min(failing, wanted):
            raise OSError(errno.EIO, "Input/output error")

    wanted = failing if checkedfile._SYNC_BYTES < SIZE_BYTES else 1
    with (
        mock.patch("chunkvisor.assemble.checkedfile.os.fsync", sync),
        pytest.raises(OSError, match="Input/output error"),
    ):
        write_all(tmp_path / "file")


def test_no_space(tmp_path: Path) -> None:
    """Where the space cannot be reserved, that is the error, and no descriptor stays open."""
    before = open_descriptors()
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        mock.patch("chunkvisor.assemble.checkedfile.os.posix_fallocate", side_effect=full),
        pytest.raises(OSError, match="No space left"),
    ):
        CheckedFile(tmp_path / "file", SIZE_BYTES)
    assert open_descriptors() == before


def test_given_up(tmp_path: Path) -> None:
    """A file that is left half-way leaves no descriptor and no thread."""
    before = open_descriptors(), threading.active_count()
    with CheckedFile(tmp_path / "file", SIZE_BYTES) as file:
        file.write(BLOCKS[0])
    assert (open_descriptors(), threading.active_count()) == before


def test_a_reservation_that_fails_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ext4 keeps what it could reserve: it is free again before anybody waits for space."""

    def half(fd: int, offset: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", half)
    with pytest.raises(OSError, match="No space"):
        write_all(tmp_path / "file")
    assert (tmp_path / "file").stat().st_size == 0
