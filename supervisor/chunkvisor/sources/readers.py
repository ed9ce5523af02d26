"""Rows of the text formats, read as a stream with the line of each.

No type or dialect is guessed, and nothing skipped that cannot be read; parquet is read by `sqlrows`.

DuckDB's own readers are not used here. Under fixed columns and a fixed dialect version 2.0 still passes over blank
lines, turns the JSON values 1.10 and [1] into the texts 1.1 and [1], takes a line that is an array for a row, and is
off by one in the line of malformed JSON; a lone carriage return ends in an error without a line.
"""

import contextlib
import csv
import gzip
import io
import json
import shlex
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from chunkvisor.errors import Halt
from chunkvisor.sources.problems import (
    MAX_RECORD_BYTES,
    MAX_TEXT_BYTES,
    blank_line,
    input_error,
    missing_column,
    too_deep,
)
from chunkvisor.sources.request import IngestRequest, Part, parse_template
from chunkvisor.sources.resolve import Compression, Format, SourceFile

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_BUFFER_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_COMPRESSED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
"""First bytes of a compressed file -> how its name is to end."""
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError)


def lines(file: SourceFile, max_bytes: int = MAX_RECORD_BYTES) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of each line, its line feed included; a byte order mark at the start is dropped.

    Raises Halt (exit 78) for a file that cannot be opened, is empty or damaged, or has a line above `max_bytes`.
    """
    number, empty = 0, True
    with _open(file) as stream:
        try:
            while line := stream.readline(max_bytes + 2):  # room for a carriage return and a line feed
                number += 1
                if number == 1:
                    _refuse_disguised(file.path, line)
                    line = line.removeprefix(_BOM)
                if not line:
                    break
                empty = False
                if len(line) > max_bytes and not line.endswith(b"\n"):
                    raise input_error(
                        file.path,
                        f"the line is longer than {max_bytes:,} bytes, the most that is read.",
                        line=number,
                        remedy="Correct or shorten it in the source; most such lines are damaged.",
                    )
                yield number, line
        except _DAMAGE as error:
            raise input_error(
                file.path,
                f"the {file.compression} data is damaged or cut short: {error}",
                why=f"It was noticed after line {number}.",
                remedy="Copy or compress the file again.",
            ) from error
    if empty:
        raise input_error(file.path, "the file is empty.", remedy="Remove it from the sources, or fill it.")


def _refuse_disguised(path: Path, line: bytes) -> None:
    """Refuse a file whose first bytes are not those of UTF-8 text, though they may be valid UTF-8. Raises Halt (78)."""
    for magic, suffix in _COMPRESSED.items():
        if line.startswith(magic):
            raise input_error(
                path,
                f"the file is compressed, which a name ending with {suffix} would say.",
                remedy=f"Rename it to {path.name}{suffix}, or unpack it.",
            )
    head = line.rstrip(b"\n")[:8]
    for kind, letters, zeros in (("UTF-16LE", head[::2], head[1::2]), ("UTF-16BE", head[1::2], head[::2])):
        if len(head) >= 4 and all(letters) and not any(zeros):
            raise input_error(
                path,
                "every second byte is zero: it looks like UTF-16.",
                line=1,
                remedy=f"Convert the file, e.g. iconv -f {kind} -t UTF-8",
            )


def decode(path: Path, number: int, line: bytes) -> str:
    """The line as text. Raises Halt (exit 78) where it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(path, number, line, error) from error


def not_utf8(path: Path, number: int, line: bytes, error: UnicodeDecodeError) -> Halt:
    """The Halt for a line that is not UTF-8."""
    wide = number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
    return input_error(
        path,
        f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line.",
        line=number,
        why="It looks like UTF-16." if wide else "",
        remedy=f"Convert the file, e.g. iconv -f {'UTF-16' if wide else 'LATIN1'} -t UTF-8",
    )


@contextlib.contextmanager
def _open(file: SourceFile) -> Iterator[io.BufferedIOBase]:
    try:
        raw = open(file.path, "rb", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise input_error(
            file.path, f"the file cannot be read: {error.strerror}.", remedy="Check its permissions."
        ) from error
    unpacked: io.FileIO | gzip.GzipFile | zstd.ZstdFile = raw
    with raw:  # neither gzip nor zstd closes what it is given
        match file.compression:
            case Compression.GZIP:
                unpacked = gzip.GzipFile(fileobj=raw, mode="rb")
            case Compression.ZSTD:
                unpacked = zstd.ZstdFile(raw, "r")
        with io.BufferedReader(unpacked, _BUFFER_BYTES) as stream:
            yield stream


Cell: TypeAlias = Any
"""str, `Number`, bool, None, list or dict; CSV and plain text have str only."""
Row: TypeAlias = tuple[int, Sequence[Cell]]
"""Line on which the row starts, counted from 1, and the wanted columns' cells."""
Composer: TypeAlias = Callable[[Sequence[Cell]], str]
"""Cells to text. Raises `NotTextError`."""


class Number(str):
    """A JSON number as its source writes it: no digit is lost, and 1.10 stays 1.10."""

    __slots__ = ()


class NotTextError(ValueError):
    """A value that is no text; says which, for the person."""


def composer(request: IngestRequest) -> tuple[tuple[str, ...], Composer]:
    """The columns that a request by column or template needs, and how their cells make a text."""
    if request.column is not None:
        return (request.column,), _only_text(request.column)
    assert request.template is not None
    parts = parse_template(request.template)
    columns = tuple(dict.fromkeys(part.column for part in parts if part.column is not None))
    return columns, _filler(parts, columns)


def json_text(cell: Cell) -> str:
    """The cell as JSON, its numbers as the source writes them."""
    if isinstance(cell, Number):
        return str(cell)
    if isinstance(cell, list):
        return "[" + ", ".join(json_text(item) for item in cell) + "]"
    if isinstance(cell, dict):
        return "{" + ", ".join(f"{json_text(key)}: {json_text(value)}" for key, value in cell.items()) + "}"
    return json.dumps(cell, ensure_ascii=False)


def _only_text(column: str) -> Composer:
    def text(cells: Sequence[Cell]) -> str:
        cell = cells[0]
        if type(cell) is str:
            return cell
        if cell is None:
            return ""
        raise NotTextError(f"column {column!r} holds {_kind(cell)}, not text.")

    return text


def _filler(parts: Sequence[Part], columns: Sequence[str]) -> Composer:
    # A place is the index of its column, a literal stands for itself.
    pieces = [columns.index(part.column) if part.column is not None else part.literal for part in parts]

    def text(cells: Sequence[Cell]) -> str:
        filled = [_fill(columns[index], cell) for index, cell in enumerate(cells)]
        return "".join([piece if isinstance(piece, str) else filled[piece] for piece in pieces])

    return text


def _fill(column: str, cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    raise NotTextError(f"column {column!r} holds {_kind(cell)}, which a template cannot take.")


def _kind(cell: Cell) -> str:
    if isinstance(cell, Number):
        return "a number"
    return {bool: "a boolean", list: "an array", dict: "an object"}[type(cell)]


_ENDS = ("\n", "\r\n", "")
"""Of a line."""


class _Ambiguous(dict[str, Any]):
    """An object that has a key twice."""

    __slots__ = ("keys_twice",)
    keys_twice: set[str]


def read_jsonl(
    file: SourceFile, columns: Sequence[str], *, skip_blank: bool = False, limit: int | None = None
) -> Iterator[Row]:
    """The first `limit` rows with the values of `columns`; a key that a line lacks is None.

    Raises Halt (exit 78) for bad input, and for a column that no line of the whole file has. Without columns the
    lines are only counted.
    """
    if not columns:
        yield from islice(((number, ()) for number, _ in _filled_lines(file, skip_blank=skip_blank)), limit)
        return
    missing = set(columns)
    known: dict[str, None] = {}
    rows = 0
    for number, item in read_objects(file, skip_blank=skip_blank):
        if missing:
            missing -= item.keys()
            if len(known) < 1000:  # enough to name the nearest; keys that are data must not fill the memory
                known |= dict.fromkeys(item)
        if rows != limit:
            if isinstance(item, _Ambiguous) and (twice := item.keys_twice.intersection(columns)):
                raise input_error(
                    file.path, f"the object has the key {min(twice)!r} twice.", line=number, remedy="Keep one of them."
                )
            rows += 1
            yield number, [item.get(column) for column in columns]
        # Past the limit the rest is only searched for keys that the rows asked for happen to lack.
        if rows == limit and not missing:
            return
    if rows and missing:
        raise missing_column(file.path, min(missing), known, why="No line of the file has that key.")


def read_objects(file: SourceFile, *, skip_blank: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each row. Raises Halt (exit 78) for bad input."""
    parse, opening = _parser(), b""
    for number, line in _filled_lines(file, skip_blank=skip_blank):
        opening = opening or line.strip()[:2]
        text = decode(file.path, number, line)
        try:
            item = parse(text)
        except ValueError as error:
            what = str(error)
            if isinstance(error, json.JSONDecodeError):
                what = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
            raise input_error(
                file.path,
                f"malformed JSON: {what}.",
                line=number,
                remedy=_advice(file.path, number, opening),
            ) from error
        except RecursionError as error:
            raise too_deep(file.path, number) from error
        if not isinstance(item, dict):
            raise input_error(
                file.path,
                "the line is JSON, but no object.",
                line=number,
                remedy='Each line must be an object, such as {"text": "..."}.',
            )
        yield number, item


def _advice(path: Path, number: int, opening: bytes) -> str:
    """What to do about a line that is not JSON, by the first characters of the file's first line that is not blank.

    To a file that has one object a line, jq's `.[]` would do harm: it takes the objects apart.
    """
    name = shlex.quote(str(path))
    unpack = {".gz": f"zcat {name} | ", ".zst": f"zstdcat {name} | "}.get(path.suffix.lower(), "")
    given = "" if unpack else f" {name}"
    if opening.startswith(b"[") or opening == b"{":
        items = "'.[]'" if opening.startswith(b"[") else "."
        return (
            "Each line must be one whole JSON object. This file is an array or is indented; to convert it: "
            f"{unpack}jq -c {items}{given} > converted.jsonl"
        )
    return (
        f"Each line must be one whole JSON object. This one seems to be cut off or damaged; to look at it: {unpack}"
        f"sed -n {number}p{given}. Correct it or fetch the file again, then run the same command again."
    )


def _parser() -> Callable[[str], object]:
    """What one JSON text stands for. Raises ValueError, RecursionError."""
    decoder = json.JSONDecoder(
        object_pairs_hook=_object, parse_float=Number, parse_int=Number, parse_constant=_refuse_constant
    )
    scan = decoder.scan_once  # type: ignore[attr-defined] # typeshed leaves it out

    def parse(text: str) -> object:
        # A third of the time of `decode` are its searches for white space, which most lines have at their end alone.
        try:
            item, end = scan(text, 0)
        except StopIteration:
            return decoder.decode(text)
        return item if text[end:] in _ENDS else decoder.decode(text)

    return parse


def _filled_lines(file: SourceFile, *, skip_blank: bool) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank; blank ones may end the file, in the middle they are refused unless `skip_blank`."""
    blank = 0
    for number, line in lines(file):
        if not line.strip(b" \t\r\n"):
            blank = blank or number
            continue
        if blank and not skip_blank:
            raise blank_line(file.path, blank)
        yield number, line


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) == len(pairs):
        return item
    # Refused only where it matters: a twin in some nested object that nobody reads does no harm.
    ambiguous = _Ambiguous(item)
    seen: set[str] = set()
    ambiguous.keys_twice = {key for key, _ in pairs if key in seen or seen.add(key)}  # type: ignore[func-returns-value] # add() returns None on purpose
    return ambiguous


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


TEXT_COLUMN = "text"
"""The one column of a .txt file."""
_DELIMITERS = {Format.CSV: ",", Format.TSV: "\t"}


def read_rows(
    file: SourceFile, columns: Sequence[str], *, skip_blank: bool = False, limit: int | None = None
) -> Iterator[Row]:
    """The first `limit` rows of a text format with the cells of `columns`. Raises Halt (exit 78) for bad input."""
    match file.format:
        case Format.CSV | Format.TSV:
            return islice(_read_csv(file, columns, skip_blank=skip_blank), limit)
        case Format.JSONL:
            return read_jsonl(file, columns, skip_blank=skip_blank, limit=limit)
        case Format.TXT:
            return islice(_read_txt(file, columns, skip_blank=skip_blank), limit)
        case Format.PARQUET:
            raise AssertionError(f"{file.format} has no lines")


def csv_columns(file: SourceFile) -> list[str]:
    """The header of a CSV or TSV file. Raises Halt (exit 78) for bad input."""
    line, header = next(_records(file))
    _check_header(file, line, header)
    return header


def _read_txt(file: SourceFile, columns: Sequence[str], *, skip_blank: bool) -> Iterator[Row]:
    for column in columns:
        if column != TEXT_COLUMN:
            raise missing_column(file.path, column, [TEXT_COLUMN], why="Each line of a .txt file is one text.")
    for number, line in lines(file, MAX_TEXT_BYTES):
        bare = line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
        text = decode(file.path, number, bare)
        if not (skip_blank and not text.strip()):
            yield number, (text,)


def _read_csv(file: SourceFile, columns: Sequence[str], *, skip_blank: bool) -> Iterator[Row]:
    records = _records(file)
    line, header = next(records)
    _check_header(file, line, header)
    for column in columns:
        if not column or column not in header:
            raise missing_column(file.path, column, header)
    indexes = [header.index(column) for column in columns]
    width = len(header)
    blank = 0
    for line, record in records:
        if not record:
            # A blank line is a record with one empty field (RFC 4180, the grammar), so a row only where there is one
            # column. Elsewhere it may end the file, but in the middle nobody can tell what it stands for.
            if width == 1 and not skip_blank:
                yield line, [""] * len(indexes)
            elif not skip_blank:
                blank = blank or line
            continue
        if blank:
            raise blank_line(file.path, blank)
        if len(record) != width:
            raise input_error(
                file.path,
                f"the row has {_fields(len(record))}, the header has {width}.",
                line=line,
                remedy="Correct the row: a field with a delimiter, a quote or a line break in it needs double quotes.",
            )
        yield line, [record[index] for index in indexes]


def _records(file: SourceFile) -> Iterator[tuple[int, list[str]]]:
    """First line and fields of each record, the header first; a blank line is a record without fields."""
    csv.field_size_limit(MAX_RECORD_BYTES)
    start, size_bytes = 1, 0

    def decoded() -> Iterator[str]:
        nonlocal size_bytes
        for number, line in lines(file):
            size_bytes += len(line)
            if size_bytes > MAX_RECORD_BYTES:
                raise input_error(
                    file.path,
                    f"the row that starts here is longer than {MAX_RECORD_BYTES:,} bytes, the most that is read.",
                    line=start,
                    why="A quote that is opened in it is probably never closed.",
                    remedy="Correct the row.",
                )
            yield decode(file.path, number, line)

    reader = csv.reader(decoded(), delimiter=_DELIMITERS[file.format], strict=True)
    try:
        for record in reader:
            yield start, record
            start, size_bytes = reader.line_num + 1, 0
    except csv.Error as error:
        what, remedy = _csv_fault(str(error))
        raise input_error(file.path, what, line=start, remedy=remedy) from error


def _csv_fault(error: str) -> tuple[str, str]:
    if "unexpected end of data" in error:
        return "a quote is opened in the row that starts here and never closed.", "Close it, or double a literal quote."
    if "new-line character seen in unquoted field" in error:
        return "a carriage return stands outside quotes.", "End lines by a line feed; quote fields that hold breaks."
    return f"the row cannot be read: {error}.", "Put the field in double quotes and double the quotes inside."


def _check_header(file: SourceFile, line: int, header: Sequence[str]) -> None:
    if not header:
        raise input_error(
            file.path, "the line is blank; the header belongs here.", line=line, remedy="Remove the blank line."
        )
    for column, count in Counter(header).items():
        # Nothing can ask for a column without a name, so two of those mislead nobody.
        if column and count > 1:
            raise input_error(
                file.path, f"the header has two columns {column!r}.", line=line, remedy="Rename one of them."
            )


def _fields(count: int) -> str:
    return f"{count} field" if count == 1 else f"{count} fields"
