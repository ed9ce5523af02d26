"""A run in a terminal: news scroll by, and a few lines at the lower end say how far it is.

The cursor is not hidden, the screen not cleared and the alternate one not used: whatever kills the program, the
terminal is as it should be, and what has scrolled by stays there.
"""

import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.text import Text

from chunkvisor.events.event import Doing, Draining, Event, Resolving, Severity, Waiting, plain
from chunkvisor.events.state import COMPUTING, NewsLine, RunState
from chunkvisor.printing import say, write
from chunkvisor.show.lines import (
    LOGGER,
    can_draw,
    chunks_in_words,
    closing_line,
    figure,
    heartbeat_s,
    in_notebook,
    percent,
    progress_line,
    rates,
    rows_in_words,
    stage,
    time_left,
)
from chunkvisor.show.observer import Observer
from chunkvisor.show.sensors import GpuReading
from chunkvisor.show.snapshot import DeviceState, Readings, Snapshot, WorkerState, look_at, snapshot_of
from chunkvisor.show.status import Follower, State, read_status
from chunkvisor.store.layout import Layout
from chunkvisor.store.mark import is_workdir, require_workdir
from chunkvisor.units import counted, human_bytes, human_elapsed, human_moment, human_time, printable, wrapped
from chunkvisor_worker.contract.exits import Outcome

REFRESH_S = 0.5
_MOST_NEWS = 200
"""This many wait while nothing can be shown; all of them are in the invocation's log."""
_STYLES = {Severity.NEWS: "", Severity.CARE: "yellow", Severity.LOSS: "red"}
_HEALTH = {Severity.NEWS: "green", Severity.CARE: "yellow", Severity.LOSS: "red"}
_MIN_COLUMNS, _MIN_BAR, _MAX_BAR, _MOST_FOOT = 20, 8, 40, 4
_AIRY, _WIDE = 12, 120
"""With so many lines, one stays empty above the view; with so many columns, there is more to tell of a device."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the terminal has to offer."""

    columns: int
    lines: int
    ascii_only: bool = False


def view(snapshot: Snapshot, room: Room) -> list[Text]:
    """Draw a snapshot as lines that fit: none is wider than `columns`, and there are no more than `lines`.

    If room is short, workers prepared ahead go first, then single outputs, then devices.
    """
    head = [Text()] * (room.lines >= _AIRY) + [_head(snapshot)]
    if snapshot.rows:
        done = f"{percent(snapshot.share):>6}"  # 100 % does not touch the bar
        head.append(bar(snapshot.share, max(_MIN_BAR, room.columns - len(done)), room).append(done))
        chunks = [chunks_in_words(snapshot)] * bool(snapshot.chunks)
        head.append(Text(", ".join([rows_in_words(snapshot), *rates(snapshot), *chunks])))
    words, style = plain(snapshot.health.marked), _HEALTH[snapshot.health.severity]
    foot = [Text(line, style) for line in wrapped(words, room.columns, len("note: ")).splitlines()[:_MOST_FOOT]]
    if room.lines < _AIRY:
        foot = [Text(words, style)]
    free = room.lines - len(head) - len(foot)
    outputs = list[Text]()
    for output in snapshot.outputs if len(snapshot.outputs) > 1 else ():
        width = min(24, max(8, room.columns // 5))
        line = Text(f"{plain(output.name):{width}.{width}}  ")
        line.append_text(bar(output.share, max(_MIN_BAR, min(_MAX_BAR, room.columns // 4)), room))
        outputs.append(line.append(f"{percent(output.share):>6}  ").append(counted(output.rows, "row"), "dim"))
    several = len(outputs) > 1
    devices = [_device(device, several, room) for device in snapshot.devices]
    ahead = {number: found for number, each in enumerate(snapshot.devices) if (found := _ahead(each, several))}
    if len(outputs) + len(devices) + len(ahead) <= free:
        body = [
            *outputs,
            *(each for number, first in enumerate(devices) for each in (first, ahead.get(number)) if each),
        ]
    elif len(outputs) + len(devices) <= free:
        body = [*outputs, *devices]
    elif len(devices) <= free:
        body = devices
    else:
        shown = max(0, free - 1)
        more = Text(f"and {counted(len(devices) - shown, 'more device')}", "dim")
        body = [*devices[:shown], *[more] * (free > 0)]
    lines = [*head, *body, *foot][: max(1, room.lines)]
    for line in lines:
        line.no_wrap = True
        line.truncate(room.columns, overflow="ellipsis" if not room.ascii_only else "crop")
    return lines


def _head(snapshot: Snapshot) -> Text:
    line = Text(plain(stage(snapshot)), "bold")
    line.append(f", {human_elapsed(snapshot.elapsed_s)} so far", "not bold")
    if snapshot.eta_s is not None:
        line.append(f", {time_left(snapshot)}", "bold")
    elif snapshot.doing == COMPUTING and snapshot.chunks and not snapshot.chunks_here:
        line.append(", estimating the time left", "not bold dim")
    return line


def _device(device: DeviceState, several: bool, room: Room) -> Text:
    """Draw the device and the worker that computes on it, or is the next to do so."""
    gpu, worker = device.gpu or GpuReading(0), device.workers[0] if device.workers else None
    line, memory = Text(f"{device.label:<6}", "bold"), list[str]()
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
        memory.append(f"{gpu.memory_used_bytes / (1 << 30):.0f}/{gpu.memory_total_bytes / (1 << 30):.0f} GiB")
    if worker is None:
        return line.append("  ".join(["idle", *memory]), "not bold dim")
    line.append(f"{_chunk(worker, several):<10} ", "not bold")
    line.append(f"{worker.phase:<10} ", "not bold " + ("cyan" if worker.computing else "dim"))
    share = worker.texts_done / worker.texts if worker.texts else 0.0
    fields = [f"{percent(share):>6}"]
    if room.columns >= _WIDE and worker.texts:
        fields.append(f"{worker.texts_done:,} of {counted(worker.texts, 'text')}")
    fields += [f"batch {worker.batch_rows}"] * bool(worker.batch_rows) + memory
    if worker.rss_bytes is not None:
        fields.append(f"RAM {human_bytes(worker.rss_bytes)}")
    if room.columns >= _WIDE:
        told = (gpu.utilization, "% busy"), (gpu.temperature_c, "°C"), (gpu.power_w, "W")
        fields += [f"{value:.0f} {unit}" for value, unit in told if value is not None]
    if (others := sum(each.computing for each in device.workers) - 1) > 0:
        fields.append(f"and {others} more")
    while len(fields) > 1 and line.cell_len + _MIN_BAR + len("  ".join(fields)) > room.columns:
        fields.pop()
    width = room.columns - line.cell_len - len("  ".join(fields))
    if width >= _MIN_BAR:
        line.append_text(bar(share, min(_MAX_BAR, width), room))
    return line.append("  ".join(fields), "not bold")


def _ahead(device: DeviceState, several: bool) -> Text | None:
    """Draw what is prepared for the device's next turns."""
    waiting = [f"{_chunk(each, several)} {each.phase}" for each in device.workers[1:] if not each.computing]
    return Text(f"{'':<6}next: {', '.join(waiting)}", "dim") if waiting else None


def _chunk(worker: WorkerState, several: bool) -> str:
    """Name the chunk; with its output, if there are several."""
    return f"{worker.output} chunk {worker.chunk}" if several else f"chunk {worker.chunk}"


def bar(share: float, width: int, room: Room) -> Text:
    """Draw a bar that can be read without colors, too."""
    share = min(1.0, max(0.0, share))
    done, todo, half = ("#", "-", "") if room.ascii_only else ("━", "─", "╸")
    cells = int(share * width)
    line = Text(done * cells, "cyan")
    if half and cells < width and share * width - cells >= 0.5:
        line.append(half, "cyan")
    return line.append(todo * (width - line.cell_len), "dim")


def line_of(news: NewsLine, columns: int = 1 << 20) -> Text:
    """Draw news with the time of day, in lines of so many columns."""
    time_of_day = f"{human_moment(news.t).split()[1]} "
    words = wrapped(time_of_day + news.words, max(_MIN_COLUMNS, columns), len(time_of_day))
    return Text.assemble((time_of_day, "dim"), (words[len(time_of_day) :], _STYLES[news.severity]))


class Screen:
    """Draws on a terminal; an error of the terminal (it may be gone) is passed over."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._console = RichConsole(file=self._stream, highlight=False, markup=False, emoji=False)
        self._columns = self._console.size.width
        self._frame: list[tuple[str, int]] = []
        """(line as written, its width in cells) of what stands there now."""

    def draw(self, snapshot: Snapshot, news: Collection[NewsLine] = ()) -> bool:
        """Show the news above, each with the time of day, and the snapshot below; what is unchanged stays as it is.

        False if nothing was shown: a job in the background leaves the terminal to the one in front.
        """
        with contextlib.suppress(OSError, ValueError):  # not our controlling terminal, or closed
            if os.tcgetpgrp(self._stream.fileno()) != os.getpgrp():
                self._frame = []
                return False
        size, ascii_only = self._console.size, not self._console.encoding.lower().startswith("utf")
        # The last column stays free: a full line makes some terminals begin a new one.
        lines = view(snapshot, Room(max(_MIN_COLUMNS, size.width - 1), max(2, size.height - 2), ascii_only))
        frame = [(self._ansi(line), line.cell_len) for line in lines]
        if news or frame != self._frame:
            # Each line replaces what stood there; the cursor ends below, from where a shell goes on after a kill. A
            # terminal that knows synchronized output (2026) shows all at once; the others ignore it.
            text = "".join(f"{line}\x1b[K\n" for line in [*self._lines(news), *(line for line, _ in frame)])
            self._write(f"\x1b[?2026h{self._back()}{text}\x1b[J\x1b[?2026l")
            self._frame = frame
        return True

    def leave(self, news: Collection[NewsLine] = ()) -> None:
        """Take the drawn lines away and show the last news; what is written afterwards goes on below."""
        text = "".join(f"{line}\n" for line in self._lines(news))
        self._write(self._back() + "\x1b[J" * bool(self._frame) + text)
        self._frame = []

    def _back(self) -> str:
        """From below what is drawn to its start; a terminal that was made narrower since has wrapped its lines."""
        if not self._frame:
            return "\r"
        before, self._columns = self._columns, max(1, self._console.size.width)
        height = sum(max(1, -(-width // self._columns)) for _, width in self._frame)
        # Lines that were wrapped stay marked as such in tmux until they are cleared as a whole.
        return f"\r\x1b[{height}A" + "\x1b[J" * (before != self._columns)

    def _lines(self, news: Collection[NewsLine]) -> list[str]:
        """Broken between words, if they are wider than the terminal."""
        return [self._ansi(line) for each in news for line in line_of(each, self._console.size.width - 1).split()]

    def _ansi(self, line: Text) -> str:
        line = line.copy()
        line.plain = printable(line.plain)  # of the same length: styles stay where they are
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        return captured.get()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            write(self._stream, text)


class Live(Observer):
    """Hears a run and draws it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._screen = Screen(stream)
        self._state = RunState()
        self._news: deque[NewsLine] = deque(maxlen=_MOST_NEWS)
        self._drawn_s = 0.0
        self._over = False

    def event(self, event: Event, state: RunState) -> None:
        """Take it in; most of them are seen with the next tick."""
        self._state = state
        if line := event.line:
            self._news.append(NewsLine(event.severity, state.told_s, line))
        if isinstance(event, Resolving | Doing):  # which may take long before the next tick
            self._drawn_s = 0.0
            self.tick()

    def tick(self) -> None:
        """Draw, if it is time."""
        if time.monotonic() - self._drawn_s >= REFRESH_S and (snapshot := look_at(self._state)) is not None:
            if self._screen.draw(snapshot, self._news):
                self._news.clear()
            self._drawn_s = time.monotonic()

    def close(self) -> None:
        """Take the view away; what the run has come to stays."""
        self._over = True
        closing = closing_line(snapshot_of(self._state, time.time(), Readings()))
        if closing:
            self._news.append(NewsLine(Severity.NEWS, time.time(), closing))
        self._leave()

    def say(self, text: str) -> None:
        """Show one more line of news."""
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
        self._source = source
        self._state = RunState()
        self._drawn_s = 0.0
        self._width = 0
        """Of the line that stands there."""
        self._interrupted = False
        self._wait: Waiting | None = None
        self._near = ""
        self._cell: Any = None
        """A notebook's handle of what it displays."""

    def event(self, event: Event, state: RunState) -> None:
        """Take it in; most of them are seen with the next tick."""
        self._state = state
        match event:
            case Draining():
                self._interrupted = event.signal == "SIGINT"
            case Waiting():
                self._wait = event
            case Resolving():
                self._near = event.near
        if event.line and LOGGER.isEnabledFor(logging.INFO):
            self._show(Text(""))  # the line that is logged next would stand behind it
        elif isinstance(event, Resolving | Doing | Waiting | Draining):
            self._draw()  # the next tick may be long in coming

    def tick(self) -> None:
        """Draw, if it is time."""
        if time.monotonic() - self._drawn_s >= REFRESH_S:
            self._draw()

    def close(self) -> None:
        """Leave the line as it is; take it away if there was not one row to count."""
        if self._drawn_s and sum(each.rows for each in self._state.outputs.values()):
            self._draw(over=True)
            if self._cell is None:
                with contextlib.suppress(OSError):
                    write(sys.stderr, "\n")
        elif self._drawn_s:
            self._show(Text(""))

    def _draw(self, *, over: bool = False) -> None:
        if (now := look_at(self._state, sensors=False)) is None:
            return
        self._drawn_s = time.monotonic()
        room = Room(RichConsole(file=sys.stderr).size.width - 1, 1)
        words, notes = self._words(now, over=over), self._notes(now, over=over)
        line = Text(words)
        if now.rows and (over or self._state.first_go_s is not None):
            line.append(": " * bool(words) + f"{percent(now.share)} ")
            notes = [rows_in_words(now), human_elapsed(now.elapsed_s), *notes]
            width = max(0, min(_MAX_BAR, room.columns - line.cell_len - len(", ".join(notes)) - 1))
            line.append_text(bar(now.share, width, room)).append(" ")
        else:
            line.append(f", {human_elapsed(now.elapsed_s)}" + ", " * bool(notes))
        line.append(", ".join(notes))
        line.truncate(room.columns)
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

    def _words(self, now: Snapshot, *, over: bool) -> str:
        """Say what the run is at; nothing while it computes, and at its good end."""
        if over:
            return "stopped" if now.share < 1 else ""
        if self._interrupted:
            return "finishing the chunk under way; interrupt once more to stop at once"
        if now.waits_for and self._wait is not None:
            left_s = self._wait.limit_s - self._wait.waited_s
            most = f", at most {human_time(left_s)}" if left_s > 0 else ""
            hub = " for the model hub" if self._wait.outcome == Outcome.HUB else ""
            return f"waiting{hub}{most} (interrupt to stop)"
        if now.doing == COMPUTING:
            return ""
        if now.rows_done and self._state.first_go_s is None:
            return f"{rows_in_words(now)} done already; {now.doing}"
        return now.doing.replace("the source of embeddings", self._source) if self._source else now.doing

    def _notes(self, now: Snapshot, *, over: bool) -> list[str]:
        state, notes = self._state, list[str]()
        if now.waits_for and not over:
            if self._wait is None or self._wait.outcome != Outcome.HUB:
                return [f"{now.waits_for.partition('. ')[0]:.80}"]
            near = f"did you mean the folder {self._near}?"
            return [near if self._near else "no network? a folder of the model needs no hub"]
        if now.rows_per_s and now.elapsed_s >= 1:
            notes.append(f"{figure(now.rows_per_s)} rows/s")
            notes += [time_left(now)] * (now.eta_s is not None and not over)
        if state.total("without"):
            notes.append(f"{counted(state.total('without'), 'row')} without a vector")
        elif state.failed:
            notes.append(f"{counted(state.failed, 'failed attempt')}, tried again")
        return notes


@contextlib.contextmanager
def ctrl_c_in_pauses() -> Iterator[None]:
    """Let Ctrl-C come in the pauses between two looks alone, as KeyboardInterrupt.

    Anywhere else it may come to nothing: Python drops an exception that is raised in the callback of a weak reference
    or of the garbage collector.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pause(seconds: float) -> None:
    if signal.sigtimedwait({signal.SIGINT}, seconds) is not None:
        raise KeyboardInterrupt


def wait_for_run(workdir: Path) -> None:
    """Return once there is a run to follow in the folder; say once what it waits for."""
    told = False
    while not is_workdir(Layout(workdir)) and not workdir.is_file():
        if not told:
            told = True
            say(f"waiting for a run to begin in {workdir} (Ctrl-C ends this)", err=True)
        _pause(REFRESH_S)


def watch_view(workdir: Path) -> None:
    """Show the live view until the run ends, or lines if nothing can be drawn. Raises Halt (78)."""
    run = Follower(require_workdir(workdir))
    screen, said_s = Screen(sys.stdout) if can_draw(sys.stdout) else None, -float("inf")
    if not run.alive:
        return
    try:
        while True:
            snapshot = run.look()
            lines = [f"{human_moment(line.t)} {line.words}" for line in run.news]
            if screen is None and time.monotonic() - said_s >= heartbeat_s(snapshot.elapsed_s) and run.alive:
                said_s = time.monotonic()
                lines.append(f"{human_moment(time.time())} {progress_line(snapshot)}")
            if screen is None and not all(map(say, lines)):  # as in `status --watch | head`
                return
            if not run.alive:
                return
            if screen is not None:
                screen.draw(snapshot, run.news)
            _pause(REFRESH_S)
    finally:
        if screen is not None:
            screen.leave(run.news if not run.alive else ())


def watch_json(workdir: Path) -> None:
    """Print a line of JSON, as `status --json` has it, at once and for each change, until the run ends."""
    shown = None
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
        _pause(max(1.0, 10 * (time.monotonic() - began_s)))
