"""`chunkvisor run`: the main job."""

import sys
from pathlib import Path

import click

from chunkvisor.cli.parameters import config_argument, set_option
from chunkvisor.errors import ExitCode


@click.command("run")
@config_argument()
@set_option("Override a key, e.g. chunk.size=200.")
@click.option("--max-rows", type=click.IntRange(min=1), help="Take only the first rows of every output's source.")
@click.option("--from-scratch", is_flag=True, help="Discard this config's earlier state and final files first.")
@click.option("--yes", is_flag=True, help="Answer yes to the question of --from-scratch.")
def command(config: Path, overrides: tuple[str, ...], max_rows: int | None, from_scratch: bool, yes: bool) -> None:
    r"""Run the job of CONFIG; run the same command again to go on after any end.

    \b
    Example: chunkvisor run embeddings.yaml --set device=cuda:1
    """
    from chunkvisor.configfile import load
    from chunkvisor.observe.console import Console
    from chunkvisor.observe.observer import Guarded, Observers
    from chunkvisor.observe.systemd import service_manager
    from chunkvisor.session import Request, run

    loaded = load(config, overrides)
    if from_scratch and not yes and sys.stdin.isatty():
        names = ", ".join(loaded.config.outputs)
        click.confirm(f"Discard everything done so far for {names} in {loaded.config.workdir}?", abort=True, err=True)
    observer = Observers([Console(), Guarded(service_manager())])
    code = run(Request(loaded, max_rows, from_scratch), observer)
    if code is not ExitCode.COMPLETE:
        sys.exit(int(code))
