"""What an output needs of the disk, what is free, and errors of the system as words."""

import contextlib
import errno
import os
import pwd
import resource
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from chunkvisor.errors import KEPT, ExitCode, Halt, config_error
from chunkvisor.judge import Verdict
from chunkvisor.units import human_bytes
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rules import OS_ERROR, PERMISSION_DENIED, RULES, TOO_LARGE, Rule

_IN_THE_WAY = {errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY}
"""Errors of something else in the place of a file or folder."""

RESERVE_BYTES = 64 << 20
"""Kept for attempts under way, logs and the journal."""
_LISTED_ROW_BYTES = 512  # of a row without a vector in a list of them, about
_AGAIN = f"Then run the same command again{KEPT}."


def need_bytes(
    rows: int, texts_left: int, dimension: int, row_bytes: int = 0, bad_rows: int = 0
) -> int:
    """Return the bytes of the chunks that are still to come and of the final file.

    A final file of another form has `row_bytes` a row, and is made from one of float32, which
    needs its space as well. `bad_rows` are listed in two files.
    """
    vectors = 4 * dimension * (texts_left + rows) + row_bytes * rows
    return vectors + 2 * _LISTED_ROW_BYTES * bad_rows + RESERVE_BYTES


def check_disk(output: str, need: int, largest: int, folder: Path) -> None:
    """Raise Halt (74) if an output that still needs `need` bytes does not fit in the folder.

    `largest` is the size of its largest file, in bytes.
    """
    free = free_bytes(folder)
    why = why_too_large(folder, largest)
    remedy = TOO_LARGE.remedy
    if free is not None and free < need:
        why = (
            f"its vectors and a reserve of {human_bytes(RESERVE_BYTES)} need "
            f"{human_bytes(need)} ({need:,} bytes), and {human_bytes(free)} are free"
        )
        remedy = "Free some space, or choose a workdir on a larger disk."
    if why:
        what = f"output {output} does not fit on the disk of {folder}"
        raise Halt(ExitCode.DISK, what, f"{remedy} {_AGAIN}", why=why)


def with_free_space(words: str, *folders: Path) -> str:
    """Return the words, and what is free on the disks of the folders that exist.

    Each disk is named once, by the first of the folders on it.
    """
    by_disk = {
        folder.stat().st_dev: folder for folder in reversed(folders) if os.access(folder, os.F_OK)
    }
    free = [room_in_words(folder) for folder in reversed(by_disk.values())]
    return "; ".join(filter(None, (words, ", ".join(free))))


def room_in_words(folder: Path) -> str:
    """Say how much is free in the folder, or that it can hold no more files. Raises OSError."""
    if _has_no_inodes(os.statvfs(folder)):
        return f"no more files can be made in {folder}: all its inodes are used"
    return f"{human_bytes(free_bytes(folder) or 0)} are free in {folder}"


def _has_no_inodes(room: os.statvfs_result) -> bool:
    return bool(room.f_files) and room.f_favail == 0


def nearest_existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(each for each in (path, *path.absolute().parents) if os.access(each, os.F_OK))


def temporary_folder() -> Path:
    """Return the folder for temporary files, as workers have it unless `env` names another."""
    return Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - it need not be there


def least_free_bytes(folder: Path) -> int | None:
    """Return what is free in this folder, or in that for temporary files if that has less."""
    found = [free_bytes(each) for each in (folder, temporary_folder())]
    return min((each for each in found if each is not None), default=None)


def free_bytes(folder: Path) -> int | None:
    """Return what the user may still write on the folder's file system; None if not known.

    Nothing if it can hold no more files.
    """
    try:
        room = os.statvfs(folder)
    except OSError:
        return None
    return 0 if _has_no_inodes(room) else room.f_bavail * room.f_frsize


def why_too_large(folder: Path, size_bytes: int) -> str:
    """Say why no file of that size can be written in the folder; empty if one can."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = human_bytes(size_bytes)
    if 0 <= limit < size_bytes:
        return f"a file of {size} is larger than the {human_bytes(limit)} of `ulimit -f`"
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        try:
            # Beyond the largest file of the file system this fails, and nothing is written
            # (vfs_setpos of the kernel's fs/read_write.c).
            os.lseek(file.fileno(), size_bytes, os.SEEK_SET)
        except OSError:
            return f"the file system of {folder} has no files of {size}"
    return ""


def rule_of(error: OSError) -> Rule | None:
    """Find the rule for an error of the file system, or of a limit of the machine, by its errno."""
    number = errno.EMFILE if error.errno == errno.EAGAIN else error.errno
    for rule in RULES:
        if any(sign.classes == OS_ERROR and number in sign.numbers for sign in rule.signs):
            return rule
    return None


def verdict_of(error: OSError, what: str, folder: Path) -> Verdict:
    """Judge an attempt that met an error of this process: `what` could not be done in `folder`."""
    reason = f"{what}: {error}"
    rule = rule_of(error)
    if not rule:
        remedy = (
            "Check that the Python of this environment can run, and that its variables (env) are "
            "not too long."
        )
        return Verdict(Outcome.SETUP, reason, remedy)
    if rule.outcome is Outcome.DISK_FULL:
        reason = with_free_space(reason, folder)
    return Verdict(rule.outcome, reason, rule.remedy, rule.name, rule.exit_code)


def halt_for(error: OSError, place: Path) -> Halt | None:
    """Return the Halt for an error of work in `place`; None if it can only be a bug of ours."""
    path = _path_of(error)
    rule = rule_of(error)
    if rule and (path or rule.name != PERMISSION_DENIED):
        return disk_halt(error, place)
    if not path:
        gone = config_error("the current folder has been removed", "Change to another folder.")
        return gone if error.errno == errno.ENOENT else None
    if error.errno in _IN_THE_WAY:
        return config_error(
            # The second path is that which a rename met.
            f"{error.filename2 or path} cannot be used: {error.strerror}",
            "Choose another path, or move it away. Then run the same command again.",
        )
    if error.errno == errno.ENOENT and path.parts[1:2] == ("proc",):
        return config_error(f"{path}: no file can be made in /proc", "Choose another place.")
    if error.errno == errno.ENOENT and place in path.parents:
        return Halt(
            ExitCode.DISK,
            f"{path} was removed while the run needed it",
            "Run the same command again: it makes what is missing.",
        )
    return None


def disk_halt(error: OSError, place: Path) -> Halt:
    """Return the Halt for an error that a rule knows, of work in `place`."""
    rule = rule_of(error)
    assert rule, error
    path = _path_of(error)
    where = path or place
    why = str(error)
    if rule.outcome is Outcome.DISK_FULL:
        where = path.parent if path and path.is_absolute() and place not in path.parents else place
        why = with_free_space(why, where)
    elif rule.name == PERMISSION_DENIED:
        there = nearest_existing(where)
        found = there.stat()
        owner = user_name(found.st_uid)
        mode = stat.filemode(found.st_mode)
        why = f"{there} belongs to {owner} ({mode}), and this is {user_name(os.geteuid())}"
    cause = rule.cause[0].lower() + rule.cause[1:].rstrip(".")
    return Halt(
        ExitCode(rule.exit_code or ExitCode.MACHINE),
        f"{where}: {cause}",
        f"{rule.remedy} {_AGAIN}",
        why=why,
        see=rule.name,
    )


def not_ours(path: Path, otherwise: str, why: str = "", *, ours: str = "this workdir") -> Halt:
    """Return the Halt (78) for a file in the way that no run in `ours` has made."""
    return config_error(
        f"{path} already exists, and no run of {ours} has made it",
        f"Move it away, or {otherwise}.",
        why=why,
    )


def memory_halt() -> Halt:
    """Return the Halt (69) of a command that was refused memory for itself."""
    return Halt(
        ExitCode.MACHINE,
        "there is not enough memory for the command itself",
        f"Free memory, or raise the limit (ulimit -v unlimited). {_AGAIN}",
        why="an allocation was refused (MemoryError): the machine, its container or `ulimit -v` "
        "allows no more",
    )


def _path_of(error: OSError) -> Path | None:
    name = error.filename  # a number if the file was given by its descriptor
    return Path(os.fsdecode(name)) if isinstance(name, str | bytes | os.PathLike) else None


def user_name(uid: int) -> str:
    """Return the name of the user with that number, or "user 1234" if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def check_target(path: Path, named_by: str, is_ours: Callable[[bytes], bool]) -> None:
    """Raise Halt (78) unless the path is free, or has an empty file or a file of ours.

    `is_ours` decides by the first 4 KiB. `named_by` is the key or the option that named the path.
    """
    try:
        # Nothing is written through links: another user may have made them.
        if path.name and not os.path.lexists(path):
            return
        if path.name and stat.S_ISREG(path.lstat().st_mode):
            with open(path, "rb") as file:
                head = file.read(4096)
            if not head or is_ours(head):
                return
    except OSError as error:
        raise halt_for(error, path.parent) or error from None
    raise config_error(
        f"{named_by}: {path} already exists, and chunkvisor has not made it",
        "Move it away, or name another file.",
    )
