"""Sources: what the person wrote, as a list of files with their formats; and whether one was touched since."""

import glob
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from chunkvisor.config.suffixes import AS_PARQUET, COMPRESSIONS, FORMATS
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.sources.fetch import find, is_remote, state_of


class Format(StrEnum):
    """How a file's rows are written."""

    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    TXT = "txt"

    @property
    def has_lines(self) -> bool:
        """Whether a row can be named by the line on which it starts."""
        return self is not Format.PARQUET


class Compression(StrEnum):
    """What the file is wrapped in."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


_FORMATS = {suffix: Format(name) for suffix, name in FORMATS.items()}
_COMPRESSIONS = {suffix: Compression(name) for suffix, name in COMPRESSIONS.items()}
_NOT_READ = frozenset({".duckdb", ".ddb", ".db", ".db3", ".sqlite", ".sqlite3", ".arrow", ".feather"})
"""Databases and Arrow files, of which parquet can be made."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read."""

    path: Path
    format: Format
    compression: Compression
    address: str | None = None
    """Of a file elsewhere, which is fetched before it is read; `path` is then its name alone."""


def resolve(sources: Iterable[str]) -> list[SourceFile]:
    """The files in the order of their rows: sources as given, the matches of each glob sorted by name.

    An address, such as s3://bucket/key, is a file elsewhere, or a glob.

    A glob gives each file once, under its shortest name, however many links lead to it. A name that exists is that
    file, whatever glob characters it holds; folders among the matches of a glob are passed over. Raises Halt (exit 78)
    for a missing file, a folder, no match, or a suffix of no known format.
    """
    found = list[SourceFile]()
    for source in sources:
        if is_remote(source):
            found += [_of_format(Path(address.split("?")[0]), address) for address in find(source)]
        else:
            found += map(_source_file, _paths(source))
    return found


def _paths(source: str) -> list[Path]:
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


def _source_file(path: Path) -> SourceFile:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise unreachable(path, error) from error
    if stat.S_ISDIR(mode):
        saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
        raise config_error(
            f"{path} is a folder, not a file.",
            remedy=f"Name its files, e.g. {path}/*.csv"
            if not saved
            else "`datasets` has saved it. Write a parquet file of it: "
            f"datasets.load_from_disk({str(path)!r}).to_parquet('rows.parquet')",
        )
    if not stat.S_ISREG(mode):
        raise config_error(
            f"{path} is not a regular file.", why="A source is read more than once.", remedy="Write it to a file first."
        )
    return _of_format(path)


def _of_format(path: Path, address: str | None = None) -> SourceFile:
    """By its suffixes. Raises Halt (exit 78) for those of no known format."""
    name = address or path
    compression = _COMPRESSIONS.get(path.suffix.lower(), Compression.NONE)
    bare = path.with_suffix("") if compression is not Compression.NONE else path
    form = _FORMATS.get(bare.suffix.lower())
    if form is Format.PARQUET and compression is not Compression.NONE:
        raise config_error(
            f"{name}: a {form} file in {compression} is not read.",
            why="It is compressed inside, or can be.",
            remedy="Unpack it.",
        )
    if form is None and bare.suffix.lower() in _NOT_READ:
        raise config_error(
            f"{name}: {'Arrow files' if bare.suffix.lower() in ('.arrow', '.feather') else 'databases'} are not read.",
            remedy=AS_PARQUET,
        )
    if form is None:
        raise config_error(
            f"{name}: the suffix tells no format that is read.",
            remedy=f"Rename or convert it; known are {' '.join(_FORMATS)}, "
            f"and all but .parquet also with {' or '.join(_COMPRESSIONS)} behind.",
        )
    return SourceFile(path, form, compression, address=address)


def unreachable(path: Path, error: OSError) -> Halt:
    """The Halt for a source that cannot be looked at."""
    if isinstance(error, FileNotFoundError):
        remedy = "Correct the path; in a config, a relative one starts at the config's folder."
        return config_error(f"There is no file {path}.", remedy=remedy)
    return config_error(f"{path} cannot be read: {error.strerror}.", remedy="Check the path and its permissions.")


Signature: TypeAlias = list[list[str | int]]


def signature(files: Sequence[SourceFile]) -> Signature:
    """[path, size_bytes, mtime_ns, ctime_ns, inode] of each file: the same as long as no source was touched.

    Raises Halt (exit 78) where a file is missing.
    """
    return [_state(file) for file in files]


def _state(file: SourceFile) -> list[str | int]:
    if file.address is not None:
        return state_of(file.address)
    try:
        now = file.path.stat()
    except OSError as error:
        raise unreachable(file.path, error) from error
    return [str(file.path), now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]


def check_unchanged(files: Sequence[SourceFile], before: Signature) -> None:
    """Raise Halt (exit 75) where a file is not as it was."""
    now = signature(files)
    if now != before:
        path = next((each[0] for each in (*now, *before) if each not in before or each not in now), files[0].path)
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"{path} was changed while it was being read.",
            remedy="Run again when nothing writes to it.",
        )
