"""A run in a terminal: news scroll by, and a few lines at the bottom say how far the run is.

The cursor is not hidden, the screen is not cleared, and the alternate screen is not used. So the
terminal is as it should be whatever kills the program, and the news stay there.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live as RichLive
from rich.text import Text

from chunkvisor.events.event import Event, Note, Weight, plain
from chunkvisor.events.journal import Logged
from chunkvisor.printing import print_lines
from chunkvisor.show.lines import Observer, can_draw, heartbeat_s
from chunkvisor.show.snapshot import Snapshot, percent, snapshot_of, take_snapshot
from chunkvisor.show.status import Follower, status_of
from chunkvisor.store.layout import Layout, is_workdir, require_workdir
from chunkvisor.units import counted, human_moment

REFRESH_S = 0.5
STYLES = {Weight.NEWS: "", Weight.CARE: "yellow", Weight.LOSS: "red"}
_MARKS = {Weight.NEWS: "", Weight.CARE: "note: ", Weight.LOSS: "attention: "}  # they need no color


def view(now: Snapshot) -> list[Text]:
    """Return a snapshot as lines; on a low terminal the last ones are cut off."""
    drawn = [_line(plain(now.stage), "bold")]
    if now.total("rows"):
        drawn.append(_line(f"{bar(now.share, 30)} {percent(now.share)}", "cyan"))
        drawn.append(Text(", ".join([now.progress, *now.rates])))
    drawn.append(Text(_MARKS[now.weight] + plain(now.health), STYLES[now.weight] or "green"))
    if len(now.outputs) > 1:
        for name, output in now.outputs.items():
            words = f"{percent(output.share):>5}  {plain(name)}, {counted(output.rows, 'row')}"
            drawn.append(_line(f"{bar(output.share, 20)} {words}", "dim"))
    return [*drawn, *map(_line, now.workers)]


def _line(words: str, style: str = "") -> Text:
    return Text(words, style, no_wrap=True, overflow="ellipsis")


def bar(share: float, width: int) -> str:
    """Return a bar of characters, which can be read without colors."""
    utf8 = (sys.stderr.encoding if sys.stderr else "utf-8").lower().startswith("utf")
    done, todo = ("━", "─") if utf8 else ("#", "-")
    cells = int(min(1.0, max(0.0, share)) * width)
    return done * cells + todo * (width - cells)


class _Terminal(RichConsole):
    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 - a kill would leave it hidden
        return False


class Live(Observer):
    """Draws a run. Errors of the terminal, which may be gone, are ignored."""

    def __init__(self, stream: TextIO) -> None:
        self._console = _Terminal(file=stream, highlight=False, markup=False, emoji=False)
        self._live: RichLive | None = None
        self._news = list[Logged]()
        self._drawn_s = 0.0

    def event(self, event: Event) -> None:
        self._news.append(Logged(self.state.last_event_s, "", event))
        # Draw at once: at the start of a run, it may be long until the next tick.
        if event.stage and not self.state.chunks_here:
            self._drawn_s = 0.0
            self.tick()

    def tick(self) -> None:
        if time.monotonic() - self._drawn_s >= REFRESH_S and self.state.workdir:
            self._drawn_s = time.monotonic()
            self.update(take_snapshot(self.state), self._news)
            self._news.clear()

    def close(self) -> None:
        """Remove the view, and print how the run has ended."""
        self.clear(())
        self.say(snapshot_of(self.state).closing_line)

    def say(self, text: str) -> None:
        self._news.append(Logged(time.time(), "", Note(text)))
        if self._live is None:
            self.clear(self._news)
            self._news.clear()

    def update(self, now: Snapshot, news: Iterable[Logged]) -> None:
        """Print the news, each with the time of day, and draw the snapshot below them."""
        with suppress(OSError, ValueError):
            if self._live is None:
                self._live = RichLive(
                    console=self._console,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                    vertical_overflow="crop",
                )
                self._live.start()
            self._print(news)
            # The cursor stays on an empty line, where a shell's prompt appears after a kill.
            self._live.update(Group(*view(now), Text()), refresh=True)

    def clear(self, news: Iterable[Logged]) -> None:
        """Remove the drawn lines, and print the last news in their place."""
        with suppress(OSError, ValueError):
            if self._live is not None:
                self._live.stop()
            self._live = None
            self._print(news)

    def _print(self, news: Iterable[Logged]) -> None:
        for t, _, event in news:
            if event.line:
                time_of_day = f"{human_moment(t).split()[1]} "
                text = Text.assemble((time_of_day, "dim"), (event.line, STYLES[event.weight]))
                self._console.print(text, soft_wrap=True)


def _follow(workdir: Path) -> Iterator[tuple[Follower, Snapshot]]:
    """Wait for a run to begin, and yield snapshots of it until it has ended.

    Raises Halt (78) if the folder is not a workdir.
    """
    if not is_workdir(Layout(workdir)) and not workdir.is_file():
        print_lines(f"waiting for a run to begin in {workdir} (Ctrl-C ends this)", err=True)
        while not is_workdir(Layout(workdir)):
            time.sleep(REFRESH_S)
    run = Follower(require_workdir(workdir))
    while True:
        yield run, run.refresh()
        if not run.alive:
            return
        time.sleep(REFRESH_S)


def watch_view(workdir: Path) -> None:
    """Show the live view until the run ends; a line now and then if standard output cannot draw.

    Raises Halt (78) if the folder is not a workdir.
    """
    live = Live(sys.stdout) if can_draw(sys.stdout) else None
    said_s = -float("inf")
    try:
        for run, now in _follow(workdir):
            if live is not None:
                live.update(now, run.news)
            elif run.alive and time.monotonic() - said_s >= heartbeat_s(now.elapsed_s):
                said_s = time.monotonic()
                if not print_lines(f"{human_moment(time.time())} {now.line}"):
                    return  # the reader is gone, as in `status --watch | head`
    finally:
        if live is not None:
            live.clear(())


def watch_json(workdir: Path) -> None:
    """Print `status --json` on one line at each change, until the run ends.

    Raises Halt (78) if the folder is not a workdir.
    """
    shown = None
    for run, now in _follow(workdir):
        content = status_of(run, now).to_dict()
        if content != shown:
            shown = content
            if not print_lines(json.dumps(content)):
                return
