"""A run in a terminal: news scroll by, and a few lines at the lower end say how far it is.

The cursor is not hidden, the screen not cleared and the alternate one not used: whatever kills the program, the
terminal is as it should be, and what has scrolled by stays there.
"""

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live as RichLive
from rich.text import Text

from chunkvisor.events.event import Doing, Draining, Event, Resolving, Severity, Waiting, plain
from chunkvisor.events.state import COMPUTING, NewsLine, RunState
from chunkvisor.printing import say, write
from chunkvisor.show.lines import (
    LOGGER,
    can_draw,
    closing_line,
    heartbeat_s,
    how_far,
    in_notebook,
    percent,
    progress_line,
    rates,
    stage,
)
from chunkvisor.show.observer import Observer
from chunkvisor.show.snapshot import DeviceView, Snapshot, WorkerView, look_at, snapshot_of
from chunkvisor.show.status import Follower, State, read_status
from chunkvisor.store.layout import Layout, is_workdir, require_workdir
from chunkvisor.units import counted, human_bytes, human_elapsed, human_moment, printable, wrapped

REFRESH_S = 0.5
_STYLES = {Severity.NEWS: "", Severity.CARE: "yellow", Severity.LOSS: "red"}
_MARKS = {Severity.NEWS: "", Severity.CARE: "note: ", Severity.LOSS: "attention: "}
"""They need no color."""
_MIN_COLUMNS, _WIDE = 20, 120


def view(now: Snapshot, columns: int, lines: int) -> list[Text]:
    """Draw a snapshot as lines that fit: none is wider than `columns`, and there are no more than `lines`.

    If room is short, workers prepared ahead go first, then devices and outputs.
    """
    head = Text(plain(stage(now)), "bold")
    head.append(f", {human_elapsed(now.elapsed_s)} so far", "not bold")
    top = [head]
    if now.total("rows"):
        done = f"{percent(now.share):>6}"  # 100 % does not touch the bar
        top.append(bar(now.share, columns - len(done)).append(done))
        top.append(Text(", ".join([how_far(now)[0], *rates(now)])))
    style = _STYLES[now.severity] or "green"
    words = wrapped(_MARKS[now.severity] + plain(now.health), columns, len("note: "))
    health = [Text(line, style) for line in words.splitlines()[: 4 if lines >= 12 else 1]]
    several = len(now.outputs) > 1
    body = list[Text]()
    for name, output in now.outputs.items() if several else ():
        line = Text(f"{plain(name):20.20}  ").append_text(bar(output.share, 20))
        body.append(line.append(f"{percent(output.share):>6}  {counted(output.rows, 'row')}", "dim"))
    for device in now.devices:
        body.append(_device(device, several, columns))
        if ahead := [f"{_chunk(each, several)} {each.phase}" for each in device.workers[1:] if not each.computing]:
            body.append(Text(f"{'':<6}next: {', '.join(ahead)}", "dim"))
    free = max(0, lines - len(top) - len(health))
    if len(body) > free:
        body = [line for line in body if not line.plain.startswith(" ")]
    if len(body) > free:
        body = [*body[: max(0, free - 1)], Text(f"and {len(body) - free + 1} more", "dim")][:free]
    drawn = [*top, *body, *health][:lines]
    for line in drawn:
        line.no_wrap = True
        line.truncate(columns, overflow="ellipsis")
    return drawn


def _device(device: DeviceView, several: bool, columns: int) -> Text:
    """Draw the device and the worker that computes on it, or is the next to do so."""
    line, gpu, giga = Text(f"{device.label:<6}", "bold"), device.gpu, 1 << 30
    fields = list[str]()
    if gpu.get("memory_total_bytes"):
        fields.append(f"{gpu.get('memory_used_bytes', 0.0) / giga:.0f}/{gpu['memory_total_bytes'] / giga:.0f} GiB")
    if not device.workers:
        return line.append("  ".join(["idle", *fields]), "not bold dim")
    worker = device.workers[0]
    share = worker.texts_done / max(1, worker.texts)
    line.append(f"{_chunk(worker, several):<10} ", "not bold")
    line.append(f"{worker.phase:<10} ", "not bold " + ("cyan" if worker.computing else "dim"))
    if columns >= 80:
        line.append_text(bar(share, 12))
    fields = [f"{percent(share):>6}", *[f"batch {worker.batch_rows}"] * bool(worker.batch_rows), *fields]
    fields += [f"RAM {human_bytes(worker.rss_bytes)}"] if worker.rss_bytes is not None else []
    units = ("utilization", "% busy"), ("temperature_c", "°C"), ("power_w", "W")
    fields += [f"{gpu[name]:.0f} {unit}" for name, unit in units if name in gpu and columns >= _WIDE]
    others = sum(each.computing for each in device.workers) - 1
    return line.append("  ".join(fields + [f"and {others} more"] * (others > 0)), "not bold")


def _chunk(worker: WorkerView, several: bool) -> str:
    """Name the chunk; with its output, if there are several."""
    return f"{worker.key.output} chunk {worker.key.chunk}" if several else f"chunk {worker.key.chunk}"


def bar(share: float, width: int) -> Text:
    """Draw a bar that can be read without colors, too."""
    utf8 = (sys.stderr.encoding if sys.stderr else "utf-8").lower().startswith("utf")
    done, todo = ("━", "─") if utf8 else ("#", "-")
    cells = int(min(1.0, max(0.0, share)) * width)
    return Text(done * cells, "cyan").append(todo * (width - cells), "dim")


def line_of(news: NewsLine, columns: int) -> Text:
    """Draw news with the time of day, in lines of so many columns."""
    time_of_day = f"{human_moment(news.t).split()[1]} "
    words = wrapped(time_of_day + news.words, max(_MIN_COLUMNS, columns), len(time_of_day))
    return Text.assemble((time_of_day, "dim"), (words[len(time_of_day) :], _STYLES[news.severity]))


class _Terminal(RichConsole):
    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 - rich would hide it, and a kill leave it so
        return False


class Screen:
    """Draws on a terminal; an error of the terminal (it may be gone) is passed over."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._console = _Terminal(file=self._stream, highlight=False, markup=False, emoji=False)
        self._live: RichLive | None = None
        self._frame: list[Text] = []

    def draw(self, now: Snapshot, news: Collection[NewsLine] = ()) -> bool:
        """Show the news above, each with the time of day, and the snapshot below; what is unchanged stays as it is.

        False if nothing was shown: a job in the background leaves the terminal to the one in front.
        """
        with contextlib.suppress(OSError, ValueError):  # not our controlling terminal, or closed
            if os.tcgetpgrp(self._stream.fileno()) != os.getpgrp():
                self.__init__(self._stream)  # type: ignore[misc]  # what is drawn next begins anew, below
                return False
        size = self._console.size
        frame = view(now, max(_MIN_COLUMNS, size.width - 1), max(2, size.height - 2))
        if news or frame != self._frame:
            self._frame = frame
            with contextlib.suppress(OSError, ValueError):
                if self._live is None:
                    self._live = RichLive(
                        console=self._console,
                        auto_refresh=False,
                        transient=True,
                        redirect_stdout=False,
                        redirect_stderr=False,
                    )
                    self._live.start()
                self._print(news)
                # The cursor stays on an empty line, from where a shell goes on after a kill.
                self._live.update(Group(*frame, Text()), refresh=True)
        return True

    def leave(self, news: Collection[NewsLine] = ()) -> None:
        """Take the drawn lines away and show the last news; what is written afterwards goes on below."""
        with contextlib.suppress(OSError, ValueError):
            if self._live is not None:
                self._live.stop()
            self._live, self._frame = None, []
            self._print(news)

    def _print(self, news: Collection[NewsLine]) -> None:
        for each in news:
            self._console.print(line_of(each, self._console.size.width - 1), soft_wrap=True)


class Live(Observer):
    """Hears a run and draws it."""

    def __init__(self) -> None:
        self._screen = Screen()
        self._state = RunState()
        self._news = list[NewsLine]()
        self._drawn_s = 0.0
        self._over = False

    def event(self, event: Event, state: RunState) -> None:
        self._state = state
        if line := event.line:
            self._news.append(NewsLine(event.severity, state.told_s, line))
        if isinstance(event, Resolving | Doing):  # which may take long before the next tick
            self._drawn_s = 0.0
            self.tick()

    def tick(self) -> None:
        if time.monotonic() - self._drawn_s >= REFRESH_S and (snapshot := look_at(self._state)) is not None:
            if self._screen.draw(snapshot, self._news):
                self._news.clear()
            self._drawn_s = time.monotonic()

    def close(self) -> None:
        """Take the view away; what the run has come to stays."""
        self._over = True
        closing = closing_line(snapshot_of(self._state, time.time()))
        self._news += [NewsLine(Severity.NEWS, time.time(), closing)] if closing else []
        self._leave()

    def say(self, text: str) -> None:
        self._news.append(NewsLine(Severity.NEWS, time.time(), text))
        if self._over or not self._state.workdir:
            self._leave()

    def _leave(self) -> None:
        self._screen.leave(self._news)
        self._news.clear()


class ProgressBar(Observer):
    """Draws one line for scripts and notebooks: what the run is at, then rows done, their rate and the time left."""

    def __init__(self, source: str = "") -> None:
        """`source` is what people call the source of the output; by default it has the output's name."""
        self._source = source or "the source of embeddings"
        self._state = RunState()
        self._drawn_s = 0.0
        self._width = 0
        """Of the line that stands there."""
        self._cell: Any = None
        """A notebook's handle of what it displays."""

    def event(self, event: Event, state: RunState) -> None:
        self._state = state
        if event.line and LOGGER.isEnabledFor(logging.INFO):
            self._show(Text())  # the line that is logged next would stand behind it
        elif isinstance(event, Doing | Resolving | Waiting | Draining):
            self._draw()  # the next tick may be long in coming

    def tick(self) -> None:
        if time.monotonic() - self._drawn_s >= REFRESH_S:
            self._draw()

    def close(self) -> None:
        """Leave the line as it is; take it away if there was not one row to count."""
        if self._drawn_s and self._state.total("rows"):
            self._draw(over=True)
            if self._cell is None:
                with contextlib.suppress(OSError):
                    write(sys.stderr, "\n")
        elif self._drawn_s:
            self._show(Text())

    def _draw(self, *, over: bool = False) -> None:
        if (now := look_at(self._state, sensors=False)) is None:
            return
        self._drawn_s, line = time.monotonic(), Text()
        doing = ("stopped" if now.share < 1 else "") if over else now.doing
        parts = [doing.replace("the source of embeddings", self._source)] if doing not in ("", COMPUTING) else []
        if now.total("rows"):
            line.append(f"{percent(now.share)} ").append_text(bar(now.share, 20)).append(" ")
            parts.append(how_far(now)[0])
        parts += [human_elapsed(now.elapsed_s), *rates(now)]
        line.append(", ".join(parts + [now.health] * (now.severity > Severity.NEWS)))
        line.truncate(RichConsole(file=sys.stderr).size.width - 1)
        self._show(line)

    def _show(self, line: Text) -> None:
        if in_notebook():
            from IPython.display import display

            # What a notebook keeps is what it was given last; rich draws its text as HTML there.
            self._cell = self._cell or display({"text/plain": ""}, raw=True, display_id=True)
            self._cell.update(line if line else {"text/plain": ""}, raw=not line)
            return
        with contextlib.suppress(OSError):
            words = printable(line.plain)
            write(sys.stderr, f"\r{words}{' ' * (self._width - line.cell_len)}" + "\r" * (not words))
        self._width = line.cell_len


def _run_in(workdir: Path) -> Follower:
    """Return the run in the folder, once there is one; say once that it waits for it. Raises Halt (78)."""
    if not is_workdir(Layout(workdir)) and not workdir.is_file():
        say(f"waiting for a run to begin in {workdir} (Ctrl-C ends this)", err=True)
        while not is_workdir(Layout(workdir)):
            time.sleep(REFRESH_S)
    return Follower(require_workdir(workdir))


def watch_view(workdir: Path) -> None:
    """Show the live view until the run ends, or a line now and then if nothing can be drawn. Raises Halt (78)."""
    run, said_s = _run_in(workdir), -float("inf")
    screen = Screen(sys.stdout) if run.alive and can_draw(sys.stdout) else None
    try:
        while run.alive:
            now = run.look()
            if not run.alive:
                return
            if screen is not None:
                screen.draw(now, run.news)
            elif time.monotonic() - said_s >= heartbeat_s(now.elapsed_s):
                said_s = time.monotonic()
                if not say(f"{human_moment(time.time())} {progress_line(now)}"):  # as in `status --watch | head`
                    return
            time.sleep(REFRESH_S)
    finally:
        if screen is not None:
            screen.leave(run.news if not run.alive else ())


def watch_json(workdir: Path) -> None:
    """Print a line of JSON, as `status --json` has it, at once and for each change, until the run ends."""
    shown, _ = None, _run_in(workdir)
    while True:
        began_s = time.monotonic()
        status = read_status(workdir)
        if (content := status.to_json()) != shown:
            shown = content
            if not say(json.dumps(content)):
                return
        if status.state is not State.RUNNING:
            return
        # A tenth of the time, at most, goes into reading: a long journal is read again less often.
        time.sleep(max(1.0, 10 * (time.monotonic() - began_s)))
