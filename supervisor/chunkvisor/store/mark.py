"""The hidden folder of a workdir: by it a folder is known as ours, and only we may enter it.

Nothing is written over or removed in a folder without it.
"""

import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from chunkvisor.errors import Halt, config_error, no_workdir
from chunkvisor.store.disk import not_ours, user_name
from chunkvisor.store.layout import Layout
from chunkvisor_worker.contract.files import make_folders, read_bounded, sync_folder, write_atomic

FORMAT = 1
"""Of all state in a workdir. It counts on with each change that another version would misread; there is no other
number, and only a workdir of this format is read."""
_KEY = "workdir_format"


def is_workdir(layout: Layout) -> bool:
    """Whether a run has worked here.

    Raises Halt (78) if it was one of another version, whose state we cannot read, or if others could have changed it.
    """
    if not _is_private(layout):
        return False
    try:
        made = json.loads(read_bounded(layout.mark) or b"")
    except (ValueError, RecursionError):
        return True  # lost or damaged: that its folder is there says enough
    written = made.get(_KEY, FORMAT) if isinstance(made, dict) else FORMAT
    if isinstance(written, int) and written != FORMAT:
        raise _of_another_version(layout.workdir, "a newer version" if written > FORMAT else "an earlier version")
    return True


def _is_private(layout: Layout) -> bool:
    """Whether the hidden folder is there; raises Halt (78) unless it is a folder that only its owner, we, may enter."""
    try:
        found = layout.hidden.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISREG(found.st_mode):  # the mark, before all state was in one folder
        raise _of_another_version(layout.workdir, "an earlier version")
    if not stat.S_ISDIR(found.st_mode):
        raise not_ours(layout.hidden, "choose another workdir", "it is not a folder", ours="chunkvisor")
    if found.st_uid != os.geteuid():
        raise _not_private(layout, f"it belongs to {user_name(found.st_uid)}", f"run as {user_name(found.st_uid)}")
    if found.st_mode & 0o077:
        remedy = f"if you are sure that it was not changed: chmod 700 {layout.hidden}"
        raise _not_private(layout, f"it is open to others ({stat.filemode(found.st_mode)})", remedy)
    return True


def _not_private(layout: Layout, why: str, remedy: str) -> Halt:
    return config_error(
        f"the state in {layout.hidden} cannot be trusted: {why}",
        why="what is read from it decides which files are written and which processes are ended",
        remedy=f"{remedy}; or choose another workdir",
    )


def _of_another_version(workdir: Path, which: str) -> Halt:
    return config_error(
        f"{workdir} was begun by {which} of chunkvisor, whose state this version cannot read",
        why="its finished files are whole and stay",
        remedy="choose another folder as the workdir, or install that version again",
    )


def require_workdir(path: Path) -> Layout:
    """The layout of a folder that was given as a workdir. Raises Halt (78) where no run has worked there."""
    layout = Layout(path)
    if not is_workdir(layout):
        raise no_workdir(path)
    return layout


def claim(layout: Layout, outputs: Iterable[str]) -> None:
    """Make the folder where it is missing, and mark it as ours, on the disk before anything else of ours is there.

    Raises Halt (78) where it is none of ours and something in it has a name that a run of these outputs would need;
    OSError.
    """
    _require_text(layout.workdir)
    make_folders(layout.workdir, mode=0o755)  # results in it are for others; state is private
    known = is_workdir(layout)
    if not known and (found := next(_in_the_way(layout, outputs), None)) is not None:
        why = f"a run in {layout.workdir} needs this name for itself"
        raise not_ours(found, "choose another workdir, best an empty folder", why, ours="chunkvisor")
    if not layout.mark.exists():
        mark(layout)


def _require_text(workdir: Path) -> None:
    try:
        str(workdir).encode()
    except UnicodeEncodeError:
        raise config_error(
            f"the path of the workdir {workdir} is no text in the encoding of this locale",
            why=f"DuckDB, which reads the sources, takes no other ({sys.getfilesystemencoding()} is the encoding)",
            remedy="rename the folder, choose another workdir, or set LC_ALL=C.UTF-8 (for umlauts and the like)",
        ) from None


def mark(layout: Layout) -> None:
    """Make the hidden folder and write the mark. Raises OSError."""
    layout.hidden.mkdir(mode=0o700, exist_ok=True)
    sync_folder(layout.workdir)
    about = "the state of a workdir of chunkvisor, which alone writes here"
    write_atomic(layout.mark, json.dumps({"about": about, _KEY: FORMAT}).encode() + b"\n")


def _in_the_way(layout: Layout, outputs: Iterable[str]) -> Iterator[Path]:
    """What has a name of ours in a folder that is not ours, but for what is empty: an interrupted start, say."""
    taken = {layout.report}
    for output in map(layout.output, outputs):
        taken |= {
            output.final,
            output.shards,
            output.manifest,
            output.quarantined,
            output.truncated,
            output.file("parquet"),
            output.ranges,
            output.rows_table,
        }
    yield from (path for path in sorted(taken) if os.path.lexists(path) and not _is_empty(path))


def _is_empty(path: Path) -> bool:
    if path.is_symlink():
        return False
    with suppress(OSError):
        return not any(path.iterdir()) if path.is_dir() else path.is_file() and not path.stat().st_size
    return False
