"""`chunkvisor status`: how far a workdir is."""

import json
from pathlib import Path

import click

from chunkvisor.cli.parameters import workdir_argument


@click.command("status")
@workdir_argument()
@click.option("--json", "as_json", is_flag=True, help="For programs: plain numbers, seconds and rows.")
@click.option("--watch", is_flag=True, help="Look on until the run ends; with --json, one line for each change.")
def command(workdir: Path, as_json: bool, watch: bool) -> None:
    r"""Show how far the run in WORKDIR is. It works beside a live run and after its end.

    \b
    Example: chunkvisor status --watch cache/embeddings
    """
    from chunkvisor.observe.follow import Follower
    from chunkvisor.observe.status import read_status
    from chunkvisor.observe.statusscreen import status_screen
    from chunkvisor.observe.watching import ctrl_c_in_pauses, watch_json, watch_view

    if as_json and not watch:
        click.echo(json.dumps(read_status(workdir).to_json(), indent=2))
        return
    status = read_status(workdir)  # first: it refuses what is no workdir
    follower = Follower(workdir)
    try:
        if as_json:
            with ctrl_c_in_pauses():
                watch_json(workdir)
        elif watch:
            with ctrl_c_in_pauses():
                watch_view(follower)
            status = read_status(workdir)
    except KeyboardInterrupt:
        return  # the person has seen enough; the run goes on
    if not as_json:
        snapshot = follower.look()
        for line in status_screen(status, snapshot, follower.begun_anew(), follower.ending, workdir):
            click.echo(line)
