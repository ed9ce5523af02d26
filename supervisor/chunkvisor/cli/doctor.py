"""`chunkvisor doctor`: says whether this machine can do the job."""

import json
import sys
from pathlib import Path

import click

from chunkvisor.cli.parameters import config_argument


@click.command("doctor")
@config_argument(required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs: `ok`, and an object for each finding.")
def command(config: Path | None, as_json: bool) -> None:
    r"""Check what a run needs of this machine. Each check says how to mend what is wrong.

    With CONFIG, its device, folders and model are checked as well, and a worker encodes a few words.

    \b
    Example: chunkvisor doctor embeddings.yaml
    """
    from chunkvisor.commands.doctor import examine, exit_code, gather, render, to_json

    findings = examine(gather(config, lambda step: click.echo(f"{step} …", err=True)))
    if as_json:
        click.echo(json.dumps(to_json(findings), indent=2))
    else:
        click.echo("\n".join(render(findings)))
    if code := exit_code(findings):
        sys.exit(int(code))
