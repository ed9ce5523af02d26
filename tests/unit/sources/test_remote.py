"""Sources at addresses: found, told apart, fetched through faults, and named by their addresses in every message."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.errors import Halt
from chunkvisor.sources import fetch
from chunkvisor.sources.request import IngestRequest
from chunkvisor.sources.stage import stage
from chunkvisor.sources.table import StagedTable

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


@dataclass
class Elsewhere:
    """What a file system elsewhere holds, and how often it fails."""

    files: dict[str, bytes] = field(default_factory=dict)
    at_a_time: int = 1 << 20
    """Bytes that come before the connection is lost; what is asked for at once after that comes whole."""
    lost: int = 0
    """Times that it is lost before any byte comes."""
    error: type[Exception] = ConnectionResetError
    opened: int = 0


class FileElsewhere:
    """An open file of it."""

    def __init__(self, elsewhere: Elsewhere, content: bytes) -> None:
        self.elsewhere, self.content, self.place, self.came = elsewhere, content, 0, 0
        elsewhere.opened += 1

    def __enter__(self) -> "FileElsewhere":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def seek(self, place: int) -> None:
        """Go on elsewhere."""
        self.place = place

    def read(self, size: int) -> bytes:
        """The next bytes, until the connection is lost."""
        if self.elsewhere.lost:
            self.elsewhere.lost -= 1
            raise self.elsewhere.error("the connection is lost")
        if self.came >= self.elsewhere.at_a_time:
            raise self.elsewhere.error("the connection is lost")
        data = self.content[self.place :][: min(size, self.elsewhere.at_a_time)]
        self.place, self.came = self.place + len(data), self.came + len(data)
        return data


class FileSystem:
    """As much of fsspec's as is used."""

    def __init__(self, elsewhere: Elsewhere) -> None:
        self.elsewhere = elsewhere

    def _strip_protocol(self, address: str) -> str:
        return address.removeprefix("x://")

    def unstrip_protocol(self, name: str) -> str:
        """The address of a name."""
        return f"x://{name}"

    def info(self, name: str) -> dict[str, Any]:
        """Size and tag."""
        if name not in self.elsewhere.files:
            raise FileNotFoundError(name)
        content = self.elsewhere.files[name]
        return {"name": name, "size": len(content), "ETag": f"tag of {content!r}"[:100], "type": "file"}

    def glob(self, pattern: str, *, detail: bool) -> dict[str, Any]:
        """All files there are, in no order."""
        assert detail
        return {name: self.info(name) for name in reversed(self.elsewhere.files)} | {"b/d": {"type": "directory"}}

    def open(self, name: str, mode: str, *, block_size: int) -> FileElsewhere:
        """For reading."""
        assert (mode, block_size > 0) == ("rb", True)
        return FileElsewhere(self.elsewhere, self.elsewhere.files[name])


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    """A file system behind x://, and no pause between tries."""
    held = Elsewhere()
    monkeypatch.setattr(fsspec, "filesystem", lambda scheme, **_: {"x": FileSystem(held)}[scheme])
    monkeypatch.setattr(fetch, "_PAUSES_S", (0.0,) * 4)
    yield held
    assert not held.lost


def staged(folder: Path, *sources: str, **wanted: Any) -> StagedTable:
    """The table of the request."""
    folder.mkdir()
    stage(IngestRequest(sources=sources, **{"column": "text"} | wanted), folder)
    assert not (folder / "scratch").exists()
    return StagedTable.open(folder)


ROWS = b"text\n" + b"".join(b"text %d\n" % number for number in range(40))


def test_the_same_as_here(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Files elsewhere, one of them compressed, are the table of the same files here; a pattern gives them by name."""
    (tmp_path / "a.csv").write_bytes(ROWS)
    here = staged(tmp_path / "here", str(tmp_path / "a.csv"), str(tmp_path / "a.csv"), columns=("text",))
    elsewhere.files |= {"b/1.csv": ROWS, "b/2.csv.gz": gzip.compress(ROWS)}
    table = staged(tmp_path / "there", "x://b/*", columns=("text",))
    assert (table.digest, table.rows) == (here.digest, 80)
    assert table.place_of(41) == "x://b/2.csv.gz, row 1"
    assert [state[0] for state in table.signature] == ["x://b/1.csv", "x://b/2.csv.gz"]
    assert table.signature == [fetch.state_of("x://b/1.csv"), fetch.state_of("x://b/2.csv.gz")]
    elsewhere.files["b/1.csv"] = ROWS[:-1]
    assert table.signature[0] != fetch.state_of("x://b/1.csv")


def test_faults_that_pass(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """However often the connection is lost, it goes on where it was, as long as something comes in five tries."""
    elsewhere.files["b/a.csv"] = ROWS
    elsewhere.at_a_time, elsewhere.lost = 20, 4
    assert staged(tmp_path / "t", "x://b/a.csv").rows == 40
    assert elsewhere.opened > len(ROWS) // 20


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({"lost": 5}, 75, r"x://b/a.csv cannot be reached, in 5 tries.\nwhy: ConnectionResetError"),
        ({"lost": 1, "error": PermissionError}, 78, r"x://b/a.csv may not be used"),
        ({"lost": 1, "error": ValueError}, 78, r"x://b/a.csv cannot be used"),
        ({"files": {}}, 78, "There is no x://b/a.csv"),
        ({"files": {"b/a.csv": b"text\none\n\ntwo,three\n"}}, 78, r"x://b/a.csv, line 4: the row has 2 fields"),
        ({"files": {"b/a.csv": b""}}, 78, "x://b/a.csv: the file is empty"),
    ],
)
def test_faults_that_stay(elsewhere: Elsewhere, tmp_path: Path, given: dict[str, Any], code: int, words: str) -> None:
    """What does not pass, or is wrong in the file, is told with the address, and nothing is left."""
    elsewhere.files["b/a.csv"] = ROWS
    for name, value in given.items():
        setattr(elsewhere, name, value)
    with pytest.raises(Halt, match=words) as raised:
        staged(tmp_path / "t", "x://b/a.csv")
    assert raised.value.code == code
    assert "fetched" not in str(raised.value)


class OfHttpError(Exception):
    """As aiohttp has it; the address is the one that was answered, mostly signed."""

    __module__ = "aiohttp.client_exceptions"

    def __init__(self, status: int | None = None) -> None:
        super().__init__(f"{status}, url='https://cdn/a.csv?X-Amz-Signature=abc&Expires=1'")
        self.status = status


@pytest.mark.parametrize(
    ("cause", "code", "words"),
    [
        (OfHttpError(503), 75, r"cannot be reached, in 5 tries.\nwhy: OfHttpError: 503, url='https://cdn/a.csv\?…'"),
        (OfHttpError(429), 75, "cannot be reached"),
        (OfHttpError(), 75, "cannot be reached"),
        (TimeoutError(), 75, "cannot be reached"),
        (OfHttpError(403), 78, r"may not be used.\nwhy: PermissionError: 403, url='https://cdn/a.csv\?…'"),
        (OfHttpError(404), 78, "There is no http://h/a.csv"),
        (RuntimeError("of another file system"), 78, "There is no http://h/a.csv"),
        (None, 78, "There is no http://h/a.csv"),
    ],
)
def test_what_fsspec_calls_missing(
    monkeypatch: pytest.MonkeyPatch, cause: Exception | None, code: int, words: str
) -> None:
    """A server that is down, or refuses, is told from a file that is not there; no signature is repeated."""
    monkeypatch.setattr(fetch, "_PAUSES_S", (0.0,) * 4)

    def info() -> None:
        raise FileNotFoundError("http://h/a.csv") from cause

    with pytest.raises(Halt, match=words) as raised:
        fetch.persistently("http://h/a.csv", info)
    assert raised.value.code == code


def test_changed_while_it_is_read(elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is another one at the end is refused with 75, and so is one that comes short."""
    elsewhere.files["b/a.csv"] = ROWS

    def change(self: FileElsewhere, *_: object) -> None:
        elsewhere.files["b/a.csv"] = ROWS + b"one more\n"

    monkeypatch.setattr(FileElsewhere, "__exit__", change)
    with pytest.raises(Halt, match=r"x://b/a\.csv was changed while it was being read") as raised:
        staged(tmp_path / "t", "x://b/a.csv")
    assert raised.value.code == 75
    with pytest.raises(Halt, match=r"has 999 bytes, of which \d+ came"):
        fetch.fetch("x://b/a.csv", tmp_path / "short", 999)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x://b/a.xls", "x://b/a.xls: the suffix tells no format"),
        ("x://b/nothing*.csv", "No file matches x://b/nothing"),
        ("nope://b/a.csv", "what reads nope:// is not installed"),
    ],
)
def test_what_cannot_be_a_source(
    elsewhere: Elsewhere, tmp_path: Path, source: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address of no known kind or format, and a pattern that matches nothing, are refused in words."""
    if source.startswith("nope"):
        monkeypatch.undo()
    with pytest.raises(Halt, match=words) as raised:
        staged(tmp_path / "t", source)
    assert raised.value.code == 78
