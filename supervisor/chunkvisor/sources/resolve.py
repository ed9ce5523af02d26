"""Says which texts are wanted, finds the source files, fetches those elsewhere, and notices a file that has changed."""

import glob
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from chunkvisor.config.choices import AS_PARQUET, COMPRESSIONS, FORMATS
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.store.disk import DISK_ERRNOS

# string.Formatter would split a column's name at ".", "[", "!" and ":".
_TOKEN = re.compile(r"\{\{|\}\}|\{(?P<column>[^{}]+)\}|[{}]")


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """What to stage: exactly one of column, template and sql makes the text of a row."""

    sources: tuple[str, ...]
    """Absolute paths, patterns or addresses, in the order of their rows."""
    column: str | None = None
    template: str | None = None
    sql: str | None = None
    skip_blank: bool = False
    where: str | None = None
    """SQL condition; rows for which it is not true are left out."""
    columns: tuple[str, ...] = ()
    """Carried along to the final file."""
    max_rows: int | None = None
    """Rows that are read, from the start of all sources; None means all."""
    memory_limit_bytes: int = 1 << 30
    """Of the child, about."""

    @property
    def has_rows_table(self) -> bool:
        """Return whether something is to be known of each row besides its text."""
        return self.where is not None or bool(self.columns)

    def __post_init__(self) -> None:
        if self.template is not None:
            parse_template(self.template)


def parse_template(template: str) -> list[tuple[str, str | None]]:
    """Split it into pairs of literal text and the column that follows; the last pair has no column. Raises Halt."""
    parts: list[tuple[str, str | None]] = []
    literal, end = "", 0
    for token in _TOKEN.finditer(template):
        literal += template[end : token.start()]
        end = token.end()
        if token["column"]:
            parts.append((literal, token["column"]))
            literal = ""
        elif len(token[0]) == 2:
            literal += token[0][0]
        else:
            raise config_error(
                f"The template has a stray {token[0]} at character {token.start() + 1}: {template!r}.",
                remedy="Write {column} for a column, and {{ or }} for a literal brace.",
            )
    if not parts:
        raise config_error(
            f"The template names no column, so every row would have the same text: {template!r}.",
            remedy="Write {column} where a column's value belongs.",
        )
    return [*parts, (literal + template[end:], None)]


class Format(StrEnum):
    """How a file's rows are written."""

    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    TXT = "txt"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read."""

    path: Path
    format: Format
    compression: str = ""
    """gzip, zstd or nothing."""
    address: str | None = None
    """Of a file elsewhere, which is fetched before it is read."""


def resolve(sources: Iterable[str]) -> list[SourceFile]:
    """Return the files in the order of their rows: sources as given, the matches of each pattern sorted by name.

    A name that exists is that file, whatever it looks like. Raises Halt: 78 for what is not a readable file of a known
    format, 75 if an address cannot be reached.
    """
    found = list[SourceFile]()
    for source in sources:
        files = list(map(_remote, _addresses(source)) if is_remote(source) else map(_local, _paths(source)))
        if not files:
            remedy = "Correct the pattern, or check that the files exist."
            raise config_error(f"No file matches {source}.", remedy=remedy)
        found += files
    return found


def _paths(source: str) -> list[Path]:
    pattern = Path(source)
    if pattern.exists() or not glob.has_magic(source):
        return [pattern]
    fixed = next(number for number, part in enumerate(pattern.parts) if glob.has_magic(part))
    # Path.glob takes `**` for a whole part alone.
    below = [part if part == "**" else re.sub(r"\*+", "*", part) for part in pattern.parts[fixed:]]
    root = Path(*pattern.parts[:fixed])
    wants_hidden = any(part.startswith(".") for part in below)
    found: dict[str, Path] = {}
    # Path.glob does not follow linked folders below `**`, so a loop of links cannot trap it.
    for match in sorted(root.glob("/".join(below)), key=lambda path: (len(path.parts), str(path))):
        hidden = any(part.startswith(".") for part in match.relative_to(root).parts)
        if not match.is_dir() and (wants_hidden or not hidden):
            found.setdefault(os.path.realpath(match), match)
    return sorted(found.values(), key=str)


def _local(path: Path) -> SourceFile:
    mode = _stat(path).st_mode
    if not stat.S_ISREG(mode):
        what = "a folder, not a file" if stat.S_ISDIR(mode) else "not a regular file"
        remedy = f"Name its files, e.g. {path}/*.csv" if stat.S_ISDIR(mode) else "Write it to a file first."
        raise config_error(f"{path} is {what}.", remedy=remedy)
    return _of_format(path)


def _remote(address: str) -> SourceFile:
    return _of_format(Path(address.split("?")[0]), address)


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError as error:
        remedy = "Correct the path; in a config, a relative one starts at the config's folder."
        raise config_error(f"There is no file {path}.", remedy=remedy) from error
    except OSError as error:
        raise config_error(f"{path} cannot be read: {error.strerror}.", remedy="Check its permissions.") from error


def _of_format(path: Path, address: str | None = None) -> SourceFile:
    """Tell the format by the suffixes. Raises Halt (78) for an unknown one."""
    compression = COMPRESSIONS.get(path.suffix.lower(), "")
    suffix = (path.with_suffix("") if compression else path).suffix.lower()
    form = FORMATS.get(suffix)
    if form is None or (form == Format.PARQUET and compression):
        known = f"Known are {' '.join(FORMATS)}, and all but .parquet with {' or '.join(COMPRESSIONS)} behind."
        has_rows = suffix in (".duckdb", ".db", ".sqlite", ".sqlite3", ".arrow", ".feather")
        what = f"{address or path}: files of this kind are not read."
        raise config_error(what, why=known, remedy=AS_PARQUET if has_rows else "Rename or convert it.")
    return SourceFile(path, Format(form), compression, address)


Signature: TypeAlias = list[list[str | int]]


def signature(files: Sequence[SourceFile]) -> Signature:
    """Return [path, size_bytes, mtime_ns, ctime_ns, inode] of each file, or what stands for it elsewhere.

    Two signatures are equal as long as no source was touched. Raises Halt for a missing file.
    """
    found = Signature()
    for file in files:
        if file.address is not None:
            found.append(state_of(file.address))
        else:
            now = _stat(file.path)
            found.append([str(file.path), now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino])
    return found


# Files elsewhere: whatever fsspec reads, such as s3:// and hf://.

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Between two tries; the libraries try a few times themselves before."""
_BLOCK_BYTES = 16 << 20
_TAGS = ("ETag", "etag", "blob_id", "md5Hash", "content_md5", "checksum", "sha256", "mtime", "LastModified", "created")
"""What tells one content from another, by the names that fsspec's file systems have for it; the first one counts."""

Answer = TypeVar("Answer")


def is_remote(source: str) -> bool:
    """Return whether it is an address, such as s3://bucket/key."""
    return _SCHEME.match(source) is not None


def shown(path: Path) -> str:
    """Return the path, or the address that it was made of: of `s3://bucket`, a Path keeps one slash."""
    return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]*):/(?=[^/])", r"\1://", str(path))


def _addresses(source: str) -> list[str]:
    if not re.search(r"[*\[]", source):  # a question mark begins the query of an http address
        return [source]
    files = _file_system(source)
    found = _persistently(source, lambda: files.glob(files._strip_protocol(source), detail=True))
    names = sorted(name for name, info in found.items() if info.get("type") != "directory")
    return [str(files.unstrip_protocol(name)) for name in names]


def state_of(address: str) -> list[str | int]:
    """Return [address, size_bytes, tag, 0, 0], the same as long as the content is. Raises Halt as `resolve`."""
    files = _file_system(address)
    info = _persistently(address, lambda: files.info(files._strip_protocol(address)))
    if info.get("type") == "directory":
        raise config_error(f"{address} is a folder, not a file.", remedy=f"Name its files, e.g. {address}/*.csv")
    tag = next((str(info[key]) for key in _TAGS if info.get(key)), "")
    return [address, int(info.get("size") or 0), tag, 0, 0]


def fetch(address: str, target: Path) -> None:
    """Write the content to a new file; after a fault, continue at the byte that is missing.

    Raises Halt as `resolve`, and 75 if another number of bytes came than the size says; OSError for the disk.
    """
    files, size_bytes = _file_system(address), state_of(address)[1]
    with open(target, "xb") as file:

        def read_on() -> None:
            with files.open(files._strip_protocol(address), "rb", block_size=_BLOCK_BYTES) as source:
                source.seek(file.tell())
                shutil.copyfileobj(source, file, _BLOCK_BYTES)

        _persistently(address, read_on, file.tell)
        if size_bytes not in (0, file.tell()):
            what = f"{address} has {size_bytes:,} bytes, of which {file.tell():,} came."
            raise Halt(ExitCode.TRY_AGAIN, what, remedy="Run again when nothing writes to it.")


def _file_system(address: str) -> Any:
    try:
        import fsspec  # late: an optional dependency

        return fsspec.filesystem(address.split(":")[0], skip_instance_cache=True, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        remedy = "pip install 'chunkvisor[remote]' (and what the error names), or copy the files here"
        raise config_error(f"{address}: what reads it is not installed", why=str(error), remedy=remedy) from error


def _persistently(address: str, action: Callable[[], Answer], progress: Callable[[], int] = lambda: 0) -> Answer:
    """Return what the action gives, tried again after faults that may pass; progress sets the count of tries back."""
    failed, before = 0, progress()
    while True:
        try:
            return action()
        except Exception as error:
            if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
                raise
            cause = error.__cause__ or error
            # An address that the server sent us on to may be signed, and messages are kept.
            why = re.sub(r"(https?://[^\s?'\"]*)\?[^\s'\"]*", r"\1?…", f"{type(cause).__name__}: {cause}")
            why = why.split("\n", 1)[0][:500]
            if isinstance(error, FileNotFoundError):
                raise config_error(f"There is no {address}.", why=why, remedy="Correct the address.") from error
            # botocore has errors for credentials that are missing, and is not imported here.
            if isinstance(error, PermissionError) or re.search("Credential|ProfileNotFound", type(error).__name__):
                remedy = "Say who you are in chunkvisor's environment: AWS_PROFILE, AWS_ACCESS_KEY_ID, HF_TOKEN, …"
                raise config_error(f"{address} may not be used.", why=why, remedy=remedy) from error
            if isinstance(error, IsADirectoryError | ImportError | ValueError | NotImplementedError):
                raise config_error(f"{address} cannot be used.", why=why, remedy="Correct the address.") from error
            failed, before = failed + 1 if progress() == before else 1, progress()
            if failed > len(_PAUSES_S):
                what, remedy = f"{address} cannot be reached, in {failed} tries.", "Run again; what is done is kept."
                raise Halt(ExitCode.TRY_AGAIN, what, why=why, remedy=remedy) from error
            time.sleep(_PAUSES_S[failed - 1])
