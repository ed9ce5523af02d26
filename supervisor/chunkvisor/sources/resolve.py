"""Finds the source files of a request, fetches remote ones, and notices changes."""

import glob
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.store.records import state_of
from chunkvisor_worker.contract.exits import DISK_ERRNOS
from chunkvisor_worker.contract.frozen import frozen

# string.Formatter would split a column's name at ".", "[", "!" and ":".
_TOKEN = re.compile(r"\{\{|\}\}|\{(?P<column>[^{}]+)\}|[{}]")

_PARQUET_ADVICE = (
    "Write a parquet file of it, by one line of Python, and name that file: "
    "duckdb.connect(FILE).execute(\"COPY (SELECT … ORDER BY …) TO 'rows.parquet'\") for a "
    "database, "
    "datasets.Dataset.from_file(FILE).to_parquet('rows.parquet') for an Arrow file."
)
"""What to do with a source of a kind that is not read."""


@frozen
class IngestRequest:
    """What to stage: exactly one of column, template and sql makes the text of a row."""

    sources: tuple[str, ...]  # absolute paths, patterns or addresses, in the order of their rows
    column: str | None = None
    template: str | None = None
    sql: str | None = None
    skip_blank: bool = False
    where: str | None = None  # SQL condition; rows for which it is not true are left out
    columns: tuple[str, ...] = ()  # carried along to the final file
    max_rows: int | None = None  # rows that are read, from the start of all sources; None means all
    memory_limit_bytes: int = 1 << 30  # of the child, about

    @property
    def parts(self) -> list[tuple[str, str | None]]:
        """The text in pairs of literal text and the column that follows.

        The last pair has no column. Raises Halt.
        """
        if self.template is None:
            return [("", self.column), ("", None)]
        parts: list[tuple[str, str | None]] = []
        literal, end = "", 0
        for token in _TOKEN.finditer(self.template):
            literal += self.template[end : token.start()]
            end = token.end()
            if token["column"]:
                parts.append((literal, token["column"]))
                literal = ""
            elif len(token[0]) == 2:
                literal += token[0][0]
            else:
                raise config_error(
                    f"The template has a stray {token[0]} at character {token.start() + 1}: "
                    f"{self.template!r}.",
                    "Write {column} for a column, and {{ or }} for a literal brace.",
                )
        if not parts:
            raise config_error(
                f"The template names no column, so every row would have the same text: "
                f"{self.template!r}.",
                "Write {column} where a column's value belongs.",
            )
        return [*parts, (literal + self.template[end:], None)]


SourceFormat = StrEnum("SourceFormat", ["CSV", "TSV", "JSONL", "PARQUET", "TXT"])
FORMATS = {f".{each}": each for each in SourceFormat} | {".ndjson": SourceFormat.JSONL}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


@frozen
class SourceFile:
    """One file to read."""

    place: str  # path or address, for messages and records
    path: Path  # where it can be read, once it is fetched
    format: SourceFormat
    compression: str  # gzip, zstd or nothing
    is_elsewhere: bool

    def error(self, what: str, line: int | None = None, remedy: str = "") -> Halt:
        """Return a Halt (78) for a fault in it.

        Lines are counted from 1, rows of parquet from 0.
        """
        unit = "row" if self.format is SourceFormat.PARQUET else "line"
        return config_error(
            f"{self.place}{'' if line is None else f', {unit} {line}'}: {what}", remedy
        )

    def conversion_advice(self, command: str) -> str:
        """Return what a person types to get a plain copy, and what the config then says."""
        path = Path(self.place if not self.is_elsewhere else Path(self.place).name)
        bare = path.with_suffix("") if self.compression else path
        copy = str(bare.with_suffix(f".converted{bare.suffix}"))
        read = {"": "cat", "gzip": "gzip -dc", "zstd": "zstd -dc"}[self.compression]
        line = f"{read} {shlex.quote(str(path))} | {command} > {shlex.quote(copy)}"
        return f"Run `{line}`, and set {yaml_line('source', copy)}"


def yaml_line(key: str, value: str) -> str:
    """Return the key and its value as a config has them."""
    import yaml  # late: only messages need it

    return yaml.safe_dump({key: value}, allow_unicode=True, width=float("inf")).strip()


def resolve(sources: Iterable[str]) -> list[SourceFile]:
    """Return the files in the order of their rows.

    Sources as given, the matches of each pattern sorted by name.

    A name that exists is that file, even if it looks like a pattern. Raises Halt: 78 for what is
    not a readable file of a known format, 75 if an address cannot be reached.
    """
    found = list[SourceFile]()
    for source in sources:
        names = [source]
        if is_remote(source):
            names = _expand(source)
        elif glob.has_magic(source) and not Path(source).exists():
            matching = glob.glob(source, recursive=True)  # noqa: PTH207 - Path.glob gives hidden files as well
            names = sorted(name for name in matching if not Path(name).is_dir())
        if not names:
            raise config_error(
                f"No file matches {source}.", "Correct the pattern, or check that the files exist."
            )
        found += map(_source_file, names)
    return found


def _source_file(place: str) -> SourceFile:
    """Find the format by the suffixes.

    Raises Halt (78) for an unknown one, and for what is not a file.
    """
    elsewhere = is_remote(place)
    path = Path(place.split("?")[0]) if elsewhere else Path(place)
    if not elsewhere and not stat.S_ISREG(_stat(path)[0]):
        raise config_error(
            f"{path} is not a regular file.", f"Name the files in the folder, such as {path}/*.csv"
        )
    compression = COMPRESSIONS.get(path.suffix.lower(), "")
    suffix = (path.with_suffix("") if compression else path).suffix.lower()
    form = FORMATS.get(suffix)
    if form is None or (form is SourceFormat.PARQUET and compression):
        known = (
            f"Known are {' '.join(FORMATS)}, and all but .parquet with {' or '.join(COMPRESSIONS)} "
            f"at the end."
        )
        raise config_error(
            f"{place}: files of this kind are not read.",
            f"Rename or convert it. {_PARQUET_ADVICE}",
            why=known,
        )
    return SourceFile(place, path, form, compression, elsewhere)


def _stat(path: Path) -> list[int]:
    """Return mode, size_bytes, mtime_ns, ctime_ns, inode of a file.

    Raises Halt (78) if there is none.
    """
    try:
        return [path.stat().st_mode, *state_of(path)]
    except OSError as error:
        raise config_error(
            f"There is no file {path}: {error.strerror}.",
            "Correct the path, which in a config starts at the config's folder, or the file's "
            "permissions.",
        ) from error


def signature(files: Iterable[SourceFile]) -> dict[str, Any]:
    """Return the state of each file by its place: equal as long as no source was touched.

    Raises Halt as `resolve`.
    """
    return {
        file.place: remote_state(file.place) if file.is_elsewhere else _stat(file.path)[1:]
        for file in files
    }


# Files elsewhere: whatever fsspec reads, such as s3:// and hf://.

_BLOCK_BYTES = 16 << 20
# What changes with the content, by the names that fsspec's file systems have for it; the first one
# counts.
_TAGS = (
    "ETag",
    "etag",
    "blob_id",
    "md5Hash",
    "content_md5",
    "checksum",
    "sha256",
    "mtime",
    "LastModified",
    "created",
)

Answer = TypeVar("Answer")


def is_remote(source: str) -> bool:
    """Return whether it is an address, such as s3://bucket/key."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source) is not None


def _expand(source: str) -> list[str]:
    if not re.search(r"[*\[]", source):  # a question mark begins the query of an http address
        return [source]
    files = _file_system(source)
    found = _ask_server(source, lambda: files.glob(files._strip_protocol(source), detail=True))
    names = sorted(name for name, info in found.items() if info.get("type") != "directory")
    return [str(files.unstrip_protocol(name)) for name in names]


def remote_state(address: str) -> list[str | int]:
    """Return [size_bytes, tag], the same as long as the content is. Raises Halt as `resolve`."""
    files = _file_system(address)
    info = _ask_server(address, lambda: files.info(files._strip_protocol(address)))
    if info.get("type") == "directory":
        raise config_error(
            f"{address} is a folder, not a file.", f"Name its files, e.g. {address}/*.csv"
        )
    return [
        int(info.get("size") or 0),
        next((str(info[key]) for key in _TAGS if info.get(key)), ""),
    ]


def download(address: str, target: Path) -> None:
    """Write the content to a file.

    Raises Halt as `resolve`, and 75 if another number of bytes came than the size says; OSError for
    the disk.
    """
    files, (size_bytes, _) = _file_system(address), remote_state(address)

    def copy() -> int:
        name = files._strip_protocol(address)
        with files.open(name, "rb", block_size=_BLOCK_BYTES) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, _BLOCK_BYTES)
            return file.tell()

    came = _ask_server(address, copy)
    if size_bytes not in (0, came):
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"{address} has {size_bytes:,} bytes, of which {came:,} came.",
            "Run again when nothing writes to it.",
        )


def _file_system(address: str) -> Any:
    try:
        import fsspec  # late: an optional dependency

        return fsspec.filesystem(
            address.split(":")[0], skip_instance_cache=True, use_listings_cache=False
        )
    except (ImportError, ValueError) as error:
        raise config_error(
            f"{address}: what reads it is not installed",
            "In the checkout of chunkvisor, run `pip install '.[remote]'`. Or copy the files to "
            "this machine.",
            why=str(error),
        ) from error


def _ask_server(address: str, action: Callable[[], Answer]) -> Answer:
    """Return what the action gives; the libraries try again.

    Raises Halt (75, 78), OSError of a disk.
    """
    try:
        return action()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
            raise
        cause = error.__cause__ or error
        # An address that the server sent us on to may be signed, and messages are kept.
        why = re.sub(
            r"(https?://[^\s?'\"]*)\?[^\s'\"]*", r"\1?…", f"{type(cause).__name__}: {cause}"
        )
        why = why.split("\n", 1)[0][:500]
        stays = FileNotFoundError | PermissionError | ImportError | ValueError | NotImplementedError
        # botocore has errors for credentials that are missing, and is not imported here.
        if isinstance(error, stays) or re.search(
            "Credential|ProfileNotFound", type(error).__name__
        ):
            raise config_error(
                f"{address} cannot be read.",
                "Correct the address, or set AWS_PROFILE, HF_TOKEN or the like in chunkvisor's "
                "environment.",
                why=why,
            ) from error
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"{address} cannot be reached.",
            "Run again; finished work is kept.",
            why=why,
        ) from error
