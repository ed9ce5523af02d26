"""The child process that reads sources: its table, its errors, and its end."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.sources.child import stage_table, try_first_row
from chunkvisor.sources.resolve import IngestRequest
from chunkvisor.sources.table import StagedTable
from harness import halts, lives
from ingest_files import write_texts


def nothing() -> None:
    """Wait."""


def request_for(path: Path) -> IngestRequest:
    """Return a request for the column `text` of one file."""
    return IngestRequest(sources=(str(path),), column="text")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file that takes the child far longer than the parent's first look."""
    path = tmp_path / "large.txt"
    path.write_bytes(b"".join(b"text %d\n" % number for number in range(400_000)))
    return path


def test_table_is_put_in_place(tmp_path: Path) -> None:
    """The folder appears whole, without leftovers, and replaces the one before; a refusal leaves
    that as it was.
    """
    source, folder = tmp_path / "a.csv", tmp_path / "state" / "odd name; $x"
    for texts in (["x", "y", "x"], ["z"]):
        write_texts(source, texts)
        table = stage_table(request_for(source), folder, nothing)
        (folder.with_name(folder.name + ".partial")).mkdir()
    assert table.texts(0, 1) == ["z"]
    for content, words in (
        ("id,text\n1\n", "/a.csv, line 2: "),
        ("id,text\n", "The sources have no rows: "),
    ):
        source.write_text(content)
        with halts(78) as caught:
            stage_table(request_for(source), folder, nothing)
        assert words in caught.value.what
    assert table == StagedTable.open(folder)
    assert table.texts(0, 1) == ["z"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert "scratch" not in [path.name for path in folder.iterdir()]


def test_the_first_row(tmp_path: Path) -> None:
    """What is wrong with the request is found by its first row, also if `where` leaves that row
    out.
    """
    write_texts(tmp_path / "a.csv", ["x", "y"])
    sources = (str(tmp_path / "a.csv"),)
    try_first_row(IngestRequest(sources, column="text", where="text = 'y'"))
    with pytest.raises(Halt, match="there is no column 'txet'"):
        try_first_row(IngestRequest(sources, column="txet"))
    with pytest.raises(Halt, match="`where` fails"):
        try_first_row(IngestRequest(sources, column="text", where="txet = 'y'"))


@pytest.mark.parametrize(
    ("signum", "code"),
    [
        (signal.SIGKILL, ExitCode.TRY_AGAIN),
        (signal.SIGUSR1, ExitCode.TRY_AGAIN),
        (signal.SIGXCPU, ExitCode.TRY_AGAIN),
        (signal.SIGRTMIN + 1, ExitCode.TRY_AGAIN),
        (signal.SIGSEGV, ExitCode.BUG),
    ],
)
def test_child_that_dies(
    tmp_path: Path, large: Path, signum: int, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that another process has ended is worth another try, a crash is a bug; both name the
    log.
    """
    # The child is a new interpreter, whose command line tells what it is.
    monkeypatch.setenv("CHUNKVISOR_TEST_FORKS", "no")

    def strike() -> None:
        for child in psutil.Process().children():
            if "chunkvisor.sources.stage" in child.cmdline():
                child.send_signal(signum)

    with halts(code) as caught:
        stage_table(request_for(large), tmp_path / "table", strike)
    assert caught.value.log is not None
    assert not (tmp_path / "table").exists()


PARENT = """
import os, signal, sys
from pathlib import Path
import psutil
from chunkvisor.sources.child import stage_table
from chunkvisor.sources.resolve import IngestRequest

def die():
    assert not {"duckdb", "_duckdb", "torch"} & set(sys.modules)
    print(psutil.Process().children()[0].pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

stage_table(IngestRequest(sources=(sys.argv[1],), column="text"), Path(sys.argv[2]), die)
"""


def test_child_dies_with_the_parent(tmp_path: Path, large: Path) -> None:
    """When the parent, which has not imported DuckDB, is killed, the child is gone without
    finishing.
    """
    parent = subprocess.run(
        [sys.executable, "-c", PARENT, str(large), str(tmp_path / "table")],
        stdout=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    child = int(parent.stdout)
    deadline = time.monotonic() + 20
    while lives(child):
        assert time.monotonic() < deadline, "the child outlives its parent"
        time.sleep(0.01)
    assert not (tmp_path / "table.partial" / "table.json").exists()


def test_small_memory(tmp_path: Path, large: Path) -> None:
    """The least memory that a config may give is enough for a moderate file, of a path that is not
    UTF-8.
    """
    large = large.rename(large.with_name("\udcff.txt"))
    request = IngestRequest(sources=(str(large),), column="text", memory_limit_bytes=64 << 20)
    assert stage_table(request, tmp_path / "table", nothing).distinct == 400_000


def test_small_memory_for_sql(tmp_path: Path) -> None:
    """It is enough for sql, where and columns of many JSON lines as well, which are not held at
    once.
    """
    path = tmp_path / "a.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for number in range(60_000):
            label = number % 3 if number % 5 else f'"{number % 3}"'
            file.write(f'{{"id": {number}, "text": "t{number}", "label": {label}}}\n')
    request = replace(
        request_for(path),
        column=None,
        sql="text || label",
        where="label = '1'",
        columns=("id", "label"),
        memory_limit_bytes=64 << 20,
    )
    assert stage_table(request, tmp_path / "table", nothing).distinct == 20_000
