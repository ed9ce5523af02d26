"""How much disk an output still needs, how much is free, and which errors are those of a disk."""

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

from chunkvisor.errors import KEPT, ExitCode, Halt, config_error
from chunkvisor.store.layout import Layout
from chunkvisor.units import human_bytes
from chunkvisor_worker.contract.exits import Outcome

DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE})
"""Errors of a disk that is full or failing."""
_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})

RESERVE_BYTES = 64 << 20
"""For attempts under way, logs and the journal."""


def need_bytes(rows: int, texts_left: int, dimension: int, row_bytes: int = 0) -> int:
    """Bytes of the chunks that are still to come and of the final file, which is written beside them.

    A final of another form, of `row_bytes` a row, is made beside one of float32.
    """
    return 4 * dimension * (texts_left + rows) + row_bytes * rows + RESERVE_BYTES


def check_disk(output: str, need: int, free: int | None, place: str) -> None:
    """Raises Halt (74) where the output cannot fit: said now, not when the disk is full at four in the morning."""
    if free is not None and free < need:
        raise Halt(
            ExitCode.DISK,
            f"output {output} does not fit on the disk of {place}",
            why=f"its vectors and a reserve of {human_bytes(RESERVE_BYTES)} need {human_bytes(need)} ({need:,} bytes), "
            f"and {human_bytes(free)} are free",
            remedy=f"free some space, or choose a workdir on a larger disk; then run again{KEPT}",
        )


def disk_remedy(error: OSError) -> str:
    """What a person can do about an error of `DISK_ERRNOS`."""
    if error.errno in _FULL_ERRNOS:
        return "free some space there, or choose another folder"
    return "look for its errors in the kernel's log (dmesg -T); if it is failing, choose a folder on another disk"


def room_in_words(*folders: Path) -> str:
    """`512.0 KiB are free in /data, 3.2 GiB in /tmp`: each disk once, by the first of the folders that is on it.

    Empty where it cannot be told.
    """
    found = dict[int, str]()
    for folder in folders:
        with contextlib.suppress(OSError):
            room = os.statvfs(folder)
            if room.f_files and not room.f_favail:  # btrfs and others have no fixed number of inodes, and say 0
                return f"the file system of {folder} has no inodes left: remove files there (df -i shows it)"
            device, free = folder.stat().st_dev, free_bytes(folder)
            if free is not None and device not in found:
                found[device] = f"{human_bytes(free)}{' are free' * (not found)} in {folder}"
    return ", ".join(found.values())


def with_room(words: str, *folders: Path) -> str:
    """The words, and what is free in the folders."""
    return "; ".join(filter(None, (words, room_in_words(*folders))))


def free_bytes(folder: Path) -> int | None:
    """Space that the user may still fill on the folder's file system; None where it cannot be told."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize


LIMIT_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
"""Of open files, processes and memory."""

_NO_START = {
    errno.E2BIG: "make the environment shorter: the values under env, and the shell's own variables",
    errno.ENOENT: "look whether the Python of this environment is still there; if it was replaced, install again",
    errno.ENOEXEC: "look at the Python of this environment: it is no program for this machine",
    errno.EACCES: "look at the rights of the workdir and of the Python of this environment",
    errno.EPERM: "look at the rights of the workdir and of the Python of this environment",
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL), "move it out of the way"),
    errno.ENAMETOOLONG: "choose a workdir with a shorter path",
}
"""Why no worker can be started, whatever is waited for -> what to do."""

FORBIDDEN_ERRNOS = frozenset({errno.EACCES, errno.EPERM})
_IN_THE_WAY = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY})
"""Something else stands where a file or a folder belongs."""


def of_start(error: OSError) -> tuple[Outcome, str]:
    """(outcome, what to do) of an attempt whose worker could not be started."""
    if error.errno in DISK_ERRNOS:
        return Outcome.DISK_FULL, ""
    remedy = _NO_START.get(error.errno or 0)
    return (Outcome.HOST_OOM, "") if remedy is None else (Outcome.SETUP, f"{remedy[0].upper()}{remedy[1:]}.")


def refusal(error: OSError, place: Path) -> Halt | None:
    """The Halt for it; `place` is the folder that was worked in. None where it can only be a bug of ours."""
    path = _path_of(error)
    if error.errno in LIMIT_ERRNOS:
        return limit_halt(error)
    if error.errno == errno.EROFS:
        return Halt(
            ExitCode.DISK,
            f"the disk of {path or place} is mounted read-only",
            why=str(error),
            remedy="mount it for writing (the kernel does this to a failing disk), or choose another workdir",
        )
    if error.errno in DISK_ERRNOS:
        return disk_halt(error, place)
    if path is None:
        gone = config_error("the current folder has been removed", remedy="change to a folder that is there")
        return gone if error.errno == errno.ENOENT else None
    if error.errno in FORBIDDEN_ERRNOS:
        return _forbidden(error, path)
    if error.errno == errno.ENAMETOOLONG:
        return config_error(
            f"the name {path.name[:60]}… is too long for a file", why=str(error.strerror), remedy="choose a shorter one"
        )
    if error.errno in _IN_THE_WAY:
        return config_error(
            f"{path} is not what belongs there: {error.strerror}",
            remedy="something else was put in its place; move that away, then run the same command again",
        )
    if error.errno == errno.ENOENT and place in path.parents:
        return Halt(
            ExitCode.DISK,
            f"{path} is gone",
            why="it was removed while the run needed it",
            remedy="run the same command again: it makes what is missing",
        )
    return None


def not_ours(path: Path, otherwise: str, why: str = "", *, ours: str = "this workdir") -> Halt:
    """A Halt (78) for what bears a name that a run needs; no run of `ours` has made it."""
    return config_error(
        f"{path} is there already, and no run of {ours} has made it", why=why, remedy=f"move it away, or {otherwise}"
    )


def workdir_gone(layout: Layout) -> Halt | None:
    """The end of a run whose workdir is no longer where it was; None while it is. Call it while the lock is held."""
    try:
        layout.lock.stat()
    except FileNotFoundError:
        return Halt(
            ExitCode.DISK,
            f"{layout.workdir} was moved or removed while the run worked in it",
            why=f"{layout.lock} is no longer there",
            remedy="move it back, or write its new place as workdir; then run the same command again. If it was "
            "removed, the same command begins anew",
        )
    except OSError:
        pass
    return None


def limit_halt(error: OSError) -> Halt:
    """The end of a run that was refused a file, a process or memory for itself."""
    return Halt(
        ExitCode.MACHINE,
        "the supervisor itself has met a limit of this machine",
        why=str(error),
        remedy="raise the limits of open files and processes (ulimit -n, ulimit -u; `chunkvisor doctor` shows them); "
        f"then run the same command again{KEPT}",
    )


def memory_halt() -> Halt:
    """The end of a command that was refused memory for itself."""
    return Halt(
        ExitCode.MACHINE,
        "there is not enough memory for the command itself",
        why="an allocation was refused (MemoryError): the machine, its container or `ulimit -v` allows no more",
        remedy=f"free memory, or raise the limit (ulimit -v unlimited); then run the same command again{KEPT}",
    )


def disk_halt(error: OSError, place: Path, need_bytes: int | None = None) -> Halt:
    """The end of a run that could not write or read a file: that of the error, or one in `place`; of so many bytes."""
    path = _path_of(error)
    folder = path.parent if path is not None and path.is_absolute() and place not in path.parents else place
    need = f"; {human_bytes(need_bytes)} are needed" if need_bytes is not None else ""
    return Halt(
        ExitCode.DISK,
        f"the disk of {folder} is full or failing",
        why=with_room(f"{error}{need}", folder),
        remedy=f"{disk_remedy(error)}; then run the same command again{KEPT}",
        see=str(Outcome.DISK_FULL),
    )


def _path_of(error: OSError) -> Path | None:
    return Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None


def _forbidden(error: OSError, path: Path) -> Halt:
    me = user_name(os.geteuid())
    return config_error(
        f"{me} may not use {path}: {error.strerror}",
        why=_rights(path),
        remedy=f"have its owner give {me} the right to (chmod, chown), run as its owner, or choose another place",
    )


def _rights(path: Path) -> str:
    """Whose the path is, or the nearest folder above it that can be looked at."""
    for each in (path, *path.absolute().parents):
        try:
            found = each.stat()
        except OSError:
            continue
        return f"{each} belongs to {user_name(found.st_uid)} ({stat.filemode(found.st_mode)})"
    return ""


def user_name(uid: int) -> str:
    """Return the name of that user, or the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


_HEAD_BYTES = 4096
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def check_target(path: Path, named_by: str, is_ours: Callable[[bytes], bool]) -> None:
    """Raises Halt (78) unless nothing is there, or an empty file, or a file of which `is_ours` knows the first 4 KiB.

    `named_by` is the key or the option that named it.
    """
    if not path.name:
        raise config_error(f"{named_by}: {str(path)!r} is not the name of a file", remedy="name a file to be written")
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise refusal(error, path.parent) or error from None
    if stat.S_ISLNK(found.st_mode):
        raise config_error(
            f"{named_by}: {path} is a link to {os.readlink(path)}",  # noqa: PTH115 - shown as it is written there
            why="nothing is written through links: they may be somebody else's",
            remedy="name the file itself",
        )
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
        raise config_error(f"{named_by}: {path} is {kind}", remedy="name a file, which is then written at once")
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise refusal(error, path.parent) or error from None
    if head and not is_ours(head):
        raise config_error(
            f"{named_by}: {path} is there already, and chunkvisor has not made it",
            remedy="move it away, or name another file",
        )
