"""Texts that a Python program gives, in whatever can be iterated: written as a source, one after the other."""

import contextlib
import difflib
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

from chunkvisor.errors import Halt, config_error
from chunkvisor.store.disk import refusal
from chunkvisor.units import listed

_MOST_NAMES = 20
_WRITTEN = re.compile(r"texts-[0-9a-f]{16}\.jsonl")


def texts_of(given: Any, column: str | None) -> Iterable[object]:
    """The texts, or that column of rows or of a table. Raises Halt (78) for what is none of them.

    To iterate a table gives other things than its texts: the names of its columns, or rows.
    """
    if isinstance(given, str | bytes | os.PathLike):
        what = "a single string" if isinstance(given, str | bytes) else "a path"
        remedy = "give a list of strings, such as [text]; a file's texts want chunkvisor.run with a config"
        raise config_error(f"texts is {what}", remedy=remedy)
    if callable(getattr(given, "collect", None)):  # of polars and Spark; to ask it for its columns may take long
        kind = type(given).__name__
        raise config_error(f"texts is {_one(kind)} that has not been computed yet", remedy="give texts.collect()")
    if isinstance(given, set | frozenset):
        raise config_error(
            f"texts is a {type(given).__name__}, which has no order: no row would belong to a text",
            remedy="give a list, such as sorted(texts)",
        )
    names = _columns_of(given)
    if column is None and names is not None:
        kind = (
            "mapping" if isinstance(given, Mapping) else "DataFrame" if hasattr(given, "iloc") else type(given).__name__
        )
        shown = listed([repr(name) for name in names], _MOST_NAMES)
        raise config_error(
            f"texts is {_one(kind)}, which would give the names of its columns, or rows: {shown}",
            remedy=f"give one column: texts[{(names or ['column'])[0]!r}], or name it by column=…",
        )
    if column is None:
        return _iterable(given)
    if names is None:
        return _of_rows(_iterable(given), column)
    if column not in names:
        similar = [] if isinstance(given, Mapping) else difflib.get_close_matches(column, names, 1)  # it has tables
        near = "".join(f"did you mean {name}? " for name in similar)
        has = f"{'It' if near else 'it'} has {listed(names, _MOST_NAMES)}"
        raise config_error(f"texts has no column {column!r}", remedy=near + has)
    if names.count(column) > 1:  # in pandas, both of them are a table again, which gives their names
        raise config_error(f"texts has {names.count(column)} columns {column!r}", remedy="rename all but one of them")
    if hasattr(given, "select_columns"):  # a Dataset decodes what it is asked for, images among them
        return _of_rows(given.with_format(None).select_columns([column]), column)  # in any other it gives tables
    return _iterable(given[column])


def place_of(given: Any, column: str | None, index: int) -> str:
    """Where a text stands, as a person would write it who has given `texts`, such as `texts.iloc[7]`."""
    rows = hasattr(given, "select_columns") or _columns_of(given) is None  # of a Dataset a row is had soonest
    before, after = ("", f"[{column!r}]") if rows else (f"[{column!r}]", "")
    by = ".iloc" if hasattr(given, "iloc") else ""  # in pandas [7] asks for a label
    return f"texts{by}[{index}]" if column is None else f"texts{before}{by}[{index}]{after}"


@contextlib.contextmanager
def writing(given: Any, column: str | None, folder: Path) -> Iterator[Callable[[], Path]]:
    """What writes the texts, as `write_texts` does; after a good end, what earlier calls have left there goes."""
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

    With `column`, that column of rows or of a table. Raises Halt: 78 for what is no text, 74 for a full disk; OSError.
    What the texts themselves raise goes through.
    """
    texts, called = texts_of(given, column), getattr(given, "name", None)
    of_column = f" of column {called!r}" if column is None and isinstance(called, str) and called else ""
    digest, count = hashlib.sha256(), 0
    partial = None

    def place() -> str:
        return place_of(given, column, count) + of_column

    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".texts-", suffix=".tmp")
        partial = Path(name)
        with open(handle, "wb") as file:
            for text in _told_apart(texts):
                line = _line(place, text.as_py() if hasattr(text, "as_py") else text)  # pyarrow's
                digest.update(line)
                file.write(line)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        if not count:
            raise config_error("there are no texts", remedy="give at least one")
        path = folder / f"texts-{digest.hexdigest()[:16]}.jsonl"
        if not path.exists():
            partial.replace(path)
    except _TheirsError as theirs:
        raise theirs.error from None
    except OSError as error:
        raise refusal(error, folder) or error from None
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
    return path


class _TheirsError(Exception):
    """What the given texts have raised, which is no fault of our file."""

    def __init__(self, error: OSError) -> None:
        self.error = error


def _told_apart(texts: Iterable[object]) -> Iterator[object]:
    try:
        yield from texts
    except OSError as error:
        raise _TheirsError(error) from None


def _columns_of(given: Any) -> list[str] | None:
    """Names of the columns of a table of any library, or of the tables in a mapping; None for what is no table."""
    if isinstance(given, Mapping):
        return list(map(str, given))
    for name in ("column_names", "columns"):  # of datasets and pyarrow; of pandas and polars
        found = getattr(given, name, None)
        if found is not None and not callable(found):
            return list(map(str, found))
    return None


def _one(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


def _iterable(given: Any) -> Iterable[object]:
    if not isinstance(given, Iterable):
        raise config_error(
            f"texts is {type(given).__name__}, which cannot be iterated", remedy="give a list of strings"
        )
    return given


def _of_rows(rows: Iterable[object], column: str) -> Iterator[object]:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise config_error(f"texts[{index}] has no column {column!r}", why=f"it is {type(row).__name__}")
        if column not in row:
            has = f"it has the columns {listed(list(row), _MOST_NAMES)}"
            raise config_error(f"texts[{index}] has no column {column!r}", why=has)
        yield row[column]


def _line(place: Callable[[], str], text: object) -> bytes:
    if isinstance(text, Mapping):
        raise config_error(
            f"{place()} is a row with the columns {listed(list(text), _MOST_NAMES)}", remedy="name one: column=…"
        )
    if text is not None and not isinstance(text, str):
        # What pandas has where a text is missing: NaN, or its NA.
        missing = type(text).__name__ in ("NAType", "NaTType") or (isinstance(text, Real) and math.isnan(text))
        raise config_error(
            f"{place()} is {'missing' if missing else 'no string'}: {type(text).__name__} {text!r:.60}",
            remedy="put an empty text there, or None; in pandas: texts.fillna('')"
            if missing
            else "convert it, or give None for an empty text",
        )
    try:
        return json.dumps({"text": text or ""}, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise _surrogate(place(), error) from None


def _surrogate(place: str, error: UnicodeEncodeError) -> Halt:
    return config_error(
        f"{place} has a lone surrogate, {error.object[error.start]!r}",
        why="it is half of a character, which UTF-8 cannot hold",
        remedy="correct it; it mostly comes from a text that was cut in the middle of an emoji",
    )
