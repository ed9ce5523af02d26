"""What a program may give as texts: anything that can be iterated, rows, and a column of a table of any library."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkvisor.errors import Halt
from chunkvisor.sources.given import write_texts

TEXTS = ["one", None, "ümläut\n🙂"]
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]


class Dataset:
    """As `datasets` has it: iterating gives rows, of the columns that were selected."""

    column_names = ("id", "text")

    def __init__(self, columns: tuple[str, ...] = ()) -> None:
        self.columns_decoded = columns

    def with_format(self, kind: None) -> "Dataset":
        """The same in another format; with one of its own, rows would come as tables."""
        assert kind is None
        return Dataset(("unformatted",))

    def select_columns(self, columns: list[str]) -> "Dataset":
        """The same with fewer columns."""
        assert self.columns_decoded == ("unformatted",)
        return Dataset(tuple(columns))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Rows; to decode all columns is what takes long."""
        assert self.columns_decoded == ("text",)
        return iter([{"text": row["text"]} for row in ROWS])


class Frame:
    """As pandas and polars have it: to iterate it gives no rows."""

    columns = ("id", "text")

    def __getitem__(self, column: str) -> list[Any]:
        """A column."""
        return [row[column] for row in ROWS]

    def __iter__(self) -> Iterator[str]:
        """Names."""
        return iter(self.columns)


class LazyFrame:
    """As polars and Spark have it: what it holds is not there yet, and to ask for its columns is dear."""

    @property
    def columns(self) -> Any:
        """They would have to be computed."""
        raise AssertionError

    def collect(self) -> Frame:
        """What it holds."""
        return Frame()


NaT = type("NaTType", (), {})()
"""What pandas has in the place of a date that is missing."""


class Twins(Frame):
    """One with two columns of a name: asked for it, pandas gives both, as a table."""

    columns = ("text", "text")

    def __getitem__(self, column: str) -> Any:
        """Both."""
        return self


class Scalar:
    """As pyarrow has it."""

    def __init__(self, value: str | None) -> None:
        self.value = value

    def as_py(self) -> str | None:
        """The value."""
        return self.value


class Table:
    """As pyarrow has it."""

    column_names = ("id", "text")
    columns = (object(),)

    def __getitem__(self, column: str) -> list[Scalar]:
        """A column."""
        return [Scalar(text) for text in TEXTS]


def written(given: Any, column: str | None, folder: Path) -> list[Any]:
    """The texts of the source that is made."""
    lines = write_texts(given, column, folder).read_text().split("\n")[:-1]
    return [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize(
    ("given", "column"),
    [
        (TEXTS, None),
        (tuple(TEXTS), None),
        ((text for text in TEXTS), None),
        (ROWS, "text"),
        ((row for row in ROWS), "text"),
        ({"id": [0, 1, 2], "text": TEXTS}, "text"),
        (Dataset(), "text"),
        (Frame(), "text"),
        (Table(), "text"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_taken(tmp_path: Path, given: Any, column: str | None) -> None:
    """Whatever they come in, the texts are written one after the other, None as an empty one."""
    assert written(given, column, tmp_path) == [text or "" for text in TEXTS]


@pytest.mark.parametrize(
    ("given", "column", "words"),
    [
        ("a text", None, "a single string\ndo:  give a list of strings, such as"),
        (Path("articles.csv"), None, "texts is a path"),
        (LazyFrame(), "text", r"LazyFrame, which has not been computed yet\ndo:  give texts\.collect\(\)"),
        ([np.float32("nan")], None, r"texts\[0\] is missing: float32"),
        ([NaT], None, r"texts\[0\] is missing: NaTType"),
        (3, None, "texts is int, which cannot be iterated"),
        ([], None, "there are no texts"),
        (ROWS, None, r"texts\[0\] is not a string: dict .*\ndo:  name one of its columns by column=…: id, text"),
        (TEXTS, "text", r"texts\[0\] has no column 'text'\nwhy: it is 'one'"),
        (ROWS, "txt", r"texts\[0\] has no column 'txt'\nwhy: it has id, text"),
        (Dataset(), None, "texts is Dataset, .*: id, text"),
        (Frame(), None, "texts is Frame, .*: id, text"),
        ({"train": Dataset(), "test": Dataset()}, None, "texts is dict, .*: train, test"),
        ({"train": Dataset(), "test": Dataset()}, "text", r"no column 'text'\ndo:  it has train, test"),
        (Twins(), "text", r"texts has 2 columns 'text'"),
        ({"one", "two"}, None, "texts is set, which has no order"),
        (Dataset(), "txt", r"texts has no column 'txt'\ndo:  it has id, text"),
    ],
)
def test_what_is_refused(tmp_path: Path, given: Any, column: str | None, words: str) -> None:
    """What would be taken for other texts than those that were meant is refused, and leaves no file."""
    with pytest.raises(Halt, match=words) as raised:
        written(given, column, tmp_path)
    assert raised.value.code == 78
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "mkstemp"])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """A disk that is full while the texts are written is told in words, with 74, and no file is left."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync" if call == "fsync" else "tempfile.mkstemp", full)
    with pytest.raises(Halt, match=rf"the disk of {tmp_path} is full or failing") as raised:
        write_texts(["one"], None, tmp_path)
    assert (raised.value.code, list(tmp_path.iterdir())) == (74, [])


def test_an_iterator_that_fails(tmp_path: Path) -> None:
    """What the iterator itself raises is raised, and no file is left."""

    def texts() -> Iterator[str]:
        yield "one"
        raise OSError("the line is dead")

    with pytest.raises(OSError, match="the line is dead"):
        written(texts(), None, tmp_path)
    assert list(tmp_path.iterdir()) == []
