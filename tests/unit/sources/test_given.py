"""What a program may give as texts: anything that can be iterated, rows, and a column of a table of any library."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunkvisor.errors import Halt
from chunkvisor.sources.given import write_texts

pandas: Any = pytest.importorskip("pandas")
TEXTS = ["one", None, "ümläut\n🙂"]
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
FRAME = pandas.DataFrame(ROWS).astype({"text": object}).replace({np.nan: None})


class Dataset:
    """As `datasets` has it: iterating gives rows, of the columns that were selected, in the format that was asked."""

    column_names = ("id", "text")

    def __init__(self, *decoded: str) -> None:
        self.decoded = decoded

    def with_format(self, kind: None) -> "Dataset":
        """Return the same in another format; with one of its own, rows would come as tables."""
        return Dataset("unformatted")

    def select_columns(self, columns: list[str]) -> "Dataset":
        """Return the same with fewer columns: to decode all of them takes long."""
        return Dataset(*self.decoded, *columns)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield rows."""
        assert self.decoded == ("unformatted", "text")
        return iter([{"text": row["text"]} for row in ROWS])


def written(given: Any, column: str | None, folder: Path) -> list[Any]:
    """Return the texts of the source that is made."""
    lines = write_texts(given, column, folder).read_text().split("\n")[:-1]
    return [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize(
    ("given", "column"),
    [
        *((TEXTS, None), (tuple(TEXTS), None), ((text for text in TEXTS), None), (FRAME["text"], None)),
        *((ROWS, "text"), ((row for row in ROWS), "text"), ({"id": [0, 1, 2], "text": TEXTS}, "text")),
        *((Dataset(), "text"), (FRAME, "text")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_taken(tmp_path: Path, given: Any, column: str | None) -> None:
    """Whatever they come in, the texts are written one after the other, None as an empty one."""
    assert written(given, column, tmp_path) == [text or "" for text in TEXTS]


def test_arrow(tmp_path: Path) -> None:
    """The values of a table of pyarrow are Python's."""
    table = pytest.importorskip("pyarrow").table({"id": [0, 1, 2], "text": TEXTS})
    assert written(table, "text", tmp_path) == [text or "" for text in TEXTS]


@pytest.mark.parametrize(
    ("given", "column", "words"),
    [
        ("a text", None, "a single string\ndo:  give a list of strings, such as"),
        (Path("articles.csv"), None, "texts is a path"),
        (SimpleNamespace(collect=list), "text", r"which has not been computed yet\ndo:  give texts\.collect\(\)"),
        ({"one", "two"}, None, "texts is set, which has no order"),
        (3, None, "texts is int, which cannot be iterated"),
        ([], None, "there are no texts"),
        (["a", 3], None, r"texts\[1\] is not a string: int 3"),
        ([np.float32("nan")], None, r"texts\[0\] is missing: float32"),
        ([pandas.NaT], None, r"texts\[0\] is missing: NaTType"),
        (ROWS, None, r"texts\[0\] is not a string: dict .*\ndo:  name one of its columns by column=…: id, text"),
        (TEXTS, "text", r"texts\[0\] has no column 'text'\nwhy: it is 'one'"),
        (ROWS, "txt", r"texts\[0\] has no column 'txt'\nwhy: it has id, text"),
        (Dataset(), None, "texts is Dataset, .*: id, text"),
        (FRAME, None, "texts is DataFrame, .*: id, text"),
        ({"train": Dataset(), "test": Dataset()}, "text", r"no column 'text'\ndo:  it has train, test"),
        (FRAME[["text", "text"]], "text", r"texts has 2 columns 'text'"),
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

    def texts() -> Iterator[str]:
        yield "one"
        raise OSError("the line is dead")

    with pytest.raises(OSError, match="the line is dead"):
        written(texts(), None, tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Halt, match=rf"the disk of {tmp_path} is full or failing") as raised:
        write_texts(["one"], None, tmp_path)
    assert (raised.value.code, list(tmp_path.iterdir())) == (74, [])
