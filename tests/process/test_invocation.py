"""The numbered folder of each invocation of `run`."""

from pathlib import Path

from chunkvisor.show.invocation import KEPT, open_invocation
from chunkvisor.store.layout import InvocationFiles, Layout
from scripted_workplace import ScriptedWorkplace

TIME = len("2026-01-31 23:59:59 ")
"""What each line of a run begins with."""


def test_next_number(tmp_path: Path) -> None:
    """The next number is found whatever follows the numbers that are there, and whatever else lies
    around.
    """
    for name in ("003_failed", "007-mine", "012 copy", "old_040", "20260131_backup", "notes.txt"):
        (Layout(tmp_path).runs / name).mkdir(parents=True)
    files = open_invocation(Layout(tmp_path))
    assert files is not None
    assert files.name.startswith("013_2")


def test_open_invocation(tmp_path: Path) -> None:
    """`latest` points to the newest, and the number of folders is bounded, but for renamed ones."""
    layout = Layout(tmp_path)
    layout.hidden.mkdir()
    first = open_invocation(layout)
    assert first is not None
    first.folder.rename(layout.runs / "001_the_good_one")
    for _ in range(KEPT + 2):
        files = open_invocation(layout)
        assert files is not None
        assert layout.latest.readlink() == Path(files.name)
    names = {path.name for path in layout.runs.iterdir()}
    assert len(names) == KEPT + 2  # the renamed one and the link
    assert "001_the_good_one" in names


def test_what_a_run_leaves(tmp_path: Path) -> None:
    """The log of a run with a fault has every line that standard error had of it, and no secret."""
    place = ScriptedWorkplace.make(tmp_path, ["t0", "t1", "t2", "t3"], chunk__size=2)
    place.lay("t2", "crash")
    place.write_config("scripted:make", chunk__size=2, env__MY_TOKEN="hush", env__PGPASS="hush")
    ended = place.ends(0)
    files = InvocationFiles(Layout(place.workdir).latest)
    assert files.folder.resolve().name.startswith("001_")
    log = files.log.read_text()
    # Without the times: a second may begin between the one line and the other.
    logged = [line[TIME:] for line in log.splitlines()]
    hints = ("to use it: ", "to check the files: ", "how the run went: ")
    shown = [line[TIME:] for line in ended.stderr.splitlines() if not line[TIME:].startswith(hints)]
    assert [line for line in shown if line not in logged] == []
    assert "out: complete" in log
    assert "hush" not in "".join(path.read_text() for path in files.folder.iterdir())
