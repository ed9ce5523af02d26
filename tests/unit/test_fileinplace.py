"""The final file of `encode` gets to its place."""

import errno
import re
from pathlib import Path

import pytest

from chunkvisor.commands import onefile
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.store.identity import Identity
from chunkvisor.store.layout import Layout
from chunkvisor.store.records import write_sealed

NAMES = {"model.name": "m", "model.encoder": "e", "source.digest": "d", "source.rows": 1}


def put_on_another_disk(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no rename take the file to its place."""
    replace = Path.replace

    def from_disk_to_disk(self: Path, to: Path) -> Path:
        if self == source:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return replace(self, to)

    monkeypatch.setattr(Path, "replace", from_disk_to_disk)


def test_a_copy_on_another_disk_is_durable_before_the_original_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may undo what one disk was told, and not what another was told after it."""
    source, target = tmp_path / "state" / "embeddings.npy", tmp_path / "out" / "v.npy"
    for path in (source, target):
        path.parent.mkdir()
    source.write_bytes(b"vectors")
    seen: list[tuple[Path, bool, bool]] = []
    put_on_another_disk(source, monkeypatch)
    monkeypatch.setattr(onefile, "sync_folder", lambda folder: seen.append((folder, source.exists(), target.exists())))
    onefile._move(source, target)
    assert seen == [(target.parent, True, True), (source.parent, False, True)]
    assert target.read_bytes() == b"vectors"


def test_the_disk_that_is_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file does not fit on the other disk: which folder, how much is needed, and how much is free there."""
    state, out = tmp_path / "state", tmp_path / "out" / "v.npy"
    out.parent.mkdir()
    output = Layout(state).output(onefile.OUTPUT)
    output.state.mkdir(parents=True)
    final = output.final
    final.write_bytes(bytes(2048))
    write_sealed(output.manifest, {"rows": 1})
    put_on_another_disk(final, monkeypatch)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(onefile, "copy_atomic", full)
    with pytest.raises(Halt) as caught:
        onefile.publish(out, state, Identity(NAMES))
    assert caught.value.code is ExitCode.DISK
    assert caught.value.what == f"the disk of {out.parent} is full or failing"
    room = rf"2\.0 KiB are needed; [\d.]+ \w+ are free in {out.parent}"
    assert re.search(rf"No space left on device; {room}$", caught.value.why)
    assert final.exists()
