"""Writes the texts that a Python program gives as a source, one after the other."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chunkvisor.errors import config_error
from chunkvisor.store.disk import refusal
from chunkvisor.units import listed

WRITTEN = f"texts-{'[0-9a-f]' * 16}.jsonl"
"""Names of the files, as a pattern."""


def _texts_of(given: Any, column: str | None) -> Iterable[object]:
    """Return the texts, or that column of rows or of a table. Raises Halt (78) for what is neither.

    To iterate a table gives other things than its texts: the names of its columns, or rows.
    """
    kind, names = type(given).__name__, _columns_of(given)
    if names is None:
        if isinstance(given, str | bytes | os.PathLike | set | frozenset) or not isinstance(given, Iterable):
            remedy = "Give a list of strings, in an order: [text], or sorted(texts) of a set."
            raise config_error(f"texts is {kind}, and not a list of texts", remedy=remedy)
        return given if column is None else _of_rows(given, column)
    if names.count(column or "") != 1:  # of two columns of a name, pandas gives both, as a table
        what = f"texts is {kind}, and encode takes one of its columns, not {column!r}"
        raise config_error(what, remedy=f"Name one by column=…: {listed(names, 20)}")
    return given[column]  # type: ignore[no-any-return] # of whatever library


def _columns_of(given: Any) -> list[str] | None:
    """Return the columns of a table of any library, or of the tables in a mapping; None for what is not a table."""
    # Of datasets and pyarrow; of pandas and polars.
    found = given if isinstance(given, Mapping) else getattr(given, "column_names", getattr(given, "columns", None))
    return None if found is None or callable(found) else list(map(str, found))


def _of_rows(rows: Iterable[object], column: str) -> Iterator[object]:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping) or column not in row:
            what = f"texts[{index}] has no column {column!r}"
            raise config_error(what, why=f"it is {row!r:.100}", remedy="Give each row that key.")
        yield row[column]


def place_of(given: Any, column: str | None, index: int) -> str:
    """Say where a text stands, as its owner would write it, such as `texts.iloc[7]`."""
    by = ".iloc" if hasattr(given, "iloc") else ""  # in pandas [7] asks for a label
    if column is None:
        return f"texts{by}[{index}]"
    return f"texts[{index}][{column!r}]" if _columns_of(given) is None else f"texts[{column!r}]{by}[{index}]"


def write_texts(given: Any, column: str | None, folder: Path) -> Path | None:
    """Write the texts under a name made of their digest: equal texts are the same untouched file.

    None if there are no texts. Raises Halt: 78 for what is not a text, 74 for a full disk; OSError; what they raise.
    """
    digest, partial = hashlib.sha256(), Path()
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".texts-", suffix=".tmp")
        partial = Path(name)
        with open(handle, "wb") as file:
            for index, text in enumerate(_texts_of(given, column)):
                line = _line(text, given, column, index)
                digest.update(line)
                file.write(line)
            file.flush()
            os.fsync(file.fileno())
            if not file.tell():
                return None
        path = folder / f"texts-{digest.hexdigest()[:16]}.jsonl"
        if not path.exists():
            partial.replace(path)
    except OSError as error:
        raise refusal(error, folder) or error from None
    finally:
        if partial.name:
            partial.unlink(missing_ok=True)
    return path


def _line(text: Any, given: Any, column: str | None, index: int) -> bytes:
    text = text.as_py() if hasattr(text, "as_py") else text  # pyarrow's
    if text is not None and not isinstance(text, str):
        what = f"{place_of(given, column, index)} is not a string: {type(text).__name__} {text!r:.60}"
        remedy = "Convert it, or give None for an empty text (in pandas: texts.fillna('')). Of rows, name a column=…."
        raise config_error(what, remedy=remedy)
    try:
        return json.dumps({"text": text or ""}, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        what = f"{place_of(given, column, index)} has a lone surrogate, {error.object[error.start]!r}"
        raise config_error(what, remedy="Correct it: it is half of a character, such as an emoji cut in two.") from None
