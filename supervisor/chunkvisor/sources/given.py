"""Writes the texts that a Python program gives as a source, one after the other."""

import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from chunkvisor.errors import config_error
from chunkvisor.store.disk import refusal
from chunkvisor.units import listed

_MOST_NAMES = 20
_WRITTEN = re.compile(r"texts-[0-9a-f]{16}\.jsonl")


def _texts_of(given: Any, column: str | None) -> Iterable[object]:
    """Return the texts, or that column of rows or of a table. Raises Halt (78) for what is neither.

    To iterate a table gives other things than its texts: the names of its columns, or rows.
    """
    kind, names = type(given).__name__, None if hasattr(given, "collect") else _columns_of(given)
    cannot = names is None and not isinstance(given, Iterable)
    for is_so, what, remedy in (
        (isinstance(given, str | bytes), "a single string", "give a list of strings, such as [text]"),
        (isinstance(given, os.PathLike), "a path", "a file's texts want chunkvisor.run with a config"),
        # To ask polars or Spark for the columns may take long.
        (hasattr(given, "collect"), f"{kind}, which has not been computed yet", "give texts.collect()"),
        (isinstance(given, set | frozenset), f"{kind}, which has no order", "give a list, such as sorted(texts)"),
        (cannot, f"{kind}, which cannot be iterated", "give a list of strings"),
    ):
        if is_so:
            raise config_error(f"texts is {what}", remedy=remedy)
    if names is None:
        return given if column is None else _of_rows(given, column)
    has = listed(names, _MOST_NAMES)
    if column is None:
        what = f"texts is {kind}, which would give the names of its columns, or rows: {has}"
        raise config_error(what, remedy=f"give one: texts[{(names or ['column'])[0]!r}], or name it by column=…")
    if names.count(column) != 1:  # of two columns of a name, pandas gives both, as a table
        count = f"{names.count(column)} columns" if column in names else "no column"
        raise config_error(f"texts has {count} {column!r}", remedy=f"it has {has}")
    if hasattr(given, "select_columns"):  # a Dataset decodes what it is asked for, images among them
        return _of_rows(given.with_format(None).select_columns([column]), column)  # in any other it gives tables
    return given[column]  # type: ignore[no-any-return] # of whatever library


def _columns_of(given: Any) -> list[str] | None:
    """Return the columns of a table of any library, or of the tables in a mapping; None for what is not a table."""
    if isinstance(given, Mapping):
        return list(map(str, given))
    for name in ("column_names", "columns"):  # of datasets and pyarrow; of pandas and polars
        found = getattr(given, name, None)
        if found is not None and not callable(found):
            return list(map(str, found))
    return None


def _of_rows(rows: Iterable[object], column: str) -> Iterator[object]:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping) or column not in row:
            has = f"it has {listed(list(row), _MOST_NAMES)}" if isinstance(row, Mapping) else f"it is {row!r:.60}"
            raise config_error(f"texts[{index}] has no column {column!r}", why=has)
        yield row[column]


def place_of(given: Any, column: str | None, index: int) -> str:
    """Say where a text stands, as its owner would write it, such as `texts.iloc[7]`."""
    rows = hasattr(given, "select_columns") or _columns_of(given) is None
    by = ".iloc" if hasattr(given, "iloc") else ""  # in pandas [7] asks for a label
    if column is None:
        return f"texts{by}[{index}]"
    return f"texts[{index}][{column!r}]" if rows else f"texts[{column!r}]{by}[{index}]"


@contextlib.contextmanager
def writing(given: Any, column: str | None, folder: Path) -> Iterator[Callable[[], Path]]:
    """Give what writes the texts, as `write_texts`; after a good end, what earlier calls have left there goes."""
    before = {path for path in folder.glob("texts-*.jsonl") if _WRITTEN.fullmatch(path.name)}

    def write() -> Path:
        path = write_texts(given, column, folder)
        before.discard(path)
        return path

    yield write
    for path in before:
        path.unlink(missing_ok=True)


def write_texts(given: Any, column: str | None, folder: Path) -> Path:
    """Write the texts under a name made of their digest: equal texts are the same untouched file.

    Raises Halt: 78 for what is not a text, 74 for a full disk; OSError. What the texts themselves raise goes through.
    """
    name, digest, count = getattr(given, "name", None), hashlib.sha256(), 0
    of_column = f" of column {name!r}" if column is None and isinstance(name, str) and name else ""
    texts = iter(_texts_of(given, column))
    partial = None
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".texts-", suffix=".tmp")
        partial = Path(temporary)
        with open(handle, "wb") as file:
            for count, text in enumerate(texts, 1):
                line = _line(text, lambda index: place_of(given, column, index) + of_column, count - 1)
                digest.update(line)
                file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if not count:
            raise config_error("there are no texts", remedy="give at least one")
        path = folder / f"texts-{digest.hexdigest()[:16]}.jsonl"
        if not path.exists():
            partial.replace(path)
    except OSError as error:
        raise refusal(error, folder) or error from None
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
    return path


def _line(text: Any, place: Callable[[int], str], index: int) -> bytes:
    text = text.as_py() if hasattr(text, "as_py") else text  # pyarrow's
    if text is not None and not isinstance(text, str):
        # What pandas has in the place of a missing text: its NA, or a number that does not equal itself.
        missing = type(text).__name__ in ("NAType", "NaTType") or (isinstance(text, Real) and math.isnan(text))
        what = f"{place(index)} is {'missing' if missing else 'not a string'}: {type(text).__name__} {text!r:.60}"
        remedy = "convert it, or give None for an empty text; in pandas: texts.fillna('')"
        if isinstance(text, Mapping):
            remedy = f"name one of its columns by column=…: {listed(list(text), _MOST_NAMES)}"
        raise config_error(what, remedy=remedy)
    try:
        return json.dumps({"text": text or ""}, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        why = "it is half of a character, mostly of an emoji that was cut in two"
        what = f"{place(index)} has a lone surrogate, {error.object[error.start]!r}"
        raise config_error(what, why=why, remedy="correct it") from None
