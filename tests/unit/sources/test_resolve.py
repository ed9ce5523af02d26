"""Which files sources mean, here and at addresses: found, told apart, fetched through faults, and
named in messages.
"""

import gzip
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.errors import Halt
from chunkvisor.sources.remote import download, remote_state
from chunkvisor.sources.resolve import IngestRequest, resolve, signature
from chunkvisor.sources.stage import stage
from chunkvisor.sources.table import StagedTable
from harness import halts
from ingest_files import Stage, rows_of, write_texts


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (
            lambda path: path.mkdir(),
            "a.csv",
            "a.csv is not a regular file.*Name the files in the folder",
        ),
        (lambda path: None, "a.csv", "There is no file .*a.csv."),
        (lambda path: None, "*.csv", r"No file matches .*\*.csv."),
        (
            lambda path: path.touch(),
            "a.csv.bz2",
            "a.csv.bz2: files of this kind are not read.*Known are .csv",
        ),
        (
            lambda path: path.touch(),
            "a.parquet.gz",
            "a.parquet.gz: files of this kind are not read.",
        ),
        (
            lambda path: path.touch(),
            "a.feather",
            "a.feather: files of this kind are not read.*'rows.parquet'",
        ),
        (lambda path: path.symlink_to("/dev/null"), "a.csv", "a.csv is not a regular file."),
    ],
)
def test_what_is_not_a_source(tmp_path: Path, make: Any, name: str, words: str) -> None:
    """What is not a file of a known format is refused by name, with what to do about it."""
    make(tmp_path / name)
    with halts(78, f"(?s){words}"):
        resolve([str(tmp_path / name)])


def test_patterns(tmp_path: Path) -> None:
    """A pattern gives the files that match, sorted; hidden ones only if it names them."""
    for name in ("a/b.csv", "a/c/d.csv", ".hidden/e.csv", "a/.f.csv", "p-10.csv", "p-2.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\nx\n")

    def names(pattern: str) -> list[str]:
        return [str(file.path.relative_to(tmp_path)) for file in resolve([str(tmp_path / pattern)])]

    assert names("**/*.csv") == ["a/b.csv", "a/c/d.csv", "p-10.csv", "p-2.csv"]
    assert names("[p]*.csv") == ["p-10.csv", "p-2.csv"]
    assert names(".hid*/*.csv") == [".hidden/e.csv"]
    assert len(resolve([str(tmp_path / "a" / "b.csv")] * 2)) == 2


def test_odd_names(tmp_path: Path, stage_here: Stage) -> None:
    """A name that looks like a pattern is that file, in each format."""
    names = ["year=2020; echo.txt", "[x]*'.parquet", "a?.csv"]
    for name in names:
        write_texts(tmp_path / name, [name])
    assert rows_of(stage_here(*names, column="text")) == names


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("no column", "The template names no column"),
        ("{a} {", "stray { at character 5"),
        ("{}", "stray { at char"),
    ],
)
def test_impossible_template(template: str, words: str) -> None:
    """An impossible template is refused before anything is read."""
    with pytest.raises(Halt, match=words):
        assert IngestRequest((), template=template).parts


@dataclass
class Elsewhere:
    """What a file system elsewhere holds, and how it fails; as much of fsspec's as is used."""

    files: dict[str, bytes] = field(default_factory=dict)
    error: type[Exception] | None = None

    def _strip_protocol(self, address: str) -> str:
        return address.removeprefix("x://")

    def unstrip_protocol(self, name: str) -> str:
        """Return the address of a name."""
        return f"x://{name}"

    def info(self, name: str) -> dict[str, Any]:
        """Return size and tag."""
        if name not in self.files:
            raise FileNotFoundError(name)
        content = self.files[name]
        return {
            "name": name,
            "size": len(content),
            "ETag": f"tag of {content!r}"[:100],
            "type": "file",
        }

    def glob(self, pattern: str, *, detail: bool) -> dict[str, Any]:
        """Return all files there are, in no order."""
        assert detail
        return {name: self.info(name) for name in reversed(self.files)} | {
            "b/d": {"type": "directory"}
        }

    def open(self, name: str, mode: str, *, block_size: int) -> io.BytesIO:
        """Open for reading, unless the connection is lost."""
        if self.error is not None:
            raise self.error(
                "at https://cdn/a.csv?X-Amz-Signature=abc&Expires=1 the connection is lost"
            )
        return io.BytesIO(self.files[name])


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    """A file system behind x://."""
    fsspec, held = pytest.importorskip("fsspec", reason="fsspec is not installed"), Elsewhere()
    filesystem = fsspec.filesystem
    monkeypatch.setattr(
        fsspec, "filesystem", lambda scheme, **_: held if scheme == "x" else filesystem(scheme)
    )
    return held


def staged(folder: Path, *sources: str, **wanted: Any) -> StagedTable:
    """Return the table of the request."""
    folder.mkdir()
    stage(IngestRequest(sources=sources, **{"column": "text"} | wanted), folder)
    return StagedTable.open(folder)


ROWS = b"text\n" + b"".join(b"text %d\n" % number for number in range(40))


def test_the_same_as_here(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Files elsewhere, one of them compressed, are the table of the same files here; a pattern
    gives them by name.
    """
    (tmp_path / "a.csv").write_bytes(ROWS)
    here = staged(
        tmp_path / "here", str(tmp_path / "a.csv"), str(tmp_path / "a.csv"), columns=("text",)
    )
    elsewhere.files |= {"b/1.csv": ROWS, "b/2.csv.gz": gzip.compress(ROWS)}
    table = staged(tmp_path / "there", "x://b/*", columns=("text",))
    assert (table.digest, table.rows) == (here.digest, 80)
    assert table.places_of([41]) == ["x://b/2.csv.gz:3"]
    before = signature(resolve(["x://b/*"]))
    assert list(before) == ["x://b/1.csv", "x://b/2.csv.gz"]
    elsewhere.files["b/1.csv"] = ROWS[:-1]
    assert before["x://b/1.csv"] != remote_state("x://b/1.csv")


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (
            {"error": ConnectionResetError},
            75,
            r"x://b/a.csv cannot be reached.\nwhy: ConnectionResetError: .*a\.csv\?… the",
        ),
        ({"error": PermissionError}, 78, "x://b/a.csv cannot be read.*PermissionError"),
        ({"error": ValueError}, 78, "x://b/a.csv cannot be read.*ValueError"),
        ({"files": {}}, 78, "x://b/a.csv cannot be read.*FileNotFoundError"),
        (
            {"files": {"b/a.csv": b"text\none\n\ntwo,three\n"}},
            78,
            r"x://b/a.csv, line 4: the row has 2 fields",
        ),
    ],
)
def test_faults(
    elsewhere: Elsewhere, tmp_path: Path, given: dict[str, Any], code: int, words: str
) -> None:
    """What does not pass, or is wrong in the file, is told with the address; no signature is
    repeated.
    """
    elsewhere.files["b/a.csv"] = ROWS
    for name, value in given.items():
        setattr(elsewhere, name, value)
    with halts(code, f"(?s){words}") as raised:
        staged(tmp_path / "t", "x://b/a.csv")
    assert "fetched" not in str(raised.value)


def test_changed_while_it_is_read(
    elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is another one at the end is refused with 75, and so is one that comes short."""
    elsewhere.files["b/a.csv"] = ROWS

    def change(name: str, *_: object, **__: object) -> io.BytesIO:
        elsewhere.files["b/a.csv"] = ROWS + b"one more\n"
        return io.BytesIO(ROWS)

    monkeypatch.setattr(elsewhere, "open", change)
    with halts(75, r"x://b/a\.csv was changed while it was being read"):
        staged(tmp_path / "t", "x://b/a.csv")
    with pytest.raises(Halt, match=r"has \d+ bytes, of which \d+ came"):
        download("x://b/a.csv", tmp_path / "short")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x://b/a.xls", "x://b/a.xls: files of this kind are not read"),
        ("x://b/nothing*.csv", "No file matches x://b/nothing"),
        ("nope://b/a.csv", "addresses of this kind cannot be read"),
    ],
)
@pytest.mark.usefixtures("elsewhere")
def test_what_cannot_be_a_source(source: str, words: str) -> None:
    """An address of no known format or kind, and a pattern that matches nothing, are refused in
    words.
    """
    with halts(78, words):
        signature(resolve([source]))
