"""What the machine refuses to the program itself, in words: whose it is, what to do, and the exit
code.
"""

import errno
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.sources.stage import _as_halt
from chunkvisor.store.disk import (
    check_disk,
    halt_for,
    need_bytes,
    verdict_of,
    why_too_large,
    with_free_space,
)
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Phase
from chunkvisor_worker.contract.rules import RULES
from chunkvisor_worker.contract.taxonomy import diagnose
from chunkvisor_worker.faults import fault_of
from harness import halts

PLACE = Path("/data/work")
OF_FILES = {
    errno.ENOSPC: (ExitCode.DISK, "the disk is full"),
    errno.EDQUOT: (ExitCode.DISK, "quota of this user"),
    errno.EIO: (ExitCode.DISK, "reports an error"),
    errno.EROFS: (ExitCode.DISK, "mounted read-only"),
    errno.ESTALE: (ExitCode.DISK, "file server"),
    errno.EFBIG: (ExitCode.DISK, "larger than its file system"),
    errno.EMFILE: (ExitCode.MACHINE, "open files"),
    errno.ENOLCK: (ExitCode.MACHINE, "can be locked"),
    errno.EACCES: (ExitCode.CONFIG, "permission denied"),
    errno.EPERM: (ExitCode.CONFIG, "permission denied"),
    errno.ENAMETOOLONG: (ExitCode.CONFIG, "name or the path"),
}
"""Errors of the file system, the exit code of each, and words for it."""
OF_PATHS = {
    errno.ENOTDIR: (ExitCode.CONFIG, "cannot be used"),
    errno.ENOENT: (ExitCode.DISK, "was removed while"),
}
PATH = PLACE / "events.jsonl"


def error_of(number: int) -> OSError:
    """As the system raises it."""
    return OSError(number, os.strerror(number), str(PATH))


def halt_of(error: OSError, place: Path = PLACE) -> Halt:
    """What ends a run in that place that meets the error."""
    halt = halt_for(error, place)
    assert halt is not None
    return halt


def in_the_parent(number: int) -> tuple[int, str]:
    """Of the run itself: its journal, its records, its joins."""
    halt = halt_of(error_of(number))
    assert halt.remedy
    assert PATH.name in str(halt)
    return halt.code, halt.what


def in_the_reader(number: int) -> tuple[int, str]:
    """Of the process that reads the sources."""
    halt = _as_halt(error_of(number), None, PLACE)
    assert halt is not None
    return halt.code, halt.what


def at_a_start(number: int) -> tuple[int, str]:
    """Of an attempt whose folder is made, or whose worker is started."""
    verdict = verdict_of(error_of(number), "no worker could be started", PLACE)
    assert verdict.remedy
    return verdict.exit_code or ExitCode.MACHINE, _cause(verdict.rule)


def in_a_worker(number: int) -> tuple[int, str]:
    """Of a worker that writes its vectors."""
    rule = diagnose(fault_of(error_of(number), Phase.WRITE)).rule
    return rule.exit_code or ExitCode.MACHINE, _cause(rule.name)


def _cause(name: str) -> str:
    (cause,) = (rule.cause for rule in RULES if rule.name == name)
    return cause[0].lower() + cause[1:]


@pytest.mark.parametrize("place", [in_the_parent, in_the_reader, at_a_start, in_a_worker])
@pytest.mark.parametrize("number", OF_FILES, ids=errno.errorcode.get)
def test_errors_of_the_file_system(number: int, place: Callable[[int], tuple[int, str]]) -> None:
    """Each has its own words, code and remedy, the same ones wherever it comes up."""
    code, words = OF_FILES[number]
    found, what = place(number)
    assert found == code
    assert words in what


@pytest.mark.parametrize("number", OF_PATHS)
def test_errors_of_a_path(number: int) -> None:
    """What stands in the way, or is gone, is named, with something to do."""
    code, words = OF_PATHS[number]
    found, what = in_the_parent(number)
    assert found == code
    assert words in what


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EROFS])
def test_errors_of_the_file_system_that_duckdb_met(number: int) -> None:
    """DuckDB says them only in its message; a lack of memory has a class of its own."""
    code, words = OF_FILES[number]
    said = duckdb.IOException(f'IO Error: Could not write file "x": {os.strerror(number)}')
    halt = _as_halt(said, None, PLACE)
    assert halt is not None
    assert halt.code == code
    assert words in halt.what
    synced = _as_halt(duckdb.FatalException("FATAL Error: fsync failed!"), None, PLACE)
    assert synced is not None
    assert synced.code == ExitCode.DISK
    lacks = _as_halt(duckdb.OutOfMemoryException("could not allocate"), None, PLACE)
    assert lacks is not None
    assert lacks.code == ExitCode.MACHINE


def test_inodes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with space and without inodes is not called one with space."""
    room = os.statvfs(tmp_path)
    values = {name: getattr(room, name) for name in dir(room) if name.startswith("f_")}
    used_up = SimpleNamespace(**values | {"f_files": 100, "f_favail": 0})
    monkeypatch.setattr(os, "statvfs", lambda _: used_up)
    halt = halt_of(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert f"no more files can be made in {tmp_path}" in halt.why
    assert "are free" not in halt.why


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `ulimit -f` or the file system does not allow is known before it is written."""
    assert why_too_large(tmp_path, 1 << 20) == ""
    with monkeypatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
        assert "`ulimit -f`" in why_too_large(tmp_path, 1001)
        assert why_too_large(tmp_path, 1000) == ""
        with halts(74, "does not fit"):
            check_disk("out", 0, 1001, tmp_path)

    def of_fat(fd: int, offset: int, _: int) -> int:
        if offset >= 4 << 30:
            raise OSError(errno.EINVAL, "Invalid argument")
        return offset

    monkeypatch.setattr(os, "lseek", of_fat)
    assert "has no files of 5.0 GiB" in why_too_large(tmp_path, 5 << 30)
    assert why_too_large(tmp_path, 3 << 30) == ""


def test_need_counts_the_list_of_bad_rows() -> None:
    """Rows without a vector are listed twice, however few texts they have."""
    assert need_bytes(10, 0, 8, bad_rows=1_000_000) - need_bytes(10, 0, 8) > 200 << 20


def test_what_a_refusal_names(tmp_path: Path) -> None:
    """The disk that is full, and its room; who owns what may not be used; and that the current
    folder is gone.
    """
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    halt = halt_of(
        OSError(errno.ENOSPC, "No space left on device", str(elsewhere / "x")), tmp_path / "work"
    )
    assert halt.what == f"{elsewhere}: the disk is full, or can hold no more files"
    assert halt.why.endswith(f" are free in {elsewhere}")
    lock = tmp_path / "no" / "lock"
    for named in (lock, str(lock)):  # as it was opened by
        halt = halt_of(PermissionError(errno.EACCES, "Permission denied", named), tmp_path)
        assert re.search(rf"{tmp_path} belongs to .*\(drwx", halt.why)
    halt = halt_of(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert halt.what == "the current folder has been removed"
    words = with_free_space("no room", tmp_path / "none", tmp_path, elsewhere)
    assert re.fullmatch(rf"no room; [^;]+ are free in {re.escape(str(tmp_path))}", words), (
        "each disk once"
    )


def test_bugs_stay_bugs() -> None:
    """What can only be a fault of ours keeps its traceback."""
    assert halt_for(FileNotFoundError(errno.ENOENT, "No such file", "/elsewhere"), PLACE) is None
    assert _as_halt(ZeroDivisionError(), None, PLACE) is None


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.EAGAIN, Outcome.HOST_OOM),
        (errno.ENOSPC, Outcome.DISK_FULL),
        (errno.E2BIG, Outcome.SETUP),
    ],
)
def test_worker_that_cannot_be_started(number: int, outcome: Outcome) -> None:
    """What passes is waited for; what does not is a fault of the set-up; with something to do."""
    verdict = verdict_of(error_of(number), "no worker could be started", PLACE)
    assert verdict.outcome is outcome
    assert verdict.remedy
