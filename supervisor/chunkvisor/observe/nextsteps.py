"""What a person may want to know when a run is over: where things are, and what to run next."""

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from chunkvisor.assemble.finalfiles import place_of
from chunkvisor.assemble.form import Form, form_of
from chunkvisor.assemble.manifest import read_done_if_whole
from chunkvisor.config.choices import FinalFormat, Long
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import Config
from chunkvisor.events.attempt import AttemptStarted
from chunkvisor.events.event import Event
from chunkvisor.events.run import Invoked
from chunkvisor.events.state import RunState
from chunkvisor.observe.console import Console
from chunkvisor.observe.observer import Observer
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor_worker.contract.files import open_kept


class Afterwards(Observer):
    """Says lines to a person when the run is over, and adds them to the log, which is to have all that was shown."""

    def __init__(self, shown: Observer, layout: Layout) -> None:
        """`layout`: of the run, or of its slice."""
        self._shown = shown
        self._layout = layout
        self._files: InvocationFiles | None = None
        self.worked = False
        """Whether a worker was started, so that there is more to tell than that the run was refused."""

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Learn which invocation it is, and how far it came."""
        self.worked |= isinstance(event, AttemptStarted)
        if isinstance(event, Invoked) and event.invocation:
            self._files = InvocationFiles(self._layout.invocations / event.invocation)

    @property
    def began(self) -> bool:
        """Whether the run came to begin, so that there is a log of it."""
        return self._files is not None

    def tell(self, text: str) -> None:
        """To be called when the run has ended, and with it whoever wrote the log."""
        self._shown.say(text)
        with contextlib.suppress(OSError):
            if self._files is not None:
                with open(open_kept(self._files.log), "a", encoding="utf-8", errors="backslashreplace") as log:
                    Console(log).say(text)


def next_steps(loaded: LoadedConfig, began_s: float, *, trial: bool, complete: bool, report: bool) -> Iterator[str]:
    """Lines of news for the end of a run that began at that time, seconds since the epoch.

    `report`: whether its report has anything to tell.
    """
    layout = Layout(loaded.config.workdir)
    if complete and (line := _how_to_read(layout, loaded.config)):
        yield line
    if complete:
        yield f"to check the files: chunkvisor verify {shlex.quote(str(layout.workdir))}"
    if complete and trial:
        yield "that was a trial; for all rows, run the same command without --max-rows"
    with contextlib.suppress(OSError):
        if report and layout.report.stat().st_mtime >= began_s:  # a run that found everything complete writes none
            yield f"how the run went: {layout.report}"


def _how_to_read(layout: Layout, config: Config) -> str | None:
    """Of the first output."""
    name = next(iter(config.outputs))
    manifest = read_done_if_whole(layout.output(name))
    if manifest is None:
        return None
    form, rows_table = form_of(manifest), None
    if config.outputs[name].where is not None or config.effective_encode(name).long is Long.WINDOWS:
        rows_table = layout.output(name).rows_table.name
    return how_to_read(place_of(layout.output(name), form), form, rows_table)


def how_to_read(path: Path, form: Form, rows_table: str | None = None) -> str:
    """One line on the final; `rows_table` is named where its rows have other numbers than those of the source."""
    is_table = form.format is FinalFormat.PARQUET
    if form.shards is not None:
        found, rows = f"the files in {path}, in the order of their names", "; row i of the source is row i of them all"
    elif is_table:
        found, rows = f"pandas.read_parquet({_quoted(path)})", ""
    else:
        found, rows = f'numpy.load({_quoted(path)}, mmap_mode="r")', "; row i is row i of the source"
    if rows_table is not None:
        whose = "" if is_table else f"row i is row i of {rows_table} beside it, and "
        rows = f"; {whose}source_row there is the row of the source"
    return f"to use it: {found}{rows}"


def _quoted(path: Path) -> str:
    return f'"{path}"'
