"""The upload of a final: whole or not at all, compared with what was sent; files of others stay as they are."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.assemble.upload import Sent, UploadRequest, upload
from chunkvisor.assemble.uploadowner import Content, Known, vectors_of
from chunkvisor.errors import Halt
from chunkvisor.ingest import remote

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
ADDRESS = "memory://bucket/vectors"
OLD = {"out.npy": b"old", "out.rows.parquet": b"old", "out.json": b"old"}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The storage, with the files of an earlier upload, and no pause between tries."""
    monkeypatch.setattr(remote, "_PAUSES_S", (0.0,) * 4)
    files = fsspec.filesystem("memory", skip_instance_cache=True)
    monkeypatch.setattr(type(files), "store", {})
    monkeypatch.setattr(type(files), "pseudo_dirs", [""])
    files.pipe({f"{ADDRESS}/{name}": data for name, data in OLD.items()})
    return files


def request(folder: Path, **content: bytes) -> UploadRequest:
    """For files of that content, the manifest last; what is there is of an earlier upload from here."""
    sent = []
    for name, data in content.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(data)
        sent.append(Sent(str(path), path.name, content_of(data)))
    known = [Known(name, (content_of(b"old"),)) for name in OLD]
    return UploadRequest(ADDRESS, tuple(sent), known=tuple(known), mark="mark")


def content_of(data: bytes) -> Content:
    """As a record has it."""
    return Content(hashlib.sha256(data).hexdigest(), len(data))


def names(files: Any) -> dict[str, bytes]:
    """What is there."""
    return {name.rpartition("/")[2]: files.cat_file(name) for name in files.find(ADDRESS)}


def test_it_is_there(there: Any, tmp_path: Path) -> None:
    """The files have replaced the earlier ones, what is not part of it any more is gone, and so are the copies."""
    answer = upload(request(tmp_path, out__npy=b"vectors" * 1000, out__json=b"{}"))
    assert names(there) == {"out.npy": b"vectors" * 1000, "out.json": b"{}"}
    assert {name: state[:2] for name, state in answer.items() if state is not None} == {
        "out.npy": [f"{ADDRESS}/out.npy", 7000],
        "out.json": [f"{ADDRESS}/out.json", 2],
    }


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


def test_what_is_of_others(there: Any, tmp_path: Path) -> None:
    """A file that this workdir has not put there is refused by its name, and everything stays as it was."""
    wanted = request(tmp_path, out__npy=b"vectors", out__json=b"{}")
    for name, data in (("out.npy", b"theirs!"), ("out.json", b"[]"), ("out.npy", b"of another size")):
        there.pipe(OLD_THERE | {f"{ADDRESS}/{name}": data})
        with pytest.raises(Halt, match=rf"has not put there, and that would be replaced: {name}\n") as raised:
            upload(wanted)
        assert raised.value.code == 78
        assert names(there) == OLD | {name: data}
    there.pipe(OLD_THERE | {f"{ADDRESS}/out.rows.parquet": b"theirs"})  # nothing of ours has its place
    upload(wanted)
    assert names(there) == {"out.npy": b"vectors", "out.json": b"{}", "out.rows.parquet": b"theirs"}


OLD_THERE = {f"{ADDRESS}/{name}": data for name, data in OLD.items()}


def test_what_is_as_wanted_is_not_sent(there: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the state in which it was left is not read; one of the same content is read, and not sent."""
    wanted = request(tmp_path, out__npy=b"vectors", out__ranges__npy=b"ranges", out__json=b"{}")
    states = upload(wanted)
    known = [Known(sent.name, (sent.content,), *states[sent.name][1:3]) for sent in wanted.files]  # type: ignore[index]
    opened, open_ = list[tuple[str, str]](), type(there).open

    def noted(self: Any, path: str, mode: str = "rb", **more: Any) -> Any:
        opened.append((path.rpartition("/")[2], mode))
        return open_(self, path, mode, **more)

    monkeypatch.setattr(type(there), "open", noted)
    assert upload(replace(wanted, known=tuple(known))) == states
    assert opened == []
    assert upload(replace(wanted, known=())) == states  # the record is lost
    assert opened == [("out.npy", "rb"), ("out.ranges.npy", "rb"), ("out.json", "rb")]
    there.pipe(f"{ADDRESS}/.out.npy.mark.uploading", b"left by a kill")
    opened.clear()
    changed = request(tmp_path, out__npy=b"vectors", out__ranges__npy=b"ranges", out__json=b"{1}")
    upload(replace(changed, known=tuple(known)))
    assert opened == [(".out.json.mark.uploading", "wb"), (".out.json.mark.uploading", "rb")]
    assert names(there) == {"out.npy": b"vectors", "out.ranges.npy": b"ranges", "out.json": b"{1}"}


def test_a_manifest_of_the_same_vectors(there: Any, tmp_path: Path) -> None:
    """A workdir that was lost and made again puts its manifest in the place of the one that describes the same."""
    manifest = {"rows": 2, "dimension": 8, "digest": "sha256:1", "fingerprint": "2", "created_at": "now"}
    theirs = json.dumps(manifest | {"created_at": "long ago"}).encode()
    there.pipe({f"{ADDRESS}/out.npy": b"vectors", f"{ADDRESS}/out.json": theirs})
    wanted = request(tmp_path, out__npy=b"vectors", out__json=json.dumps(manifest).encode())
    wanted = replace(wanted, known=(), vectors=vectors_of(manifest | {"digest": "sha256:3"}))
    with pytest.raises(Halt, match=r"would be replaced: out\.json\n"):
        upload(wanted)
    upload(replace(wanted, vectors=vectors_of(manifest)))
    assert json.loads(names(there)["out.json"]) == manifest


def test_somebody_writes_meanwhile(there: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another puts there while the final is sent is not replaced, and the copies are taken away."""
    wanted, write = request(tmp_path, out__npy=b"vectors", out__json=b"{}"), type(there).open

    def beside(self: Any, path: str, mode: str = "rb", **more: Any) -> Any:
        if mode == "wb" and "out.json" in path:
            there.pipe(f"{ADDRESS}/out.npy", b"theirs")
        return write(self, path, mode, **more)

    monkeypatch.setattr(type(there), "open", beside)
    with pytest.raises(Halt, match="has changed while the final was sent") as raised:
        upload(wanted)
    assert raised.value.code == 75
    assert names(there) == OLD | {"out.npy": b"theirs"}
