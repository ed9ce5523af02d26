"""The arguments and options that several commands share."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from chunkvisor.config.load import RowChoice

# The type of an option that counts rows, such as --max-rows; such counts are kept in 64 bits.
ROW_COUNT = click.IntRange(1, 1_000_000_000_000)
PATH = click.Path(path_type=Path)


def command(name: str, example: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command whose help ends with an example.

    The backspace keeps click from wrapping the paragraph.
    """
    return click.command(name, epilog=f"\b\nExample: chunkvisor {name} {example}")


flag = partial(click.option, is_flag=True)


def text_option(name: str, metavar: str, words: str) -> Callable[..., Any]:
    """Make an option whose text goes into the config, which checks it."""
    return click.option(name, metavar=metavar, help=words)


def _in_seconds(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    from chunkvisor.config.model import seconds_of

    try:
        return seconds_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _part(ctx: click.Context, _param: click.Parameter, text: str | None) -> None:
    """Keep (3, 8) of 3/8 for `_rows` and `_named_by_config`: a part has its own workdir."""
    numbers = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text or "")
    part = (int(numbers[1]), int(numbers[2])) if numbers else None
    if text is not None and (part is None or not 1 <= part[0] <= part[1]):
        raise click.BadParameter(f"{text} is not a part such as 3/8, counted from 1")
    ctx.meta["part"] = part


def _rows(ctx: click.Context, _param: click.Parameter, max_rows: int | None) -> "RowChoice":
    """Return the rows that --max-rows or --part asks for. Raises UsageError for both."""
    from chunkvisor.config.load import RowChoice

    part = ctx.meta["part"]
    if max_rows and part:
        raise click.UsageError("--max-rows cannot be combined with --part.")
    return RowChoice(max_rows, part)


def _named_by_config(ctx: click.Context, _param: click.Parameter, path: Path) -> Path:
    """Return the workdir: the path itself, or that of the config at the path.

    Raises Halt (78) for a file that is not a config.
    """
    if not path.is_file() or ctx.resilient_parsing:
        return path
    from chunkvisor.commands.housekeeping import is_final
    from chunkvisor.config.load import RowChoice, load

    if (
        ctx.info_name == "verify"
        and path.suffix in (".npy", ".parquet", ".json")
        and is_final(path)
    ):
        return path
    return load(path).of_rows(RowChoice(part=ctx.meta.get("part"))).config.workdir


config_argument = click.argument("config", type=PATH)
# The folder of a run, or the config that names it; of `verify`, also a final file.
workdir_argument = click.argument("workdir", type=PATH, callback=_named_by_config)
# Handled before the WORKDIR, whatever the order in which they were typed.
part_option = click.option(
    "--part",
    metavar="K/N",
    callback=_part,
    is_eager=True,
    expose_value=False,
    help="The K-th of N equal parts of the rows, in WORKDIR-part-K-of-N.",
)
rows_option = partial(
    click.option, "--max-rows", "rows", type=ROW_COUNT, metavar="N", callback=_rows
)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a config key, e.g. chunk.size=200.",
)
json_option = flag("--json", "as_json", help="Print JSON.")
stop_after = click.option(
    "--stop-after",
    "stop_after_s",
    metavar="TIME",
    callback=_in_seconds,
    help="Stop within TIME (90m, 3h, or seconds); the exit code is 75 if work is left.",
)
quiet = flag("-q", "--quiet", help="Print only failures and the final message.")
log_format = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="json prints each event as a JSON object on its own line, on standard error.",
)
