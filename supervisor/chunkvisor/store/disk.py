"""How much disk an output still needs, how much is free, and which errors are those of a disk."""

import contextlib
import errno
import os
from pathlib import Path

from chunkvisor.errors import KEPT, ExitCode, Halt
from chunkvisor.units import human_bytes

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
