"""What a program may give as texts: anything that can be iterated, rows, and a column of a table of any library."""

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkvisor.errors import Halt
from chunkvisor.sources.given import write_texts

pandas: Any = pytest.importorskip("pandas")
pyarrow: Any = pytest.importorskip("pyarrow")
TEXTS = ["one", None, "ümläut\n🙂"]
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
FRAME = pandas.DataFrame(ROWS).astype({"text": object}).replace({np.nan: None})


class Dataset:
    """As `datasets` has it: a column by its name."""

    column_names = ("id", "text")

    def __getitem__(self, column: str) -> list[Any]:
        return [row[column] for row in ROWS]


def written(given: Any, column: str | None, folder: Path) -> list[Any]:
    """Return the texts of the source that is made."""
    path = write_texts(given, column, folder)
    assert path is not None
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize(
    ("given", "column"),
    [
        *((TEXTS, None), (tuple(TEXTS), None), ((text for text in TEXTS), None), (FRAME["text"], None)),
        *((ROWS, "text"), ((row for row in ROWS), "text"), ({"id": [0, 1, 2], "text": TEXTS}, "text")),
        *((Dataset(), "text"), (FRAME, "text"), (pyarrow.table({"id": [0, 1, 2], "text": TEXTS}), "text")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_taken(tmp_path: Path, given: Any, column: str | None) -> None:
    """Whatever they come in, the texts are written one after the other, None as an empty one."""
    assert written(given, column, tmp_path) == [text or "" for text in TEXTS]


@pytest.mark.parametrize(
    ("given", "column", "words"),
    [
        ("a text", None, r"texts is str, .*\ndo:  Give a list of strings"),
        ({"one", "two"}, None, "texts is set, and"),
        (["a", 3], None, r"texts\[1\] is not a string: int 3"),
        ([np.float32("nan")], None, r"texts\[0\] is not a string: float32 .*\ndo:  .*fillna"),
        (ROWS, None, r"texts\[0\] is not a string: dict .*\ndo:  .*name a column"),
        (TEXTS, "text", r"texts\[0\] has no column 'text'\nwhy: it is 'one'"),
        (ROWS, "txt", r"texts\[0\] has no column 'txt'\nwhy: it is \{'id': 0"),
        (Dataset(), None, r"texts is Dataset, .*None\ndo:  Name one by column=…: id, text"),
        ({"train": Dataset(), "test": Dataset()}, "text", r"'text'\ndo:  Name one by column=…: train, test"),
        (FRAME[["text", "text"]], "text", r"texts is DataFrame, and encode takes one of its columns, not 'text'"),
    ],
)
def test_what_is_refused(tmp_path: Path, given: Any, column: str | None, words: str) -> None:
    """What would be taken for other texts than those that were meant is refused, and leaves no file."""
    with pytest.raises(Halt, match=words) as raised:
        written(given, column, tmp_path)
    assert raised.value.code == 78
    assert list(tmp_path.iterdir()) == []


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is named, with 74; what the iterator itself raises is raised; no file is left."""
    with pytest.raises(ZeroDivisionError):
        written((str(1 // number) for number in (1, 0)), None, tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Halt, match=rf"the disk of {tmp_path} is full or failing") as raised:
        write_texts(["one"], None, tmp_path)
    assert (raised.value.code, list(tmp_path.iterdir())) == (74, [])
