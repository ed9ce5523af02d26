"""What an output needs of the disk, what is free, and errors of the system as words."""

import errno
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

from chunkvisor.errors import KEPT, ExitCode, Halt, config_error
from chunkvisor.units import human_bytes
from chunkvisor_worker.contract.exits import DISK_ERRNOS, FULL_ERRNOS, Outcome

LIMIT_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
"""Errors of too many open files or processes, or too little memory."""
FORBIDDEN_ERRNOS = frozenset({errno.EACCES, errno.EPERM})
"""Errors of missing rights."""
_IN_THE_WAY = {
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
}
"""Errors of something else in the place of a file or folder, or of an impossible name."""

RESERVE_BYTES = 64 << 20
"""Kept for attempts under way, logs and the journal."""
_AGAIN = f"Then run the same command again{KEPT}."


def need_bytes(rows: int, texts_left: int, dimension: int, row_bytes: int = 0) -> int:
    """Return the bytes of the chunks that are still to come and of the final file.

    A final file of another form has `row_bytes` a row, and is made from one of float32, which
    needs its space as well.
    """
    return 4 * dimension * (texts_left + rows) + row_bytes * rows + RESERVE_BYTES


def check_disk(output: str, need: int, free: int | None, place: str) -> None:
    """Raise Halt (74) if the output does not fit; `free` is None if that is not known."""
    if free is not None and free < need:
        raise Halt(
            ExitCode.DISK,
            f"output {output} does not fit on the disk of {place}",
            f"Free some space, or choose a workdir on a larger disk. {_AGAIN}",
            why=f"its vectors and a reserve of {human_bytes(RESERVE_BYTES)} need "
            f"{human_bytes(need)} ({need:,} bytes), "
            f"and {human_bytes(free)} are free",
        )


def with_free_space(words: str, *folders: Path) -> str:
    """Return the words, and how much is free on the disks of the folders that exist.

    Each disk is named once, by the first of the folders on it.
    """
    by_disk = {
        folder.stat().st_dev: folder for folder in reversed(folders) if os.access(folder, os.F_OK)
    }
    free = [
        f"{human_bytes(free_bytes(folder) or 0)} are free in {folder}"
        for folder in reversed(by_disk.values())
    ]
    return "; ".join(filter(None, (words, ", ".join(free))))


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
    """Return what the user may still write on the folder's file system; None if not known."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return None
    return room.f_bavail * room.f_frsize


def start_failure(error: OSError) -> tuple[Outcome, str]:
    """Return (outcome, remedy) of an attempt whose worker could not be started."""
    if error.errno in DISK_ERRNOS:
        return Outcome.DISK_FULL, ""
    if error.errno in LIMIT_ERRNOS:
        return Outcome.HOST_OOM, ""
    remedy = (
        "Check that the Python of this environment can run, and that its variables (env) are not "
        "too long."
    )
    return Outcome.SETUP, remedy


def halt_for(error: OSError, place: Path) -> Halt | None:
    """Return the Halt for an error of work in `place`; None if it can only be a bug of ours."""
    path = _path_of(error)
    if error.errno in LIMIT_ERRNOS:
        return Halt(
            ExitCode.MACHINE,
            "chunkvisor met a limit of this machine: open files, processes or memory",
            f"Raise ulimit -n and -u, or free memory. {_AGAIN}",
            why=str(error),
        )
    if error.errno in DISK_ERRNOS:
        return disk_halt(error, place)
    if not path:
        gone = config_error("the current folder has been removed", "Change to another folder.")
        return gone if error.errno == errno.ENOENT else None
    if error.errno in FORBIDDEN_ERRNOS:
        me = user_name(os.geteuid())
        there = nearest_existing(path)
        found = there.stat()
        return config_error(
            f"permission denied: {me} cannot use {path}",
            f"Have its owner give {me} the right to (chmod, chown), run as its owner, or choose "
            f"another place.",
            why=f"{there} belongs to {user_name(found.st_uid)} ({stat.filemode(found.st_mode)})",
        )
    if error.errno in _IN_THE_WAY:
        return config_error(
            f"{path} cannot be used: {error.strerror}",
            "Move it away or choose a shorter name, then run the same command again.",
        )
    if error.errno == errno.ENOENT and place in path.parents:
        return Halt(
            ExitCode.DISK,
            f"{path} was removed while the run needed it",
            "Run the same command again: it makes what is missing.",
        )
    return None


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


def disk_halt(error: OSError, place: Path) -> Halt:
    """Return the Halt (74) for a disk error: of `place`, or of the folder that the error names."""
    path = _path_of(error)
    folder = place
    if path and path.is_absolute() and place not in path.parents:
        folder = path.parent
    what = f"the disk of {folder} is full or failing"
    remedy = "Free some space there, or choose another folder"
    if error.errno == errno.EROFS:
        what = f"the disk of {folder} is mounted read-only"
        remedy = "Mount it for writing, or choose another folder"
    elif error.errno not in FULL_ERRNOS:
        remedy = (
            "Look for its errors in the kernel's log (dmesg -T); if it is failing, choose a folder "
            "on another disk"
        )
    return Halt(
        ExitCode.DISK,
        what,
        f"{remedy}. {_AGAIN}",
        why=with_free_space(str(error), folder),
        see=Outcome.DISK_FULL,
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
