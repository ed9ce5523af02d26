"""`chunkvisor report`: one page with plots."""

from pathlib import Path

import click

from chunkvisor.cli.parameters import workdir_argument


@click.command("report")
@workdir_argument()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file; WORKDIR/report.html without."
)
def command(workdir: Path, output: Path | None) -> None:
    r"""Write the story of WORKDIR as one HTML page. It needs no network, and may be made beside a live run.

    \b
    Example: chunkvisor report cache/embeddings -o night.html
    """
    from chunkvisor.errors import ExitCode, Halt
    from chunkvisor.observe.report.page import write_report
    from chunkvisor.store.layout import Layout

    path = output or Layout(workdir).report
    try:
        write_report(workdir, path)
    except OSError as error:
        raise Halt(
            ExitCode.DISK,
            f"the report {path} cannot be written",
            why=str(error),
            remedy="name another place: chunkvisor report WORKDIR -o FILE.html",
        ) from None
    click.echo(path)
