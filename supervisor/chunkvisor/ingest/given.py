"""Texts that a Python program gives: written as a source, each refused by its index where it is no text."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from chunkvisor.errors import config_error
from chunkvisor.units import listed


def _refuse_table(texts: object, column: str | None) -> None:
    """Raises Halt (78) for what yields the names of its columns where texts are wanted."""
    if isinstance(texts, Mapping):
        names, kind = list(texts), "a mapping"
    elif hasattr(texts, "columns") and hasattr(texts, "iloc"):
        names, kind = list(texts.columns), "a DataFrame"
    else:
        return
    wanted = column if column in names else names[0] if names else "column"
    shown = listed([repr(name) for name in names], 10)
    raise config_error(
        f"texts is {kind}, which would give the names of its columns: {shown}",
        remedy=f"give one column: texts[{wanted!r}]",
    )


def _column(rows: Iterable[object], column: str) -> Iterator[object]:
    """That column of each row. Raises Halt (78) where it has none."""
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping) or column not in row:
            has = f"has the columns {listed(list(row), 20)}" if isinstance(row, Mapping) else f"is {type(row).__name__}"
            raise config_error(f"texts[{index}] has no column {column!r}", why=f"it {has}")
        yield row[column]


def write_texts(texts: Iterable[object], column: str | None, folder: Path) -> Path:
    """Write the texts as JSON lines under a name made of their digest: equal texts are the same untouched file.

    With `column` they are rows, of which that column is taken. Raises Halt (78) for what is no text, OSError.
    """
    _refuse_table(texts, column)
    if column is not None:
        texts = _column(texts, column)
    if isinstance(texts, str | bytes):
        raise config_error("texts is a single string", remedy="give a list of strings, such as [text]")
    digest, count = hashlib.sha256(), 0
    handle, name = tempfile.mkstemp(dir=folder, prefix=".texts-", suffix=".tmp")
    partial = Path(name)
    try:
        with open(handle, "wb") as file:
            for index, text in enumerate(texts):
                line = _line(index, text)
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
    finally:
        partial.unlink(missing_ok=True)
    return path


def _line(index: int, text: object) -> bytes:
    if text is not None and not isinstance(text, str):
        raise config_error(
            f"texts[{index}] is no string: {type(text).__name__} {text!r:.60}",
            remedy="convert it, or give None for an empty text; in pandas, where a missing one is NaN: fillna('')",
        )
    try:
        return json.dumps({"text": text or ""}, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise config_error(
            f"texts[{index}] has a lone surrogate, {error.object[error.start]!r}",
            why="it is half of a character, which UTF-8 cannot hold",
            remedy="correct it; it mostly comes from a text that was cut in the middle of an emoji",
        ) from None
