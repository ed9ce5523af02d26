"""What the machine refuses to the program itself, in words: whose it is, what to do, and the exit
code.
"""

import errno
import os
import re
from pathlib import Path

import pytest

from chunkvisor.errors import ExitCode
from chunkvisor.store.disk import halt_for, start_failure, with_free_space
from chunkvisor_worker.contract.exits import Outcome

PLACE = Path("/data/work")
CODES = {
    errno.EMFILE: (ExitCode.MACHINE, "limit of this machine"),
    errno.ENOSPC: (ExitCode.DISK, "full or failing"),
    errno.EIO: (ExitCode.DISK, "full or failing"),
    errno.EROFS: (ExitCode.DISK, "mounted read-only"),
    errno.EACCES: (ExitCode.CONFIG, "permission denied"),
    errno.ENOTDIR: (ExitCode.CONFIG, "cannot be used"),
    errno.ENOENT: (ExitCode.DISK, "was removed while"),
}


@pytest.mark.parametrize("number", CODES)
def test_refusal_in_words(number: int) -> None:
    """Each names the path, and has something to do."""
    code, words = CODES[number]
    halt = halt_for(OSError(number, os.strerror(number), "/data/work/events.jsonl"), PLACE)
    assert halt is not None
    assert (halt.code, bool(halt.remedy)) == (code, True)
    assert words in halt.what
    assert "events.jsonl" in str(halt)


def test_what_a_refusal_names(tmp_path: Path) -> None:
    """The disk that is full, and its room; who owns what may not be used; and that the current
    folder is gone.
    """
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    halt = halt_for(
        OSError(errno.ENOSPC, "No space left on device", str(elsewhere / "x")), tmp_path / "work"
    )
    assert halt is not None
    assert halt.what == f"the disk of {elsewhere} is full or failing"
    assert halt.why.endswith(f" are free in {elsewhere}")
    lock = tmp_path / "no" / "lock"
    for named in (lock, str(lock)):  # as it was opened by
        halt = halt_for(PermissionError(errno.EACCES, "Permission denied", named), tmp_path)
        assert halt is not None
        assert re.search(rf"{tmp_path} belongs to .*\(drwx", halt.why)
    halt = halt_for(FileNotFoundError(errno.ENOENT, "No such file or directory"), PLACE)
    assert halt is not None
    assert halt.what == "the current folder has been removed"
    words = with_free_space("no room", tmp_path / "none", tmp_path, elsewhere)
    assert re.fullmatch(rf"no room; [^;]+ are free in {re.escape(str(tmp_path))}", words), (
        "each disk once"
    )


def test_bugs_stay_bugs() -> None:
    """What can only be a fault of ours keeps its traceback."""
    assert halt_for(FileNotFoundError(errno.ENOENT, "No such file", "/elsewhere"), PLACE) is None


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.EAGAIN, Outcome.HOST_OOM),
        (errno.ENOSPC, Outcome.DISK_FULL),
        (errno.E2BIG, Outcome.SETUP),
    ],
)
def test_worker_that_cannot_be_started(number: int, outcome: Outcome) -> None:
    """What passes is waited for; what does not is a fault of the set-up, with something to do."""
    found, remedy = start_failure(OSError(number, os.strerror(number)))
    assert (found, bool(remedy)) == (outcome, outcome is Outcome.SETUP)
