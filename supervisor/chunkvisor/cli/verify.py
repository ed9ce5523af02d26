"""`chunkvisor verify`: re-checks every file of vectors."""

from pathlib import Path

import click

from chunkvisor.cli.parameters import workdir_argument
from chunkvisor.errors import ExitCode, Halt


@click.command("verify")
@workdir_argument()
def command(workdir: Path) -> None:
    r"""Check all vectors in WORKDIR against their records. Of every file: shape, dtype, digest, finite, not zero.

    \b
    Example: chunkvisor verify cache/embeddings
    """
    from chunkvisor.commands.verify import verify

    good = bad = 0
    for finding in verify(workdir):
        if finding.problem is None:
            good += 1
        else:
            bad += 1
            click.echo(f"{finding.path}: {finding.problem}", err=True)
    if bad:
        raise Halt(
            ExitCode.DISK,
            f"{bad} of {good + bad} files are not as they were written",
            remedy="run the same `chunkvisor run` again: what is damaged is computed again",
        )
    click.echo(f"{good} files, all as they were written")
