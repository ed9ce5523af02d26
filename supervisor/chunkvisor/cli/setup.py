"""The commands that need no run: `init`, `explain` and `schema`."""

import json
import shlex
from importlib.resources import files
from pathlib import Path

import click

from chunkvisor.errors import config_error
from chunkvisor.printing import say


@click.command("init")
@click.argument("path", type=click.Path(path_type=Path), default=Path("chunkvisor.yaml"))
def init(path: Path) -> None:
    r"""Write a config to start from, with every key explained.

    Without PATH: chunkvisor.yaml; no existing file is overwritten.

    \b
    Example: chunkvisor init embeddings.yaml
    """
    target = path / "chunkvisor.yaml" if path.is_dir() else path
    try:
        with open(target, "x") as file:
            file.write(files("chunkvisor").joinpath("starter.yaml").read_text())
    except FileExistsError:
        raise config_error(
            f"{target} is there already, and stays as it is", remedy="name another file: chunkvisor init OTHER.yaml"
        ) from None
    except OSError as error:
        raise config_error(f"{target} cannot be written: {error.strerror}") from None
    path_in_words = shlex.quote(str(target))
    say(f"{target} written. In it, change the lines marked with <--: source, column, model, device. Then:", indent=2)
    say(f"  chunkvisor doctor {path_in_words}    can this machine do it?")
    say(f"  chunkvisor plan {path_in_words}      how much work is it?")
    say(f"  chunkvisor run {path_in_words}       do it; run it again to continue")


def _complete_name(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from chunkvisor.commands.explain import names

    return [name for name in names() if name.startswith(incomplete)]


@click.command("explain")
@click.argument("name", required=False, shell_complete=_complete_name)
def explain(name: str | None) -> None:
    r"""Explain a failure, by the NAME that a run gave it.

    It says what happened, what a run does by itself, and what you can do. The last lines of a run have NAME after
    `see:`. Without NAME: list all names.

    \b
    Example: chunkvisor explain gpu_oom
    """
    from chunkvisor.commands.explain import explain as entry_of
    from chunkvisor.commands.explain import index

    say(entry_of(name) if name is not None else "\n".join(index()), indent=4)


@click.command("schema")
def schema() -> None:
    r"""Print the JSON Schema of the config. With it, editors complete keys and mark what is wrong.

    \b
    Example: chunkvisor schema > chunkvisor.schema.json
    and at the top of the config: # yaml-language-server: $schema=chunkvisor.schema.json
    """
    from chunkvisor.config.schema import config_schema

    say(json.dumps(config_schema(), indent=2))
