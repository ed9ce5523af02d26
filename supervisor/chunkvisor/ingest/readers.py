"""Rows of the text formats, read as a stream with the line of each.

No type or dialect is guessed, and nothing skipped that cannot be read; parquet is read by `parquet`.

DuckDB's own readers are not used here. Under fixed columns and a fixed dialect version 2.0 still passes over blank
lines, turns the JSON values 1.10 and [1] into the texts 1.1 and [1], takes a line that is an array for a row, and is
off by one in the line of malformed JSON; a lone carriage return ends in an error without a line.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from chunkvisor.ingest.jsonlines import read_jsonl
from chunkvisor.ingest.lines import decode, lines
from chunkvisor.ingest.problem import MAX_RECORD_BYTES, MAX_TEXT_BYTES, blank_line, input_error, missing_column
from chunkvisor.ingest.sources import Format, SourceFile
from chunkvisor.ingest.values import Row

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
