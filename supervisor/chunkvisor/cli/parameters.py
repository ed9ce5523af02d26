"""The arguments and options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Of --max-rows and the like; it has to fit in 64 bits wherever it goes.
ROW_COUNT = click.IntRange(1, 1_000_000_000_000)


def _in_seconds(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    from chunkvisor.config.values import seconds_of

    try:
        return None if text is None else seconds_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _named_by_config(ctx: click.Context, _param: click.Parameter, path: Path) -> Path:
    """Return the workdir, also of a config that was given. Raises Halt (78) for a file that is not a config."""
    if not path.is_file() or ctx.resilient_parsing:
        return path
    if path.suffix in (".npy", ".parquet", ".json"):
        from chunkvisor.commands.housekeeping import is_final
        from chunkvisor.errors import config_error, to_check

        if is_final(path):
            if ctx.info_name == "verify":
                return path
            what = f"{path} is a finished file; `chunkvisor {ctx.info_name}` takes the folder of a run, or its config"
            raise config_error(what, remedy=to_check(path))
        if path.suffix == ".npy":
            why = f"{path.with_suffix('.json').name}, which describes a file of chunkvisor, is not next to it"
            raise config_error(f"{path} is neither a folder of a run nor a config", why=why)
    from chunkvisor.config.load import load

    return load(path).config.workdir


config_argument = click.argument("config", type=click.Path(path_type=Path))
# The folder of a run, or the config that names it; of `verify`, also a final file.
workdir_argument = click.argument("workdir", type=click.Path(path_type=Path), callback=_named_by_config)
stop_after = click.option(
    "--stop-after",
    "stop_after_s",
    metavar="TIME",
    callback=_in_seconds,
    help="Stop within TIME (90m, 3h, or seconds); the exit code is 75 if work is left.",
)
quiet = click.option("-q", "--quiet", is_flag=True, help="Print only what goes wrong, and the final message.")
log_format = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="json prints one JSON object for each event, one a line, on standard error.",
)


def set_option(help_text: str) -> Callable[[_Function], _Function]:
    """--set KEY=VALUE, any number of them, as `overrides`."""
    return click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=help_text)


def json_option(help_text: str = "For programs: one JSON object.") -> Callable[[_Function], _Function]:
    """--json, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)
