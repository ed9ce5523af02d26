"""Another user of the machine: what he can read, and a workdir that is not his."""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import Ended
from otheruser import OTHER, closed_above, run_as_other, why_not
from scripted_workplace import ScriptedWorkplace

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for two users")
TEXTS = ["t0", "t1", "t2"]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that the other user can reach, too; above pytest's own nobody else may pass."""
    with tempfile.TemporaryDirectory(prefix="chunkvisor-shared-") as name:
        folder = Path(name)
        if closed_above(folder) is not None:
            pytest.skip(f"another user may not enter {closed_above(folder)}")
        folder.chmod(0o755)
        yield folder


AsOther = Callable[..., Ended]


@pytest.fixture
def as_other(tmp_path: Path) -> AsOther:
    """Runs a command of chunkvisor as the other user."""
    scratch = tmp_path / "mounts"
    scratch.mkdir()
    if reason := why_not(scratch):
        pytest.skip(reason)
    return lambda place, *arguments: run_as_other(place.command(*arguments), scratch)


def give(folder: Path, user: int = OTHER) -> None:
    """Make everything the user's, links themselves and not what they lead to."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


def modes(folder: Path) -> dict[str, int]:
    """Permission bits of everything in it."""
    found = (path for path in folder.rglob("*") if not path.is_symlink())
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in found}


@pytest.mark.parametrize(("umask", "file_mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_modes(tmp_path: Path, umask: int, file_mode: int) -> None:
    """Only we may enter the state, under every umask; final files are as the umask says; the
    workdir lets others in.
    """
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2, chunk__keep=True)
    place.lay("t1", "value_error!")
    before = os.umask(umask)
    try:
        place.ends(3)
    finally:
        os.umask(before)
    found = modes(place.workdir)
    assert {found["out.npy"], found["out.json"], found["report.html"]} == {file_mode}
    assert found[".chunkvisor"] == 0o700
    assert stat.S_IMODE(place.workdir.stat().st_mode) == 0o755 & ~umask


def test_workdir_of_somebody_else(shared: Path, as_other: AsOther) -> None:
    """A colleague's workdir is refused in words to whoever may not write there, and stays as it
    was.
    """
    place = ScriptedWorkplace.make(shared / "place", TEXTS)
    place.ends(0)
    before = modes(place.workdir)
    for command in ("run", "clean", "retry"):
        ended = as_other(place, command, str(place.config_path))
        assert ended.returncode == 78, ended
        assert "belongs to root" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert modes(place.workdir) == before
    ended = as_other(place, "init", str(place.folder / "new.yaml"))
    assert ended.returncode == 78
