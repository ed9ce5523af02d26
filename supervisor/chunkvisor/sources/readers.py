"""Reads the rows of text formats as a stream, each with its line; parquet is read by `sql`.

No type or dialect is guessed, and nothing is skipped that cannot be read. DuckDB's own readers are not used: version
2.0 passes over blank lines, turns the JSON value 1.10 into 1.1, and is off by one in the line of malformed JSON.
"""

import csv
import difflib
import gzip
import io
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from chunkvisor.errors import Halt, config_error
from chunkvisor.sources.resolve import Format, IngestRequest, SourceFile, parse_template

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_TEXT_BYTES = 16 << 20
"""Of UTF-8, of one text."""
_MAX_RECORD_BYTES = 64 << 20
"""Of a line or a CSV record: more than a text, for its other columns and JSON's escapes."""

Cell: TypeAlias = Any
"""str, `Number`, bool, None, list or dict; CSV and plain text have str only."""
Row: TypeAlias = tuple[int, Sequence[Cell]]
"""Line on which the row starts, counted from 1, and the cells of the wanted columns."""


class Number(str):
    """A JSON number as its source writes it: 1.10 stays 1.10."""

    __slots__ = ()


def input_error(
    path: Path, what: str, *, line: int | None = None, unit: str = "line", why: str = "", remedy: str = ""
) -> Halt:
    """Return a Halt (78) for a fault in a source; lines are counted from 1, rows of parquet from 0."""
    return config_error(f"{path}{'' if line is None else f', {unit} {line}'}: {what}", why=why, remedy=remedy)


def missing_column(path: Path, name: str, columns: Iterable[str], why: str = "") -> Halt:
    """Return a Halt for a column that the file does not have; it names the nearest and lists all."""
    folded = {column.casefold(): column for column in columns if column}
    near = [f"The nearest is {folded[each]!r}. " for each in difflib.get_close_matches(name.casefold(), folded, n=1)]
    remedy = "".join([*near, in_words(list(folded.values()))])
    return input_error(path, f"there is no column {name!r}.", why=why, remedy=remedy)


def in_words(columns: Sequence[str]) -> str:
    """Return a sentence such as "The columns are: 'a', 'b'."."""
    more = ", ..." if len(columns) > 60 else ""
    return f"The columns are: {', '.join(map(repr, columns[:60])) or 'none'}{more}."


def lines(file: SourceFile, max_bytes: int = _MAX_RECORD_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line, with its line feed; a byte order mark at the start is dropped.

    Raises Halt (78) for a file that cannot be opened, is empty or damaged, or has a line above `max_bytes`.
    """
    number = 0
    openers: dict[str, Callable[..., Any]] = {"": io.FileIO, "gzip": gzip.open, "zstd": zstd.open}
    try:
        raw = openers[file.compression](file.path, "rb")
    except OSError as error:
        what = f"the file cannot be read: {error.strerror}."
        raise input_error(file.path, what, remedy="Check its permissions.") from error
    with raw, io.BufferedReader(raw, 1 << 20) as stream:
        try:
            while line := stream.readline(max_bytes + 2):  # room for a carriage return and a line feed
                if not number:
                    if 0 in line[:2]:
                        remedy = "It looks like UTF-16: convert it, e.g. iconv -f UTF-16LE -t UTF-8"
                        raise input_error(file.path, "the file begins with a zero byte.", line=1, remedy=remedy)
                    line = line.removeprefix(b"\xef\xbb\xbf")
                    if not line:
                        break
                number += 1
                if len(line) > max_bytes and not line.endswith(b"\n"):
                    what = f"the line is longer than {max_bytes:,} bytes, the most that is read."
                    remedy = "Correct or shorten it in the source; most such lines are damaged."
                    raise input_error(file.path, what, line=number, remedy=remedy)
                yield number, line
        except (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError) as error:
            what = f"the {file.compression} data is damaged or cut short after line {number}: {error}"
            raise input_error(file.path, what, remedy="Copy or compress the file again.") from error
    if not number:
        raise input_error(file.path, "the file is empty.", remedy="Remove it from the sources, or fill it.")


def _decode(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        what = f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line."
        why = "The file may have another encoding, or be compressed though its name does not say so."
        remedy = "Convert the file, e.g. iconv -f LATIN1 -t UTF-8 (or -f UTF-16)"
        raise input_error(path, what, line=number, why=why, remedy=remedy) from error


def read_rows(
    file: SourceFile, columns: Sequence[str], *, skip_blank: bool = False, limit: int | None = None
) -> Iterator[Row]:
    """Yield the first `limit` rows with the cells of `columns`. Raises Halt (78) for bad input."""
    if file.format is Format.JSONL:
        return _read_jsonl(file, columns, skip_blank, limit)
    read = _read_txt if file.format is Format.TXT else _read_csv
    return islice(read(file, columns, skip_blank), limit)


def columns_of_text(file: SourceFile) -> list[str]:
    """Return the columns; of JSON lines, those of the first 100. Raises Halt (78) for bad input."""
    if file.format is Format.TXT:
        return ["text"]
    if file.format is Format.JSONL:
        return list(dict.fromkeys(key for _, item in islice(read_objects(file), 100) for key in item))
    line, header = next(_records(file))
    if not header:
        raise input_error(file.path, "the line is blank; the header belongs here.", line=line)
    for column, count in Counter(filter(None, header)).most_common(1):
        if count > 1:
            what = f"the header has two columns {column!r}."
            raise input_error(file.path, what, line=line, remedy="Rename one of them.")
    return header


def _read_txt(file: SourceFile, columns: Sequence[str], skip_blank: bool) -> Iterator[Row]:
    for column in columns:
        if column != "text":
            raise missing_column(file.path, column, ["text"], "Each line of a .txt file is one text.")
    for number, line in lines(file, MAX_TEXT_BYTES):
        # A carriage return without a line feed is part of the text.
        bare = line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
        text = _decode(file.path, number, bare)
        if not (skip_blank and not text.strip()):
            yield number, (text,)


def _read_csv(file: SourceFile, columns: Sequence[str], skip_blank: bool) -> Iterator[Row]:
    header = columns_of_text(file)
    for column in columns:
        if not column or column not in header:
            raise missing_column(file.path, column, header)
    indexes, width, blank = [header.index(column) for column in columns], len(header), 0
    for line, record in islice(_records(file), 1, None):
        # A blank line is a record with one empty field (RFC 4180), so a row only of a file with one column.
        if not record and width == 1 and not skip_blank:
            record = [""]
        if not record:
            blank = blank or line
            continue
        _refuse_blank(file, blank, skip_blank)
        if len(record) != width:
            what = f"the row has {len(record)} field{'s' * (len(record) != 1)}, the header has {width}."
            remedy = "Correct it: a field with a delimiter, a quote or a line break in it needs double quotes."
            raise input_error(file.path, what, line=line, remedy=remedy)
        yield line, [record[index] for index in indexes]


def _refuse_blank(file: SourceFile, blank: int, skip_blank: bool) -> None:
    """Refuse a blank line before a row: it may stand for a row or for nothing. At the end of a file it is nothing."""
    if blank and not skip_blank:
        remedy = "Remove the blank line, or set skip_blank: true."
        raise input_error(file.path, "the line is blank, and rows follow.", line=blank, remedy=remedy)


def _records(file: SourceFile) -> Iterator[tuple[int, list[str]]]:
    """Yield first line and fields of each record, the header first; a blank line is a record without fields."""
    csv.field_size_limit(_MAX_RECORD_BYTES)
    start, size_bytes = 1, 0

    def decoded() -> Iterator[str]:
        nonlocal size_bytes
        for number, line in lines(file):
            size_bytes += len(line)
            if size_bytes > _MAX_RECORD_BYTES:
                what = f"the row that starts here is longer than {_MAX_RECORD_BYTES:,} bytes, the most that is read."
                raise input_error(file.path, what, line=start, remedy="Close the quote that is opened in it.")
            yield _decode(file.path, number, line)

    reader = csv.reader(decoded(), delimiter="\t" if file.format is Format.TSV else ",", strict=True)
    try:
        for record in reader:
            yield start, record
            start, size_bytes = reader.line_num + 1, 0
    except csv.Error as error:
        what = f"the row that starts here cannot be read: {error}."
        remedy = "Close each quote, double a quote inside quotes, and quote fields that hold line breaks."
        raise input_error(file.path, what, line=start, remedy=remedy) from error


def _read_jsonl(file: SourceFile, columns: Sequence[str], skip_blank: bool, limit: int | None) -> Iterator[Row]:
    missing, known, rows = set(columns), dict[str, None](), 0
    for number, item in read_objects(file, skip_blank):
        if missing:
            missing -= item.keys()
            if len(known) < 1000:  # keys that are data must not fill the memory
                known |= dict.fromkeys(item)
        if rows != limit:
            rows += 1
            yield number, [item.get(column) for column in columns]
        # Past the limit, the rest is only searched for keys that the first rows happen to lack.
        if rows == limit and not missing:
            return
    if rows and missing:
        raise missing_column(file.path, min(missing), known, "No line of the file has that key.")


def read_objects(file: SourceFile, skip_blank: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of each row of JSON lines. Raises Halt (78) for bad input."""
    decoder = json.JSONDecoder(
        object_pairs_hook=_object, parse_float=Number, parse_int=Number, parse_constant=_refuse_constant
    )
    blank = 0
    for number, line in lines(file):
        text = _decode(file.path, number, line).strip(" \t\r\n")
        if not text:
            blank = blank or number
            continue
        _refuse_blank(file, blank, skip_blank)
        try:
            item, end = decoder.raw_decode(text)  # decode() takes half as long again, in search of white space
            if end != len(text):
                raise ValueError(f"extra data: column {end + 1}")
        except ValueError as error:
            what = f"malformed JSON: {str(error).replace('line 1 ', '')}."
            why = "Each line must be one whole JSON object."
            remedy = "If the file is an array, or indented, convert it (jq -c '.[]' or jq -c .); else correct the line."
            raise input_error(file.path, what, line=number, why=why, remedy=remedy) from error
        except RecursionError as error:
            raise input_error(file.path, "the JSON is nested too deeply.", line=number) from error
        if not isinstance(item, dict):
            remedy = 'Each line must be an object, such as {"text": "..."}.'
            raise input_error(file.path, "the line is JSON, but not an object.", line=number, remedy=remedy)
        yield number, item


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) != len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the object has the key {key!r} twice")
    return item


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def composer(request: IngestRequest) -> tuple[tuple[str, ...], Callable[[Path, int, Sequence[Cell]], str]]:
    """Return the columns of a request by column or template, and what makes the text of their cells.

    That takes path and line as well, and raises Halt (78) for a value that is not text.
    """
    if request.column is not None:
        return (request.column,), _only_text
    parts = parse_template(request.template or "")
    columns = tuple(dict.fromkeys(column for _, column in parts if column is not None))
    pieces = [(literal, None if column is None else columns.index(column)) for literal, column in parts]

    def filled(path: Path, line: int, cells: Sequence[Cell]) -> str:
        text = ""
        for literal, index in pieces:
            cell = "" if index is None or cells[index] is None else cells[index]
            if isinstance(cell, bool):
                cell = "true" if cell else "false"
            elif not isinstance(cell, str):
                raise _not_text(path, line, cell)
            text += literal + cell
        return text

    return columns, filled


def _only_text(path: Path, line: int, cells: Sequence[Cell]) -> str:
    cell = cells[0]
    if type(cell) is str:
        return cell
    if cell is None:
        return ""
    raise _not_text(path, line, cell)


def _not_text(path: Path, line: int, cell: Cell) -> Halt:
    kind = {Number: "a number", bool: "a boolean", list: "an array", dict: "an object"}[type(cell)]
    remedy = "Name a column of text, or use sql to convert it."
    return input_error(path, f"the column holds {kind}, not text.", line=line, remedy=remedy)


def json_text(cell: Cell) -> str:
    """Return the cell as JSON, its numbers as the source writes them. Raises RecursionError."""
    if isinstance(cell, Number):
        return str(cell)
    if isinstance(cell, list):
        return "[" + ", ".join(map(json_text, cell)) + "]"
    if isinstance(cell, dict):
        return "{" + ", ".join(f"{json_text(key)}: {json_text(value)}" for key, value in cell.items()) + "}"
    return json.dumps(cell, ensure_ascii=False)
