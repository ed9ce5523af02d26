"""`chunkvisor plan`: what a run would do and need."""

import json
import signal
import sys
from pathlib import Path

import click

from chunkvisor.cli.parameters import config_argument, set_option
from chunkvisor.errors import ExitCode


@click.command("plan")
@config_argument()
@set_option("Override a key, e.g. chunk.size=200.")
@click.option("--max-rows", type=click.IntRange(min=1), help="Take only the first rows of every output's source.")
@click.option("--json", "as_json", is_flag=True, help="For programs: plain numbers, bytes and seconds.")
def command(config: Path, overrides: tuple[str, ...], max_rows: int | None, as_json: bool) -> None:
    r"""Show what a run of CONFIG would do and need. It starts no GPU and writes nothing into the workdir.

    \b
    Example: chunkvisor plan embeddings.yaml --set encode.batch_tokens=8192
    """
    from chunkvisor.commands.planning import draw, survey
    from chunkvisor.config.load import load

    # As an exception, so that children are ended and the temporary folder is removed.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(int(ExitCode.TERMINATED)))
    forecast = survey(load(config, overrides), max_rows, lambda step: click.echo(f"{step} …", err=True))
    if as_json:
        click.echo(json.dumps(forecast.to_json(), indent=2))
        return
    click.echo("\n".join(draw(forecast, blocks=_can_draw())))


def _can_draw() -> bool:
    try:
        "─█▏".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
