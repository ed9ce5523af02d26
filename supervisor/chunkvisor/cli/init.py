"""`chunkvisor init`: writes a starter config."""

from importlib.resources import files
from pathlib import Path

import click

from chunkvisor.errors import config_error


@click.command("init")
@click.argument("path", type=click.Path(path_type=Path), default=Path("chunkvisor.yaml"))
def command(path: Path) -> None:
    r"""Write a commented starter config to PATH. Without PATH: chunkvisor.yaml; no existing file is overwritten.

    \b
    Example: chunkvisor init embeddings.yaml
    """
    target = path / "chunkvisor.yaml" if path.is_dir() else path
    try:
        with open(target, "x") as file:
            file.write(files("chunkvisor").joinpath("starter.yaml").read_text())
    except FileExistsError:
        raise config_error(f"{target} is there already", remedy="name another file") from None
    except OSError as error:
        raise config_error(f"{target} cannot be written: {error.strerror}") from None
    click.echo(f"{target} written; edit it, then: chunkvisor run {target}")
