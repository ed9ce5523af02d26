"""What the machine refuses to the program itself (an OSError), in words and with an exit code."""

import errno
import os
import pwd
import stat
from pathlib import Path

from chunkvisor.errors import KEPT, ExitCode, Halt, config_error
from chunkvisor.store.disk import DISK_ERRNOS, disk_remedy, with_room
from chunkvisor.store.layout import Layout
from chunkvisor.units import human_bytes
from chunkvisor_worker.contract.exits import Outcome

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
