"""The upload of a final: whole or not at all, compared with what was sent, the manifest last."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.assemble.upload import Sent, UploadRequest, upload
from chunkvisor.errors import Halt
from chunkvisor.ingest import remote

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
ADDRESS = "memory://bucket/vectors"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The storage, with the files of an earlier upload, and no pause between tries."""
    monkeypatch.setattr(remote, "_PAUSES_S", (0.0,) * 4)
    files = fsspec.filesystem("memory", skip_instance_cache=True)
    monkeypatch.setattr(type(files), "store", {})
    monkeypatch.setattr(type(files), "pseudo_dirs", [""])
    files.pipe({f"{ADDRESS}/{name}": b"old" for name in ("out.npy", "out.rows.parquet", "out.json")})
    return files


def request(folder: Path, **content: bytes) -> UploadRequest:
    """For files of that content, the manifest last."""
    for name, data in content.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    sent = [
        Sent(str(folder / name.replace("__", ".")), name.replace("__", "."), hashlib.sha256(data).hexdigest())
        for name, data in content.items()
    ]
    return UploadRequest(ADDRESS, tuple(sent), ("out.rows.parquet",))


def names(files: Any) -> dict[str, bytes]:
    """What is there."""
    return {name.rpartition("/")[2]: files.cat_file(name) for name in files.find(ADDRESS)}


def test_it_is_there(there: Any, tmp_path: Path) -> None:
    """The files have replaced the earlier ones, what is not part of it any more is gone, and so are the copies."""
    answer = upload(request(tmp_path, out__npy=b"vectors" * 1000, out__json=b"{}"))
    assert names(there) == {"out.npy": b"vectors" * 1000, "out.json": b"{}"}
    assert {name: state[:2] for name, state in answer.items()} == {
        "out.npy": [f"{ADDRESS}/out.npy", 7000],
        "out.json": [f"{ADDRESS}/out.json", 2],
    }


OLD = {"out.npy": b"old", "out.rows.parquet": b"old", "out.json": b"old"}


def test_a_file_that_is_damaged_here(there: Any, tmp_path: Path) -> None:
    """A final that is not what its manifest says is not uploaded, and nothing is replaced."""
    wanted = request(tmp_path, out__npy=b"vectors", out__json=b"{}")
    (tmp_path / "out.npy").write_bytes(b"vectorz")
    with pytest.raises(Halt, match="is not what its manifest says") as raised:
        upload(wanted)
    assert raised.value.code == 74
    assert {name: data for name, data in names(there).items() if not name.startswith(".")} == OLD


def test_what_arrives_is_something_else(there: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read back is compared: damage on the way is sent again, and damage each time replaces nothing."""
    wanted, write = request(tmp_path, out__npy=b"vectors", out__json=b"{}"), type(there).open
    sent = 0

    def damaged(self: Any, path: str, mode: str, **more: Any) -> Any:
        nonlocal sent
        opened = write(self, path, mode, **more)
        if mode == "wb":
            sent += 1
            if sent <= most:
                opened.write(b"noise")
        return opened

    monkeypatch.setattr(type(there), "open", damaged)
    most = 1 << 30
    with pytest.raises(Halt, match="cannot be reached, in 5 tries") as raised:
        upload(wanted)
    assert raised.value.code == 75
    assert {name: data for name, data in names(there).items() if not name.startswith(".")} == OLD
    sent, most = 0, 3
    upload(wanted)
    assert names(there) == {"out.npy": b"vectors", "out.json": b"{}"}


def test_it_ends_in_the_midst(there: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it sends, it leaves the earlier files as they were, and the next upload is whole."""
    wanted, write = request(tmp_path, out__npy=b"vectors", out__json=b"{}"), type(there).open

    def killed(self: Any, path: str, mode: str, **more: Any) -> Any:
        if "out.json" in path:
            raise SystemExit
        return write(self, path, mode, **more)

    with monkeypatch.context() as patch:
        patch.setattr(type(there), "open", killed)
        with pytest.raises(SystemExit):
            upload(wanted)
    assert {name: data for name, data in names(there).items() if not name.startswith(".")} == OLD
    upload(wanted)
    assert names(there) == {"out.npy": b"vectors", "out.json": b"{}"}
