"""Which columns a source has, for a person who has not said which one holds the text.

It never reads a whole file, and never imports DuckDB: parquet is asked in the child.
"""

from itertools import islice
from pathlib import Path

from chunkvisor.errors import Halt
from chunkvisor.ingest.child import stage_table
from chunkvisor.ingest.jsonlines import read_objects
from chunkvisor.ingest.readers import TEXT_COLUMN, csv_columns
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.sources import Format, SourceFile

_LINES = 100
"""So many lines of JSON are looked at."""

_NO_COLUMN = "\N{NULL}"
"""No file has a column of this name, so asking for it gives the message that lists those it has."""


def columns_in_words(file: SourceFile, scratch: Path) -> str:
    """`The columns are: 'a', 'b'.`; `scratch` is an existing folder to work in. Raises Halt for bad input; OSError."""
    match file.format:
        case Format.PARQUET:
            try:
                stage_table(IngestRequest((str(file.path),), column=_NO_COLUMN), scratch / "columns", lambda: None)
            except Halt as halt:
                return halt.remedy
            raise AssertionError("a column without a name was found")
        case Format.CSV | Format.TSV:
            columns = csv_columns(file)
        case Format.JSONL:
            columns = list(dict.fromkeys(key for _, item in islice(read_objects(file), _LINES) for key in item))
        case Format.TXT:
            columns = [TEXT_COLUMN]
    return f"The columns are: {', '.join(map(repr, columns))}."
