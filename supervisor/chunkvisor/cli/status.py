"""`chunkvisor status`: how far a workdir is."""

import json
from pathlib import Path

import click

from chunkvisor.cli.parameters import workdir_argument


@click.command("status")
@workdir_argument()
@click.option("--json", "as_json", is_flag=True, help="For programs: plain numbers, seconds and rows.")
def command(workdir: Path, as_json: bool) -> None:
    r"""Show how far the run in WORKDIR is; works beside a live run and after its end.

    \b
    Example: chunkvisor status cache/embeddings
    """
    from chunkvisor.status import State, read_status
    from chunkvisor.units import human_time

    status = read_status(workdir)
    if as_json:
        click.echo(json.dumps(status.to_json(), indent=2))
        return
    pid = f" (pid {status.pid})" if status.state is State.RUNNING else ""
    click.echo(f"{status.state}{pid}")
    for name, output in status.outputs.items():
        share = 100 * output.rows_done // output.rows if output.rows else 0
        chunks = f"{output.chunks_done:,} of {output.chunks:,} chunks"
        quarantined = f", {output.quarantined:,} quarantined" if output.quarantined else ""
        click.echo(f"  {name}: {share} %, {output.rows_done:,} of {output.rows:,} rows, {chunks}{quarantined}")
    if status.attempts:
        click.echo("  attempts: " + ", ".join(f"{count:,} {outcome}" for outcome, count in status.attempts.items()))
    if status.rows_per_s is not None and status.state is State.RUNNING:
        left = f", about {human_time(status.eta_s)} left" if status.eta_s else ""
        click.echo(f"  {status.rows_per_s:,.0f} rows/s{left}")
    for number, device in status.devices.items():
        if device.busy_s:
            tokens = f", {device.tokens_per_s:,.0f} tokens/s" if device.tokens_per_s else ""
            idle = 100 * device.idle_s / (device.busy_s + device.idle_s)
            click.echo(
                f"  device {number}: {device.texts_per_s:,.0f} texts/s{tokens}, idle {idle:.1f} % between chunks"
            )
    for line in status.message:
        click.echo(f"  {line}")
    if status.state in (State.STOPPED, State.HALTED):
        click.echo("  run the same command again to go on; what is done stays done")
