"""`chunkvisor retry`: quarantined rows become pending again."""

from pathlib import Path

import click

from chunkvisor.cli.parameters import workdir_argument


@click.command("retry")
@workdir_argument()
def command(workdir: Path) -> None:
    r"""Make the quarantined rows in WORKDIR pending again. The next run tries them, and only them.

    \b
    Example: chunkvisor retry cache/embeddings && chunkvisor run embeddings.yaml
    """
    from chunkvisor.commands.retry import retry

    count = retry(workdir)
    if count:
        click.echo(f"{count:,} texts are pending again; run the same `chunkvisor run` to try them")
    else:
        click.echo("nothing is in quarantine")
