"""Sources: what the person wrote, as a list of files with their formats."""

import glob
import json
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from chunkvisor.errors import Halt, config_error
from chunkvisor_worker.contract.files import read_bounded

Signature: TypeAlias = list[list[str | int]]


class Format(StrEnum):
    """How a file's rows are written."""

    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"
    TXT = "txt"

    @property
    def has_lines(self) -> bool:
        """Whether a row can be named by the line on which it starts."""
        return self not in (Format.PARQUET, Format.ARROW)


class Compression(StrEnum):
    """What the file is wrapped in."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


_FORMATS = {
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".feather": Format.ARROW,
    ".txt": Format.TXT,
}
_SAVED_STATE, _SAVED_SPLITS = "state.json", "dataset_dict.json"
"""By these, a folder that `datasets` has written is known (its arrow_dataset.py, dataset_dict.py)."""

_COMPRESSIONS = {".gz": Compression.GZIP, ".zst": Compression.ZSTD}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read."""

    path: Path
    format: Format
    compression: Compression


def resolve(sources: Iterable[str]) -> list[SourceFile]:
    """The files in the order of their rows: sources as given, the matches of each glob sorted by name.

    A glob gives each file once, under its shortest name, however many links lead to it. A name that exists is that
    file, whatever glob characters it holds; folders among the matches of a glob are passed over. Raises Halt (exit 78)
    for a missing file, a folder, no match, or a suffix of no known format.
    """
    return [_source_file(path) for source in sources for path in _paths(source)]


def signature(files: Sequence[SourceFile]) -> Signature:
    """[path, size_bytes, mtime_ns, ctime_ns, inode] of each file: the same as long as no source was touched.

    Raises Halt (exit 78) where a file is missing.
    """
    return [_state(file.path) for file in files]


def _state(path: Path) -> list[str | int]:
    try:
        now = path.stat()
    except OSError as error:
        raise _unreachable(path, error) from error
    return [str(path), now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]


def _paths(source: str) -> list[Path]:
    if (Path(source) / _SAVED_STATE).is_file() or (Path(source) / _SAVED_SPLITS).is_file():
        return _saved_files(Path(source))
    if Path(source).exists() or not glob.has_magic(source):
        return [Path(source)]
    found: dict[object, Path] = {}
    for match in sorted(map(Path, _matches(source)), key=lambda path: (len(path.parts), str(path))):
        if not match.is_dir():
            found.setdefault(_inode(match), match)
    if not found:
        raise config_error(f"No file matches {source}.", remedy="Correct the pattern, or check that the files exist.")
    return sorted(found.values(), key=str)


def _matches(pattern: str) -> list[str]:
    """What the pattern matches, through links as well; a folder is searched once, so that a loop of links ends."""
    deep = re.search(r"(^|/)\*\*(/|$)", pattern)
    if deep is None:
        return glob.glob(pattern)  # noqa: PTH207 - pathlib's glob wants a root apart from the pattern
    before, after = pattern[: deep.end(1)], pattern[deep.end() :] or "*"
    found: list[str] = []
    seen: set[object] = set()
    for root in glob.glob(before) if before else ["."]:  # noqa: PTH207 - as above
        for folder, names, _ in os.walk(root, followlinks=True):
            names[:] = [name for name in names if not name.startswith(".")]  # as glob does
            place = _inode(Path(folder))
            if place in seen:
                names.clear()
                continue
            seen.add(place)
            found += _matches(os.path.join(glob.escape(folder), after))  # noqa: PTH118 - of a str
    return found


def _inode(path: Path) -> object:
    """What tells one file from another; the path itself where it leads nowhere."""
    try:
        found = path.stat()
    except OSError:
        return path
    return found.st_dev, found.st_ino


def _saved_files(folder: Path) -> list[Path]:
    """The files of a folder that `save_to_disk` of HF `datasets` has written, in their order."""
    splits = read_bounded(folder / _SAVED_SPLITS)
    try:
        if splits is not None:
            names = ", ".join(f"{folder}/{name}" for name in json.loads(splits)["splits"])
            raise config_error(f"{folder} holds several datasets.", remedy=f"Name those to be encoded: {names}.")
        state = json.loads(read_bounded(folder / _SAVED_STATE) or b"")
        return [folder / Path(each["filename"]).name for each in state["_data_files"]]
    except (ValueError, KeyError, TypeError):
        raise config_error(
            f"{folder} looks like a saved dataset, but its {_SAVED_STATE} or {_SAVED_SPLITS} cannot be read.",
            remedy="Save it again, or name its .arrow files.",
        ) from None


def _source_file(path: Path) -> SourceFile:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _unreachable(path, error) from error
    if stat.S_ISDIR(mode):
        raise config_error(f"{path} is a folder, not a file.", remedy=f"Name its files, e.g. {path}/*.csv")
    if not stat.S_ISREG(mode):
        raise config_error(
            f"{path} is not a regular file.", why="A source is read more than once.", remedy="Write it to a file first."
        )
    compression = _COMPRESSIONS.get(path.suffix.lower(), Compression.NONE)
    bare = path.with_suffix("") if compression is not Compression.NONE else path
    form = _FORMATS.get(bare.suffix.lower())
    if form in (Format.PARQUET, Format.ARROW) and compression is not Compression.NONE:
        raise config_error(
            f"{path}: a {form} file in {compression} is not read.",
            why="It is compressed inside, or can be.",
            remedy="Unpack it.",
        )
    if form is None:
        raise config_error(
            f"{path}: the suffix tells no format that is read.",
            remedy=f"Rename or convert it; known are {' '.join(_FORMATS)}, "
            f"and all but .parquet, .arrow and .feather also with {' or '.join(_COMPRESSIONS)} behind.",
        )
    return SourceFile(path, form, compression)


def _unreachable(path: Path, error: OSError) -> Halt:
    if isinstance(error, FileNotFoundError):
        return config_error(f"There is no file {path}.", remedy="Correct the path; it is relative to the config file.")
    return config_error(f"{path} cannot be read: {error.strerror}.", remedy="Check the path and its permissions.")
