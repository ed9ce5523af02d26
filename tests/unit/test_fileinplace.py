"""The final file of `encode` gets to its place."""

import errno
from pathlib import Path

import pytest

from chunkvisor.commands import fileinplace


def test_a_copy_on_another_disk_is_durable_before_the_original_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may undo what one disk was told, and not what another was told after it."""
    source, target = tmp_path / "state" / "embeddings.npy", tmp_path / "out" / "v.npy"
    for path in (source, target):
        path.parent.mkdir()
    source.write_bytes(b"vectors")
    replace = Path.replace

    def from_disk_to_disk(self: Path, to: Path) -> Path:
        if self == source:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return replace(self, to)

    seen: list[tuple[Path, bool, bool]] = []
    monkeypatch.setattr(Path, "replace", from_disk_to_disk)
    monkeypatch.setattr(
        fileinplace, "sync_folder", lambda folder: seen.append((folder, source.exists(), target.exists()))
    )
    fileinplace._move(source, target)
    assert seen == [(target.parent, True, True), (source.parent, False, True)]
    assert target.read_bytes() == b"vectors"
