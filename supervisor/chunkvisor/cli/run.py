"""`chunkvisor run`: the main job."""

import sys
from pathlib import Path

import click

from chunkvisor.cli.parameters import config_argument, set_option
from chunkvisor.errors import ExitCode
from chunkvisor.observe.terminal import options, shown


@click.command("run")
@config_argument()
@set_option("Override a key, e.g. chunk.size=200.")
@click.option("--max-rows", type=click.IntRange(min=1), help="Take only the first rows of every output's source.")
@click.option("--from-scratch", is_flag=True, help="Discard this config's earlier state and final files first.")
@click.option("--yes", is_flag=True, help="Answer yes to the question of --from-scratch.")
@options
def command(
    config: Path,
    overrides: tuple[str, ...],
    max_rows: int | None,
    from_scratch: bool,
    yes: bool,
    quiet: bool,
    log_format: str,
) -> None:
    r"""Run the job of CONFIG, or go on with it after any end.

    \b
    Example: chunkvisor run embeddings.yaml --set device=cuda:1
    """
    from chunkvisor.configfile import load
    from chunkvisor.observe.observer import Guarded, Observers
    from chunkvisor.observe.systemd import service_manager
    from chunkvisor.session import Request, run

    with shown(quiet, log_format) as observer:
        loaded = load(config, overrides)
        if from_scratch and not yes and sys.stdin.isatty():
            names, workdir = ", ".join(loaded.config.outputs), loaded.config.workdir
            click.confirm(f"Discard everything done so far for {names} in {workdir}?", abort=True, err=True)
        code = run(Request(loaded, max_rows, from_scratch), Observers([observer, Guarded(service_manager())]))
    if code is not ExitCode.COMPLETE:
        sys.exit(int(code))
