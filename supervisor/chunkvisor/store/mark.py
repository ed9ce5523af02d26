"""The mark of a workdir: by it a folder is known as ours, and in no other one anything is written over or removed."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from chunkvisor.config.reserved import RESERVED_NAMES
from chunkvisor.errors import Halt, config_error, no_workdir
from chunkvisor.events.journal import read_events
from chunkvisor.store.layout import Layout
from chunkvisor.store.lock import read_note
from chunkvisor.store.refusal import not_ours
from chunkvisor.store.seal import DamagedError, read_sealed
from chunkvisor_worker.contract.files import make_folders, open_kept, read_bounded, set_aside, sync_folder

FORMAT = 1
"""Of all state in a workdir. It counts on with each change that another version would misread; there is no other
number, and only a workdir of this format is read."""
_KEY = "workdir_format"


def is_workdir(layout: Layout) -> bool:
    """Whether a run has worked here. Raises Halt (78) if it was one of another version, whose state we cannot read."""
    if not _is_marked(layout):
        if _begun_without_mark(layout):
            raise _of_another_version(layout.workdir, "an earlier version")
        return False
    try:
        made = json.loads(read_bounded(layout.mark) or b"")
    except (ValueError, RecursionError):
        return True  # half-written before a power cut: that it is there says enough
    written = made.get(_KEY, 0) if isinstance(made, dict) else FORMAT
    if isinstance(written, int) and written != FORMAT:
        raise _of_another_version(layout.workdir, "a newer version" if written > FORMAT else "an earlier version")
    return True


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
    if not _is_marked(layout):
        mark(layout)
    set_links_of_others_aside(layout)


def _require_text(workdir: Path) -> None:
    try:
        str(workdir).encode()
    except UnicodeEncodeError:
        raise config_error(
            f"the path of the workdir {workdir} is no text in the encoding of this locale",
            why=f"DuckDB, which reads the sources, takes no other ({sys.getfilesystemencoding()} is the encoding)",
            remedy="rename the folder, choose another workdir, or set LC_ALL=C.UTF-8 (for umlauts and the like)",
        ) from None


def set_links_of_others_aside(layout: Layout) -> None:
    """Where others may write into the workdir, a link of theirs in the place of a folder would lead us out of it.

    A person's own link, to a larger disk say, stays. Files are not written through any link. Raises OSError.
    """
    for entry in _entries(layout.workdir):
        if entry.name in RESERVED_NAMES or entry.name.startswith("."):
            _set_aside_if_others(entry)
    for output in _entries(layout.outputs):
        _set_aside_if_others(output)
        for entry in _entries(Path(output.path)):
            _set_aside_if_others(entry)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _set_aside_if_others(entry: os.DirEntry[str]) -> None:
    if entry.is_symlink() and entry.stat(follow_symlinks=False).st_uid not in (0, os.geteuid()):
        set_aside(Path(entry.path), files_too=True)


def mark(layout: Layout) -> None:
    """Write the mark. Raises OSError."""
    set_aside(layout.mark)
    fd = open_kept(layout.mark, os.O_WRONLY)
    try:
        text = {"about": "this folder is a workdir of chunkvisor, which owns the names in it", _KEY: FORMAT}
        os.pwrite(fd, json.dumps(text).encode() + b"\n", 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(layout.workdir)


def _is_marked(layout: Layout) -> bool:
    return layout.mark.is_file() and not layout.mark.is_symlink()


def _begun_without_mark(layout: Layout) -> bool:
    """Whether there is a note of a run in the lock, a journal, or a sealed identity, as all versions have written."""
    if read_note(layout.lock) is not None or next(read_events(layout.events), None) is not None:
        return True
    with suppress(OSError):
        for folder in layout.outputs.iterdir():
            with suppress(DamagedError, OSError):
                if read_sealed(layout.output(folder.name).identity) is not None:
                    return True
    return False


def _in_the_way(layout: Layout, outputs: Iterable[str]) -> Iterator[Path]:
    """What has a name of ours in a folder that is not ours, but for what is empty: an interrupted start, say."""
    taken = {layout.workdir / name for name in RESERVED_NAMES}
    for output in map(layout.output, outputs):
        taken |= {
            output.final,
            output.shards,
            output.manifest,
            output.quarantined,
            output.truncated,
            output.partial("npy"),
            output.partial("parquet"),
            output.file("parquet"),
            output.ranges,
            output.rows_table,
            output.partial_shards,
            output.before,
            output.next.state,
        }
    yield from (path for path in sorted(taken) if os.path.lexists(path) and not _is_empty(path))


def _is_empty(path: Path) -> bool:
    if path.is_symlink():
        return False
    with suppress(OSError):
        return not any(path.iterdir()) if path.is_dir() else path.is_file() and not path.stat().st_size
    return False
