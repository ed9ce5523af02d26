"""`chunkvisor clean`: removes what finished outputs do not need any more."""

from pathlib import Path

import click

from chunkvisor.cli.parameters import workdir_argument


@click.command("clean")
@workdir_argument()
def command(workdir: Path) -> None:
    r"""Remove what finished outputs in WORKDIR no longer need. Chunk and attempt files go, never a final file.

    \b
    Example: chunkvisor clean cache/embeddings
    """
    from chunkvisor.commands.clean import clean
    from chunkvisor.units import human_bytes

    removed, freed_bytes = clean(workdir)
    click.echo(f"{removed:,} files removed, {human_bytes(freed_bytes)} freed")
