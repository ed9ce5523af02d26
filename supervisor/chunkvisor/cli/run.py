"""`chunkvisor run`: the main job."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkvisor.cli.parameters import (
    ROW_COUNT,
    config_argument,
    set_option,
    show_options,
    stop_after_option,
)
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.printing import confirmed, may_ask

if TYPE_CHECKING:
    from chunkvisor.show.observer import Observer
    from chunkvisor.supervise.request import Request


@click.command("run")
@config_argument()
@set_option("Override a key, e.g. chunk.size=200.")
@click.option(
    "--max-rows",
    type=ROW_COUNT,
    metavar="N",
    help="A trial with the first N rows of every output, in a separate workdir: WORKDIR-first-N.",
)
@click.option("--update", is_flag=True, help="Accept changed sources, and encode only texts that have no vector yet.")
@click.option(
    "--from-scratch", is_flag=True, help="Start over; earlier results are replaced once the new ones are complete."
)
@click.option("--yes", is_flag=True, help="With --from-scratch: do not ask first.")
@stop_after_option()
@show_options
def run(
    config: Path,
    overrides: tuple[str, ...],
    max_rows: int | None,
    update: bool,
    from_scratch: bool,
    yes: bool,
    stop_after_s: float | None,
    quiet: bool,
    log_format: str,
) -> None:
    r"""Do the job of CONFIG. Run the same command again to continue.

    It continues after a stop, a crash, a kill or a power cut, and does nothing once everything is done.

    \b
    Example: chunkvisor run embeddings.yaml --set device=cuda:1
    """
    from chunkvisor.cli.again import typed
    from chunkvisor.config.load import load
    from chunkvisor.show.lines import shown
    from chunkvisor.supervise.request import Request

    if update and from_scratch:
        raise click.UsageError("--update does not go with --from-scratch, which discards what --update keeps.")
    with shown(quiet, log_format) as observer:
        loaded = load(config, overrides)
        if max_rows is not None:
            loaded = loaded.trial(max_rows)
        if from_scratch and not yes and may_ask():
            names, workdir = ", ".join(loaded.config.outputs), loaded.config.workdir
            if not confirmed(f"Discard everything done so far for {names} in {workdir}?"):
                raise click.Abort
        request = Request(loaded, max_rows, from_scratch, update, stop_after_s=stop_after_s, typed=typed())
        code = _run(request, observer, in_words=log_format == "text")
    if code is not ExitCode.COMPLETE:
        sys.exit(int(code))


def _run(request: "Request", observer: "Observer", *, in_words: bool) -> ExitCode:
    """Run it; after the end, whatever it is, say what may be done next. Raises Halt."""
    from chunkvisor.cli.again import tell_how_to_go_on
    from chunkvisor.show.lines import Afterwards
    from chunkvisor.show.observer import Observers
    from chunkvisor.show.systemd import service_manager
    from chunkvisor.store.layout import Layout
    from chunkvisor.supervise.session import run

    loaded = request.loaded
    afterwards = Afterwards(observer, Layout(loaded.config.workdir))
    began_s, code, end = time.time(), ExitCode.BUG, None
    try:
        code = run(request, Observers(observer, afterwards, guarded=[service_manager()]))
        return code
    except Halt as halt:
        code, end = halt.code, halt
        raise
    finally:
        if in_words:
            from chunkvisor.show.lines import next_steps

            complete = code is ExitCode.COMPLETE
            told = afterwards.worked or code in (ExitCode.COMPLETE, ExitCode.QUARANTINED)
            trial = request.max_rows is not None
            for line in next_steps(loaded, began_s, trial=trial, complete=complete, report=told):
                afterwards.tell(line)
            if end is not None:
                tell_how_to_go_on(afterwards, end, loaded.config.workdir, of_config=True)
