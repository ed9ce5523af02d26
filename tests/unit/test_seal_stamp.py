"""State files know whether they are whole, and files whether they were touched."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkvisor.store.records import DamagedError, read_sealed, stamp_file, write_sealed

CONTENT = {"rows": 5, "name": "ä\ud800", "nested": {"list": [1, None, 2.5]}}


def test_any_byte_changed(tmp_path: Path) -> None:
    """Notice each byte that is changed, unless it leaves the meaning as it was, and each cut but
    for the line's end.
    """
    path = tmp_path / "sealed.json"
    assert read_sealed(path) is None
    write_sealed(path, CONTENT)
    assert read_sealed(path) == CONTENT
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[: max(0, at - 1)])
        with pytest.raises(DamagedError):
            read_sealed(path)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            assert read_sealed(path) == CONTENT, at
        except DamagedError:
            continue
        assert data[at : at + 1].isspace(), at


def rewrite(path: Path) -> None:
    """The same size, another content, and the old modification time."""
    before = path.stat()
    path.write_bytes(b"y" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "untouched", "holds"),
    [
        (lambda path: path.read_bytes(), True, True),
        (os.utime, False, True),
        (rewrite, False, False),
        (lambda path: path.write_bytes(b"x" * 101), False, False),
        (Path.unlink, False, False),
    ],
)
def test_stamp(
    tmp_path: Path, change: Callable[[Path], object], untouched: bool, holds: bool
) -> None:
    """A file that was touched is read again, and holds where its content is what it was."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    os.utime(path, ns=(1, 1))
    stamp = stamp_file(path)
    change(path)
    assert (stamp.untouched(path), stamp.holds(path)) == (untouched, holds)


@pytest.mark.parametrize(("error", "refused"), [("EMFILE", True), ("EIO", False)])
def test_a_file_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, refused: bool
) -> None:
    """It is not taken for damaged, and so not set aside, unless it is the disk that fails."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    stamp = stamp_file(path)
    os.utime(path, ns=(1, 1))
    number = getattr(errno, error)

    def refuse(_: Path) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("chunkvisor.store.records.digest_file", refuse)
    with pytest.raises(OSError) if refused else contextlib.nullcontext():  # noqa: PT011 - the table says which
        assert not stamp.holds(path)
