"""What a person sees of a run: in a terminal, in a dumb one, in a pipe, in JSON, quietly, and from
another terminal.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import kill, wait_for
from scripted_workplace import ScriptedWorkplace
from terminal import Terminal

TEXTS = [f"t{number}" for number in range(8)]
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
COLOUR = re.compile(rb"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;)[0-9;]*m")

Open = Callable[..., Terminal]


@pytest.fixture
def place(tmp_path: Path) -> ScriptedWorkplace:
    """Four chunks; the third waits until it is released."""
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2)
    place.lay("t4", "wait_for_release")
    return place


@pytest.fixture
def opened(place: ScriptedWorkplace) -> Iterator[Open]:
    """Opens terminals for commands, and closes them at the end."""
    terminals = []

    def open_terminal(*arguments: str, **options: object) -> Terminal:
        terminals.append(Terminal(place.command(*arguments), **options))  # type: ignore[arg-type]
        return terminals[-1]

    yield open_terminal
    place.release()
    for terminal in terminals:
        terminal.close()


def half_way(place: ScriptedWorkplace, look: Callable[[], list[str]]) -> list[str]:
    """What is seen once two chunks are done and the third computes; a signal just before it finds
    nothing to finish.
    """
    wait_for(lambda: any("t4" in call for call in place.calls()))

    def seen() -> list[str] | None:
        lines = look()
        words = "\n".join(lines)
        return lines if "4 of 8 rows" in words and "CPU: out chunk 2, computing" in words else None

    return wait_for(seen)


def test_live_view(place: ScriptedWorkplace, opened: Open) -> None:
    """A terminal shows what happens, how far it is and whether to worry; at the end only what has
    come of it stays.
    """
    place.lay("t0", "crash")
    terminal = opened("run", str(place.config_path), columns=40)
    terminal.wait_for("CPU: out chunk 2, computing")  # what crashed is tried before or after it
    screen = terminal.wait_for("note: 1 attempt failed")
    assert any(line.startswith("computing, ") for line in screen)
    assert any(line.startswith(("━", "─")) and line.endswith(" %") for line in screen), screen
    assert any(" of 8 rows" in line for line in screen)
    assert any("crashed" in line for line in terminal.everything())
    place.release()
    assert terminal.finish() == 0
    left = terminal.everything()
    assert not [line for line in left if line.startswith(("computing, ", "CPU:", "note:", "━"))]
    assert "chunks encoded in" in " ".join("".join(left).split())
    assert terminal.screen.cursor.x == 0
    assert not terminal.screen.cursor.hidden
    assert b"\x1b[?25l" not in terminal.written
    assert b"\x1b[?1049h" not in terminal.written
    assert COLOUR.search(terminal.written)


def test_dumb_terminal(place: ScriptedWorkplace, opened: Open) -> None:
    """A terminal that cannot move its cursor gets lines, and no escape sequence."""
    terminal = opened("run", str(place.config_path), columns=200, TERM="dumb")
    place.release()
    assert terminal.finish() == 0
    assert b"\x1b" not in terminal.written
    lines = [line for line in terminal.everything() if place.folder.name not in line]
    assert all(STAMP.match(line) for line in lines)
    assert "to do: 8 of 8 texts, 4 of 4 chunks" in "\n".join(lines)


def test_interrupted(place: ScriptedWorkplace, opened: Open) -> None:
    """Ctrl-C finishes what is under way and says so; the last words follow on a clean terminal,
    cursor and all.
    """
    terminal = opened("run", str(place.config_path))
    half_way(place, terminal.look)
    terminal.type(b"\x03")
    terminal.wait_for("stopping: ")
    place.release()
    assert terminal.finish() == 130
    left = terminal.look()
    assert not [line for line in left if line.startswith("stopping: ")]
    assert any(line.startswith("chunkvisor: stopped by SIGINT") for line in left)
    assert not terminal.screen.cursor.hidden


def test_pipe(place: ScriptedWorkplace) -> None:
    """Without a terminal: one line for each change of state with its time, no control characters,
    words at the end.
    """
    place.lay("t0", "crash")
    place.release()
    ended = place.apart()
    assert (ended.returncode, ended.stdout) == (0, "")
    assert all(line.isprintable() and STAMP.match(line) for line in ended.stderr.splitlines()), (
        ended.stderr
    )
    assert "4 chunks encoded in" in ended.stderr


@pytest.mark.parametrize(("fault", "code"), [("crash", 0), ("value_error!", 3)])
def test_quiet(place: ScriptedWorkplace, fault: str, code: int) -> None:
    """Quietly only what is lost is said, and the last words; a fault that is mended is not. The
    codes are the same.
    """
    place.lay("t0", fault)
    place.release()
    ended = place.ends(code, "--quiet")
    assert [line.partition("finished")[0][-12:] for line in ended.stderr.splitlines()[1:2]] == [
        "chunkvisor: "
    ] * (code > 0)
    assert "out row 0" in ended.stderr or not code


def test_json(place: ScriptedWorkplace) -> None:
    """With --log-format json every line of standard error is an object, last words and refusals
    included.
    """
    place.lay("t0", "value_error!")
    place.release()
    ended = place.ends(3, "--log-format", "json")
    events = [json.loads(line) for line in ended.stderr.splitlines()]
    assert all(event["t"] > 0 for event in events)
    names = [event["event"] for event in events]
    assert names[:2] == ["invoked", "run_started"]
    assert "chunk_committed" in names
    assert (names[-1], events[-1]["code"], names.count("halted")) == ("halted", 3, 1)
    place.write_config("scripted:make", chunk__size="many")
    (line,) = place.ends(78, "--log-format", "json", "--quiet").stderr.splitlines()
    assert (json.loads(line)["code"], json.loads(line)["event"]) == (78, "halted")
    assert place.ends(78, "--quiet").stderr.startswith("chunkvisor: ")


def test_watch(place: ScriptedWorkplace, opened: Open) -> None:
    """`status --watch` may be opened first; it shows the same view, and at a kill says so, and what
    comes next.
    """
    terminal = opened("status", "--watch", str(place.config_path))
    terminal.wait_for("waiting for a run to begin in")
    process = place.begin()
    screen = half_way(place, terminal.look)
    assert any(line.startswith("computing, ") for line in screen)
    assert any(line.startswith("CPU: out chunk 2, computing") for line in screen)
    kill(process)
    assert terminal.finish() == 0
    left = terminal.everything()
    assert not [line for line in left if line.startswith(("computing, ", "CPU"))]
    assert any(line.startswith("stopped: its process was killed") for line in left)


def test_watch_is_left_by_ctrl_c(place: ScriptedWorkplace, opened: Open) -> None:
    """Ctrl-C ends the looking on, not the run; after a `kill -9` the cursor stands on a line of its
    own.
    """
    process = place.begin_to(1)
    terminal = opened("status", "--watch", str(place.workdir))
    half_way(place, terminal.look)
    killed = opened("status", "--watch", str(place.workdir))
    half_way(place, killed.look)
    killed.process.kill()
    killed.finish()
    assert (killed.screen.cursor.hidden, killed.screen.cursor.x) == (False, 0)
    assert not killed.look()[killed.screen.cursor.y]
    terminal.type(b"\x03")
    assert terminal.finish() == 0
    assert "Traceback" not in "\n".join(terminal.everything())
    assert process.poll() is None
    place.release()
    assert process.wait(60) == 0
    process.communicate()


def test_watch_in_a_pipe(place: ScriptedWorkplace) -> None:
    """With --json it prints one object for each change, without a terminal lines; it ends when the
    run has ended.
    """
    process = place.begin_to(3)
    watching = place.start("status", "--watch", str(place.workdir), "--json")
    lines = place.start("status", "--watch", str(place.workdir))
    assert watching.stdout is not None
    first = watching.stdout.readline()
    place.release()
    rest, stderr = watching.communicate(timeout=60)
    said, _ = lines.communicate(timeout=60)
    assert (process.wait(60), watching.returncode, stderr) == (0, 0, "")
    process.communicate()
    states = [json.loads(line)["state"] for line in [first, *rest.splitlines()]]
    assert (states[0], states[-1]) == ("running", "complete")
    assert all(line.isprintable() for line in said.splitlines())
    assert "complete\n" in said
    assert place.does("status", "--watch").stdout.startswith("complete\n")
