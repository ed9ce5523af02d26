"""What is to be read (`IngestRequest`), which files that are, and whether one has changed."""

import glob
import re
import shlex
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

from chunkvisor.errors import Halt, config_error
from chunkvisor.sources.remote import expand_address, is_remote, remote_state
from chunkvisor.store.records import state_of
from chunkvisor_worker.contract.frozen import frozen

# string.Formatter would split a column's name at ".", "[", "!" and ":".
_TOKEN = re.compile(r"\{\{|\}\}|\{(?P<column>[^{}]+)\}|[{}]")

_AS_PARQUET = (
    "Write a parquet file of it, by one line of Python, and name that file: "
    "duckdb.connect(FILE).execute(\"COPY (SELECT … ORDER BY …) TO 'rows.parquet'\") for a "
    "database, "
    "datasets.Dataset.from_file(FILE).to_parquet('rows.parquet') for an Arrow file."
)
"""The remedy for a source of a kind that is not read."""


@frozen
class IngestRequest:
    """What is to be read: exactly one of column, template and sql makes the text of a row."""

    sources: tuple[str, ...]  # absolute paths, patterns or addresses, in the order of their rows
    column: str | None = None
    template: str | None = None
    sql: str | None = None
    skip_blank: bool = False
    where: str | None = None  # SQL condition; rows for which it is not true are left out
    columns: tuple[str, ...] = ()  # carried along to the final file
    max_rows: int | None = None  # of all sources together, from the first on; None means all
    part: tuple[int, int] | None = None  # (3, 8): the third of eight parts of the rows
    memory_limit_bytes: int = 1 << 30  # for the whole child, about

    @property
    def has_rows_file(self) -> bool:
        """Whether the table gets `rows.parquet`: columns are carried along, or rows left out."""
        return self.where is not None or bool(self.columns)

    @property
    def parts(self) -> list[tuple[str, str | None]]:
        """The template in pairs of literal text and the column after it; the last has no column.

        `"Summary: {title}."` is `[("Summary: ", "title"), (".", None)]`. Raises Halt (78) for a
        template with a stray brace or no column.
        """
        if self.template is None:
            return [("", self.column), ("", None)]
        parts: list[tuple[str, str | None]] = []
        literal = ""
        end = 0
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
    path: Path  # where it can be read; of an address only after it has been fetched
    format: SourceFormat
    compression: str  # gzip, zstd or nothing

    @property
    def is_elsewhere(self) -> bool:
        """Whether it has to be fetched first."""
        return is_remote(self.place)

    def error(self, what: str, line: int | None = None, remedy: str = "") -> Halt:
        """Return a Halt (78) for a fault in the file.

        `line` is counted from 1; of parquet it is a row, counted from 0.
        """
        unit = "row" if self.format is SourceFormat.PARQUET else "line"
        where = "" if line is None else f", {unit} {line}"
        return config_error(f"{self.place}{where}: {what}", remedy)

    def conversion_advice(self, command: str) -> str:
        """Say how to make an uncompressed copy through `command`, and to name it in the config.

        Such as: Run `gzip -dc a.csv.gz | iconv … > a.converted.csv`, and set source: …
        """
        path = Path(Path(self.place).name if self.is_elsewhere else self.place)
        bare = path.with_suffix("") if self.compression else path
        copy = str(bare.with_suffix(f".converted{bare.suffix}"))
        read = {"": "cat", "gzip": "gzip -dc", "zstd": "zstd -dc"}[self.compression]
        line = f"{read} {shlex.quote(str(path))} | {command} > {shlex.quote(copy)}"
        return f"Run `{line}`, and set {yaml_line('source', copy)}"


def yaml_line(key: str, value: str) -> str:
    """Return a line of a config with this key and value."""
    import yaml  # late: only messages need it

    return yaml.safe_dump({key: value}, allow_unicode=True, width=float("inf")).strip()


def resolve(sources: Iterable[str]) -> list[SourceFile]:
    """Return the files in the order of their rows.

    The sources keep their order; the files that match one pattern are sorted by name. A name that
    exists is that file, even if it looks like a pattern.

    Raises Halt: 78 for what is not a readable file of a known format, 75 if an address cannot be
    reached.
    """
    found = list[SourceFile]()
    for source in sources:
        names = [source]
        if is_remote(source):
            names = expand_address(source)
        elif glob.has_magic(source) and not Path(source).exists():
            # Path.glob gives hidden files as well.
            matching = glob.glob(source, recursive=True)  # noqa: PTH207
            names = sorted(name for name in matching if not Path(name).is_dir())
        if not names:
            raise config_error(
                f"No file matches {source}.", "Correct the pattern, or check that the files exist."
            )
        found += map(_source_file, names)
    return found


def _source_file(place: str) -> SourceFile:
    """Recognize format and compression by the suffixes.

    Raises Halt (78) for an unknown format, and for what is not a file.
    """
    path = Path(place.split("?")[0] if is_remote(place) else place)
    if not is_remote(place):
        _local_state(path)  # raises for a file that is missing
        if not path.is_file():
            raise config_error(
                f"{path} is not a regular file.",
                f"Name the files in the folder, such as {path}/*.csv",
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
            f"Rename or convert it. {_AS_PARQUET}",
            why=known,
        )
    return SourceFile(place, path, form, compression)


def _local_state(path: Path) -> list[int]:
    """Return size_bytes, mtime_ns, ctime_ns, inode. Raises Halt (78) if there is no such file."""
    try:
        return list(state_of(path))
    except OSError as error:
        raise config_error(
            f"There is no file {path}: {error.strerror}.",
            "Correct the path, which in a config starts at the config's folder, or the file's "
            "permissions.",
        ) from error


def signature(files: Iterable[SourceFile]) -> dict[str, Any]:
    """Return a value for each file, by its place, that differs once its content has changed.

    That is a list of size_bytes and times, or of an address [size_bytes, tag]. Raises Halt as
    `resolve`.
    """
    return {
        file.place: remote_state(file.place) if file.is_elsewhere else _local_state(file.path)
        for file in files
    }
