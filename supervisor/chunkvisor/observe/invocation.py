"""The folder of one invocation of `run`: finds its number, makes it, and keeps their count within bounds."""

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor_worker.contract.files import make_folder, open_kept, remove_folder

KEPT = 50
"""Folders that stay; older ones are removed, but for those that a person has renamed."""

_NUMBER = re.compile(r"([0-9]{1,6})(?![0-9])")
"""A longer number is a date that somebody has put in front, not one of ours."""

_OURS = re.compile(r"([0-9]{3,6})_[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{6}")


def next_number(names: Iterable[str]) -> int:
    """One more than the highest number that any name begins with, whatever follows it; 1 where there is none."""
    return 1 + max((int(match[1]) for name in names if (match := _NUMBER.match(name))), default=0)


def superfluous(names: Iterable[str], kept: int) -> list[str]:
    """The oldest of the names that are still as we gave them, without the newest `kept`."""
    ours = sorted((int(match[1]), name) for name in names if (match := _OURS.fullmatch(name)))
    return [name for _, name in ours[: max(0, len(ours) - kept)]]


def open_invocation(layout: Layout) -> InvocationFiles | None:
    """Make the folder of the next invocation, with an empty log, and let `latest` point to it; remove old ones.

    The caller holds the workdir's lock, hence no number is given twice. None where the disk does not let us: a run is
    worth more than what it leaves to read.
    """
    try:
        make_folder(layout.invocations, durable=False)
        names = [entry.name for entry in layout.invocations.iterdir()]
        name = f"{next_number(names):03d}_{time.strftime('%Y-%m-%d_%H%M%S')}"
        files = InvocationFiles(layout.invocations / name)
        files.folder.mkdir(mode=0o700)
        os.close(open_kept(files.log))
    except OSError:
        return None
    _point_to(layout.latest, files)
    for old in superfluous(names, KEPT - 1):
        remove_folder(layout.invocations / old)
    return files


def _point_to(link: Path, files: InvocationFiles) -> None:
    """Replace the link by one rename; where links cannot be made, or something else bears the name, there is none."""
    temporary, before = link.with_name(".latest.tmp"), InvocationFiles(link).log.resolve()
    with contextlib.suppress(OSError):
        for unfinished in before.parent.glob(".*.tmp") if link.is_symlink() else ():  # of a run that was killed
            unfinished.unlink()
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(files.name)
        temporary.replace(link)
        # `tail -F latest/output.log` watches the folder that the link led to (inotify follows links), and learns of
        # nothing that happens to the link. Touching the file makes it look up the name anew.
        if before != files.log:
            os.utime(before)
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
