"""Reads the rows of text formats as a stream, each with its line; `sql.py` reads parquet.

No type or dialect is guessed, and whatever cannot be read is an error with its line. DuckDB's own
readers are not used: version 2.0 skips blank lines, turns the JSON value 1.10 into 1.1, and says a
wrong line for malformed JSON.
"""

import codecs
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
from typing import Any, TypeAlias, TypeVar

from chunkvisor.errors import Halt
from chunkvisor.sources.resolve import IngestRequest, SourceFile, SourceFormat, yaml_line
from chunkvisor.units import counted, listed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_TEXT_BYTES = 16 << 20
"""Most bytes of UTF-8 in one text."""
_MAX_RECORD_BYTES = 64 << 20
"""Most bytes in a line or a CSV record: it has more columns than the text, and JSON may need six
bytes for a character."""
_DELIMITERS = {SourceFormat.CSV: ",", SourceFormat.TSV: "\t"}

Row: TypeAlias = tuple[int, Sequence[Any]]
"""The line on which the row starts, counted from 1, and the cells of the wanted columns.

A cell is a str, in JSON lines also a `Number`, bool, None, list or dict.
"""
_Item = TypeVar("_Item", str, list[str])


class Number(str):
    """A JSON number as its source writes it: 1.10 stays 1.10."""

    __slots__ = ()


class Integer(Number):
    """A JSON number that has neither a fraction nor an exponent."""

    __slots__ = ()


_TYPES_IN_WORDS = {
    Number: "a number",
    Integer: "a number",
    bool: "a boolean",
    list: "an array",
    dict: "an object",
}


def cell_text(value: Any) -> str | None:
    """Return a cell as its source writes it, a string without its quotes; None for a null."""
    return value if value is None or isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, dict):
        pairs = [f"{_json(name)}:{_json(each)}" for name, each in value.items()]
        return f"{{{','.join(pairs)}}}"
    return value if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)


def missing_column(file: SourceFile, name: str, columns: Iterable[str]) -> Halt:
    """Return a Halt (78) for a column that the file lacks; it suggests the nearest name."""
    folded = {column.casefold(): column for column in columns if column}
    near = [
        f"The nearest is {folded[each]!r}. "
        for each in difflib.get_close_matches(name.casefold(), folded, n=1)
    ]
    return file.error(
        f"there is no column {name!r}.",
        remedy=other_delimiter(file, name)
        or "".join([*near, columns_in_words(list(folded.values()))]),
    )


def other_delimiter(file: SourceFile, column: str = "") -> str:
    """Return a remedy if the columns seem to be separated by another character than expected.

    Such as a .csv file with `a;b;c` for its header. The remedy is empty if they are not, or if the
    header has no such column even then. Raises as `read_rows`.
    """
    own = _DELIMITERS.get(file.format)
    if own is None:
        return ""
    _, line = next(_lines(file))
    header = line.strip().casefold()
    for other in ";\t|,":
        columns = [each.strip('" ') for each in header.split(other)]
        if own not in header and other in header and column.casefold() in ("", *columns):
            copy = (
                f"import csv; csv.writer(open(1, 'w', newline=''), delimiter={own!r}).writerows("
                f"csv.reader(open(0, newline=''), delimiter={other!r}))"
            )
            command = file.conversion_advice(f'python3 -c "{copy}"')
            return f"The columns are separated by {other!r}, and not by {own!r}. {command}"
    return ""


def columns_in_words(columns: Sequence[str]) -> str:
    """List columns in a sentence, such as "The columns are: 'a', 'b'."."""
    return f"The columns are: {listed(list(map(repr, columns)), 60) or 'none'}."


def _lines(file: SourceFile, max_bytes: int = _MAX_RECORD_BYTES) -> Iterator[tuple[int, str]]:
    """Yield the number of each line, from 1, and its text with its line feed.

    A byte order mark at the start is dropped.

    Raises Halt (78) for a file that is empty, damaged or not UTF-8, or has a line above
    `max_bytes`; OSError.
    """
    number = 0
    openers: dict[str, Callable[..., Any]] = {"": io.FileIO, "gzip": gzip.open, "zstd": zstd.open}
    with (
        openers[file.compression](file.path, "rb") as raw,
        io.BufferedReader(raw, 1 << 20) as stream,
    ):
        try:
            while True:
                line = stream.readline(max_bytes + len(b"\r\n"))
                if not number:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if not line:
                    break
                number += 1
                if len(line) > max_bytes and not line.endswith(b"\n"):
                    raise file.error(
                        f"the line is longer than {max_bytes:,} bytes, the most that is read.",
                        number,
                    )
                text = line.decode()
                if "\0" in text:
                    raise file.error(
                        f"a NUL byte at byte {line.index(0) + 1} of the line: this is not text in "
                        f"UTF-8.",
                        number,
                        _encoding_remedy(file, stream, line),
                    )
                yield number, text
        except UnicodeDecodeError as error:
            raise file.error(
                f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the "
                f"line.",
                number,
                _encoding_remedy(file, stream, line),
            ) from error
        except (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError) as error:
            raise file.error(
                f"the {file.compression} data is damaged or cut short after line {number}: {error}",
                remedy="Copy or compress the file again.",
            ) from error
    if not number:
        raise file.error("the file is empty.", remedy="Remove it from the sources, or fill it.")


def _encoding_remedy(file: SourceFile, stream: io.BufferedReader, line: bytes) -> str:
    """Return how to convert a file that is not UTF-8.

    Its encoding is guessed by its first bytes, and by the place of the NUL byte in the line that
    was read last.
    """
    nul = stream.tell() - len(line) + line.find(0)
    stream.seek(0)
    start = stream.read(4)
    if start.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return "It is compressed: give its name the ending .gz or .zst."
    encoding = "WINDOWS-1252"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "UTF-16"
    elif b"\0\0" in (start[:2], start[2:]):
        encoding = "UTF-32LE" if start[0] else "UTF-32BE"
    elif 0 in line:
        encoding = "UTF-16LE" if nul % 2 else "UTF-16BE"
    return f"If it is {encoding}: {file.conversion_advice(f'iconv -f {encoding} -t UTF-8')}"


def read_rows(
    file: SourceFile, columns: Sequence[str], skip_blank: bool = False, limit: int = sys.maxsize
) -> Iterator[Row]:
    """Yield the first `limit` rows, each with its cells in these columns.

    Raises Halt (78) for bad input, OSError.
    """
    if file.format is SourceFormat.JSONL:
        return _read_jsonl(file, columns, skip_blank, limit)
    return islice(_read_records(file, columns, skip_blank), limit)


def columns_of(file: SourceFile) -> list[str]:
    """Return the columns of a file that is not JSON lines. Raises as `read_rows`."""
    if file.format is SourceFormat.TXT:
        return ["text"]
    line, header = next(_records(file))
    if not header:
        raise file.error("the line is blank; the header belongs here.", line)
    for column, count in Counter(filter(None, header)).most_common(1):
        if count > 1:
            raise file.error(f"the header has two columns {column!r}.", line, "Rename one of them.")
    return header


def _read_records(file: SourceFile, columns: Sequence[str], skip_blank: bool) -> Iterator[Row]:
    header = columns_of(file)
    for column in columns:
        if not column or column not in header:
            raise missing_column(file, column, header)
    indexes = [header.index(column) for column in columns]
    width = len(header)
    records: Iterator[tuple[int, list[str]]] = islice(_records(file), 1, None)
    if file.format is SourceFormat.TXT:
        records = _text_lines(file, skip_blank)
    if width == 1 and not skip_blank:
        # In a file with one column a blank line is a row whose field is empty (RFC 4180).
        records = ((line, record or [""]) for line, record in records)
    for line, record in _without_blanks(file, records, skip_blank):
        if len(record) != width:
            raise file.error(
                f"the row has {counted(len(record), 'field')}, the header has {width}.",
                line,
                "Correct it: a field with a delimiter, a quote or a line break in it needs double "
                "quotes.",
            )
        yield line, [record[index] for index in indexes]


def _text_lines(file: SourceFile, skip_blank: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield each line of a text file as a record with one field.

    With `skip_blank`, a line of white space is a record without fields, as a blank line of CSV is.
    """
    for number, line in _lines(file, MAX_TEXT_BYTES):
        # A carriage return without a line feed is part of the text.
        text = line[:-2] if line[-2:] == "\r\n" else line.removesuffix("\n")
        yield number, [] if skip_blank and not text.strip() else [text]


def _records(file: SourceFile) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the fields of each CSV record, the header included.

    A blank line is a record without fields.
    """
    csv.field_size_limit(_MAX_RECORD_BYTES)
    lines = (line for _, line in _lines(file))
    reader = csv.reader(lines, delimiter=_DELIMITERS[file.format], strict=True)
    start = 1
    try:
        for record in reader:
            yield start, record
            start = reader.line_num + 1
    except csv.Error as error:
        raise file.error(
            f"the row that starts here cannot be read: {error}.",
            line=start,
            remedy=other_delimiter(file)
            or "Close each quote, double a quote inside quotes, and quote fields that hold line "
            "breaks.",
        ) from error


def _without_blanks(
    file: SourceFile, items: Iterable[tuple[int, _Item]], skip: bool
) -> Iterator[tuple[int, _Item]]:
    """Yield what is not empty: an empty item is a blank line. `items` have their line before them.

    Raises Halt (78) for a blank line that a row follows, which may be meant as a row, unless `skip`
    is set. Blank lines at the end are left out without an error.
    """
    blank = 0
    for line, item in items:
        if not item:
            blank = blank or line
            continue
        if blank and not skip:
            raise file.error(
                "the line is blank, and rows follow.",
                blank,
                "Remove the blank line, or set skip_blank: true.",
            )
        yield line, item


def _read_jsonl(
    file: SourceFile, columns: Sequence[str], skip_blank: bool, limit: int
) -> Iterator[Row]:
    missing = set(columns)
    item = dict[str, Any]()
    rows = 0
    for line, item in read_objects(file, skip_blank):
        missing -= item.keys()
        rows += 1
        if rows <= limit:
            yield line, [item.get(column) for column in columns]
        # Past the limit, the rest is only searched for keys that the first rows happen to lack.
        if rows >= limit and not missing:
            return
    if rows and missing:
        raise missing_column(file, min(missing), item)


def read_objects(file: SourceFile, skip_blank: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line and all cells by column of each row of a text format.

    Of a key that a JSON object repeats, the last counts. Raises as `read_rows`.
    """
    if file.format is not SourceFormat.JSONL:
        columns = [name for name in columns_of(file) if name]
        for number, cells in _read_records(file, columns, skip_blank):
            yield number, dict(zip(columns, cells, strict=True))
        return
    decoder = json.JSONDecoder(parse_float=Number, parse_int=Integer, parse_constant=Number)
    lines = ((number, line.strip(" \t\r\n")) for number, line in _lines(file))
    for number, text in _without_blanks(file, lines, skip_blank):
        try:
            # decode() would look for white space around, which takes half as long again.
            item, end = decoder.raw_decode(text)
            if end != len(text):
                raise ValueError(f"extra data: column {end + 1}")
            if not isinstance(item, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            problem = str(error).replace("line 1 ", "")
            if isinstance(error, RecursionError):
                problem = "nested too deeply"
            raise file.error(
                f"malformed JSON: {problem}.",
                number,
                'Each line must be one whole JSON object, such as {"text": "..."}. '
                "If the file is an array, or indented, convert it (jq -c '.[]' or jq -c .); else "
                "correct the line.",
            ) from error
        yield number, item


def utf8_of(file: SourceFile, place: int, text: str) -> bytes:
    """Encode a text. Raises Halt (78) for a surrogate, which is half a character."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise file.error(
            f"the text has a lone surrogate, {error.object[error.start]!r}, at character "
            f"{error.start + 1}.",
            place,
            "It is half of a character, such as an emoji cut in two. Correct it in the source.",
        ) from error


def quoted(name: str) -> str:
    """Return the name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def composer(
    request: IngestRequest,
) -> tuple[tuple[str, ...], Callable[[SourceFile, int, Sequence[Any]], str]]:
    """Return the columns that the text is made of, and the function that makes it.

    For the template `{title}: {body}` that is `("title", "body")`, and a function that returns
    `"A: b"` when it is called with the file, a line and the cells `["A", "b"]`. It raises Halt (78)
    for a value that is not text. A request with `sql` has no such columns.
    """
    is_template = request.template is not None
    parts = request.parts
    columns = tuple(dict.fromkeys(column for _, column in parts if column is not None))
    pieces = [(literal, columns.index(column)) for literal, column in parts if column is not None]
    rest, _ = parts[-1]

    def text_of(file: SourceFile, line: int, cells: Sequence[Any]) -> str:
        text = ""
        for literal, index in pieces:
            cell = cells[index]
            if type(cell) is not str:
                is_nested = isinstance(cell, list | dict)
                if is_nested or not (is_template or cell is None):
                    name = columns[index]
                    meant = yaml_line("template", f"{{{name}}}")
                    if is_nested:
                        meant = yaml_line("sql", f"{quoted(name)}::VARCHAR")
                    raise file.error(
                        f"the column holds {_TYPES_IN_WORDS[type(cell)]}, not text.",
                        line,
                        f"If it is meant, write {meant}",
                    )
                cell = cell_text(cell) or ""
            text += literal + cell
        return text + rest

    return columns, text_of
