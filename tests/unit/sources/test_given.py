"""What a program may give as texts: anything that can be iterated, such as a column of a table of
any library.
"""

import errno
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from chunkvisor.api import write_texts
from chunkvisor.errors import Halt
from harness import halts

pandas: Any = pytest.importorskip("pandas")
pyarrow: Any = pytest.importorskip("pyarrow")
TEXTS = ["one", None, "ümläut\n🙂"]
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
FRAME = pandas.DataFrame(ROWS).astype({"text": object}).replace({np.nan: None})


def written(given: Any, folder: Path) -> list[Any]:
    """Return the texts of the source that is made."""
    path = write_texts(given, folder)
    assert path is not None
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize(
    "given",
    [
        TEXTS,
        tuple(TEXTS),
        (text for text in TEXTS),
        FRAME["text"],
        FRAME["text"].astype("string"),
        FRAME["text"].replace({None: np.nan}),
        pyarrow.table({"text": TEXTS})["text"],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_taken(tmp_path: Path, given: Any) -> None:
    """Whatever they come in, the texts are written one after the other, None as an empty one."""
    assert written(given, tmp_path) == [text or "" for text in TEXTS]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a text", r"texts is a str.*\ndo:  Give a list of strings"),
        ({"one", "two"}, "texts is a set"),
        (["a", 3], r"texts\[1\] is not a string: int 3"),
        ([np.float32(3)], r"texts\[0\] is not a string: float32 "),
        (ROWS, r"texts\[0\] is not a string: dict .*\ndo:  .*of rows, give one of their keys"),
        ({"text": TEXTS}, "texts is a dict"),
        (FRAME, r"texts is a DataFrame\ndo:  .*table\['name'\] of a table"),
        (pyarrow.table({"text": TEXTS}), "texts is a Table"),
    ],
)
def test_what_is_refused(tmp_path: Path, given: Any, words: str) -> None:
    """What would be taken for other texts than those that were meant is refused, and leaves no
    file.
    """
    with halts(78, words):
        written(given, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is named, with 74; what the iterator itself raises is raised; no file is left."""
    with pytest.raises(ZeroDivisionError):
        written((str(1 // number) for number in (1, 0)), tmp_path)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("os.fsync", Mock(side_effect=full))
    with pytest.raises(Halt, match=rf"{tmp_path}: the disk is full") as raised:
        write_texts(["one"], tmp_path)
    assert (raised.value.code, list(tmp_path.iterdir())) == (74, [])
