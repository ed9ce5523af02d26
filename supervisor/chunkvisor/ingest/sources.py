"""Sources: what the person wrote, as a list of files with their formats."""

import glob
import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from chunkvisor.config.suffixes import COMPRESSIONS, FORMATS
from chunkvisor.errors import Halt, config_error
from chunkvisor.ingest.remote import find, is_remote
from chunkvisor_worker.contract.files import read_bounded


class Format(StrEnum):
    """How a file's rows are written."""

    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"
    TXT = "txt"
    DATABASE = "database"
    """Rows of a query over a DuckDB or SQLite file."""

    @property
    def has_lines(self) -> bool:
        """Whether a row can be named by the line on which it starts."""
        return self not in (Format.PARQUET, Format.ARROW, Format.DATABASE)


class Compression(StrEnum):
    """What the file is wrapped in."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


_FORMATS = {suffix: Format(name) for suffix, name in FORMATS.items()}
_SAVED_STATE, _SAVED_SPLITS = "state.json", "dataset_dict.json"
"""By these, a folder that `datasets` has written is known (its arrow_dataset.py, dataset_dict.py)."""

_COMPRESSIONS = {suffix: Compression(name) for suffix, name in COMPRESSIONS.items()}
_DATABASES = frozenset({".duckdb", ".ddb", ".db", ".db3", ".sqlite", ".sqlite3"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read."""

    path: Path
    format: Format
    compression: Compression
    query: str | None = None
    """Of a database."""
    address: str | None = None
    """Of a file elsewhere, which is fetched before it is read; `path` is then its name alone."""


def resolve(sources: Iterable[str], query: str | None = None) -> list[SourceFile]:
    """The files in the order of their rows: sources as given, the matches of each glob sorted by name.

    With a query they are databases. An address, such as s3://bucket/key, is a file elsewhere, or a glob.

    A glob gives each file once, under its shortest name, however many links lead to it. A name that exists is that
    file, whatever glob characters it holds; folders among the matches of a glob are passed over. Raises Halt (exit 78)
    for a missing file, a folder, no match, or a suffix of no known format.
    """
    if query is not None:
        return [_database(Path(source), query) for source in sources]
    found = list[SourceFile]()
    for source in sources:
        if is_remote(source):
            found += [_of_format(Path(address.split("?")[0]), address) for address in find(source)]
        else:
            found += map(_source_file, _paths(source))
    return found


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


def _database(path: Path, query: str) -> SourceFile:
    _check_regular(path, f"Name the database file in it, e.g. {path}/data.duckdb")
    return SourceFile(path, Format.DATABASE, Compression.NONE, query)


def _check_regular(path: Path, instead_of_folder: str) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise unreachable(path, error) from error
    if stat.S_ISDIR(mode):
        raise config_error(f"{path} is a folder, not a file.", remedy=instead_of_folder)
    if not stat.S_ISREG(mode):
        raise config_error(
            f"{path} is not a regular file.", why="A source is read more than once.", remedy="Write it to a file first."
        )


def _source_file(path: Path) -> SourceFile:
    _check_regular(path, f"Name its files, e.g. {path}/*.csv")
    return _of_format(path)


def _of_format(path: Path, address: str | None = None) -> SourceFile:
    """By its suffixes. Raises Halt (exit 78) for those of no known format."""
    name = address or path
    compression = _COMPRESSIONS.get(path.suffix.lower(), Compression.NONE)
    bare = path.with_suffix("") if compression is not Compression.NONE else path
    form = _FORMATS.get(bare.suffix.lower())
    if form in (Format.PARQUET, Format.ARROW) and compression is not Compression.NONE:
        raise config_error(
            f"{name}: a {form} file in {compression} is not read.",
            why="It is compressed inside, or can be.",
            remedy="Unpack it.",
        )
    if form is None and bare.suffix.lower() in _DATABASES:
        raise config_error(
            f"{name} looks like a database, of which a query says what the rows are.",
            remedy=f'Write source: {{database: {path.name}, query: "SELECT … ORDER BY …"}}; '
            "with `chunkvisor encode`, add --query.",
        )
    if form is None:
        raise config_error(
            f"{name}: the suffix tells no format that is read.",
            remedy=f"Rename or convert it; known are {' '.join(_FORMATS)}, "
            f"and all but .parquet, .arrow and .feather also with {' or '.join(_COMPRESSIONS)} behind.",
        )
    return SourceFile(path, form, compression, address=address)


def unreachable(path: Path, error: OSError) -> Halt:
    """The Halt for a source that cannot be looked at."""
    if isinstance(error, FileNotFoundError):
        remedy = "Correct the path; in a config, a relative one starts at the config's folder."
        return config_error(f"There is no file {path}.", remedy=remedy)
    return config_error(f"{path} cannot be read: {error.strerror}.", remedy="Check the path and its permissions.")
