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

IDENTITY = Identity({"model.name": "m", "model.encoder": "e", "source.digest": "d", "source.rows": 1})


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with a final file, on another disk than `out`: no rename takes the file there."""
    output = Layout(tmp_path / "state").output(onefile.OUTPUT)
    output.state.mkdir(parents=True)
    (tmp_path / "out").mkdir()
    output.final.write_bytes(bytes(2048))
    write_sealed(output.manifest, {"rows": 1})
    replace = Path.replace

    def from_disk_to_disk(self: Path, to: Path) -> Path:
        if self == output.final:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return replace(self, to)

    monkeypatch.setattr(Path, "replace", from_disk_to_disk)
    return tmp_path / "state"


def test_a_copy_is_durable_before_the_original_goes(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may undo what one disk was told, and not what another was told after it."""
    out, final = state.parent / "out" / "v.npy", Layout(state).output(onefile.OUTPUT).final
    seen: list[tuple[Path, bool, bool]] = []
    monkeypatch.setattr(onefile, "sync_folder", lambda folder: seen.append((folder, final.exists(), out.exists())))
    onefile.publish(out, state, IDENTITY)
    assert seen == [(out.parent, True, True), (state, False, True)]
    assert out.read_bytes() == bytes(2048)


def test_the_disk_that_is_full_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file does not fit on the other disk: which folder, and how much is free there."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = state.parent / "out" / "v.npy"
    monkeypatch.setattr(onefile, "copy_atomic", full)
    with pytest.raises(Halt) as caught:
        onefile.publish(out, state, IDENTITY)
    assert (caught.value.code, caught.value.what) == (ExitCode.DISK, f"the disk of {out.parent} is full or failing")
    assert re.search(rf"No space left on device; [\d.]+ \w+ are free in {out.parent}$", caught.value.why)
    assert Layout(state).output(onefile.OUTPUT).final.exists()
