"""Writes the texts that a Python program gives as a source, one after the other."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from chunkvisor.errors import config_error
from chunkvisor.store.disk import refusal

WRITTEN = f"texts-{'[0-9a-f]' * 16}.jsonl"  # names of the files, as a pattern


def place_of(index: int) -> str:
    """Say where a text stands, as its owner would write it."""
    return f"texts[{index}]"


def write_texts(given: Any, folder: Path) -> Path | None:
    """Write the texts under a name made of their digest: equal texts are the same untouched file.

    None if there are no texts. Raises Halt: 78 for what is not a text, 74 for a full disk; OSError; what they raise.
    """
    # To iterate a table (of pandas and polars; of datasets and pyarrow) gives no texts.
    is_table = isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "column_names")
    if is_table or isinstance(given, str | bytes | os.PathLike | set | frozenset) or not isinstance(given, Iterable):
        remedy = "Give a list of strings, in an order: [text], sorted(texts) of a set, or table['name'] of a table."
        raise config_error(f"texts is {type(given).__name__}, and not a list of texts", remedy=remedy)
    digest, partial = hashlib.sha256(), Path()
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".texts-", suffix=".tmp")
        partial = Path(name)
        with open(handle, "wb") as file:
            for index, text in enumerate(given):
                line = _line(text, index)
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


def _line(text: Any, index: int) -> bytes:
    text = text.as_py() if hasattr(text, "as_py") else text  # pyarrow's
    if text is not None and not isinstance(text, str):
        what = f"{place_of(index)} is not a string: {type(text).__name__} {text!r:.60}"
        remedy = "Convert it, or give None for an empty text (in pandas: texts.fillna(''); of rows, one of their keys)."
        raise config_error(what, remedy=remedy)
    try:
        return json.dumps({"text": text or ""}, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        what = f"{place_of(index)} has a lone surrogate, {error.object[error.start]!r}"
        raise config_error(what, remedy="Correct it: it is half of a character, such as an emoji cut in two.") from None
