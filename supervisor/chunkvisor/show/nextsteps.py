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
from chunkvisor.store.layout import Layout


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
