"""A file that a person names for us to write: only what chunkvisor has made is ever replaced there.

A source, a config or anybody's file at that place stays as it is, and nothing is written through a link, a pipe or a
device.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from chunkvisor.errors import config_error
from chunkvisor.store.refusal import refusal

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
