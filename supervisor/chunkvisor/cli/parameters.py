"""The arguments and options that several commands share, and how a shell completes them, without reading a config."""

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from chunkvisor.store.layout import Layout
from chunkvisor.units import listed

_MOST = 5
_DEEP = ("", "*/", "*/*/")
"""Folders that are looked at, from the current one on."""


def with_what_is_here(error: click.MissingParameter) -> click.ClickException:
    """The error with what could be given, and a command to type; as it is, where something else is missing."""
    name = error.param.name if error.param is not None else None
    if error.ctx is None or name not in ("workdir", "config"):
        return error
    found = _workdirs() if name == "workdir" else _configs()
    otherwise = "cache/embeddings" if name == "workdir" else "embeddings.yaml"
    where = {"workdir": "the folder of a run, or the config that names it", "config": "a config, in YAML"}[name]
    if found:
        where += f"; here {'is' if len(found) == 1 else 'are'}: {listed(found, _MOST)}"
    elif name == "config":
        where += "; `chunkvisor init` writes one"
    example = f"{error.ctx.command_path} {shlex.quote(found[0] if found else otherwise)}"
    return click.UsageError(f"Missing argument {name.upper()}: {where}. Example: {example}", error.ctx)


def _workdirs() -> list[str]:
    """Near the current folder."""
    hidden = Layout(Path()).hidden.name
    folders = {path.parent for pattern in _DEEP for path in Path().glob(f"{pattern}{hidden}")}
    return _newest_first({folder: Layout(folder).events for folder in folders})


def _configs() -> list[str]:
    return _newest_first({path: path for suffix in ("yaml", "yml") for path in Path().glob(f"*.{suffix}")})


def _newest_first(found: Mapping[Path, Path]) -> list[str]:
    """Those that are not in hidden folders; the values are the files by which it is known when each was changed."""
    shown = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    return [str(path) for path in sorted(shown, key=lambda path: _changed_s(found[path]), reverse=True)]


def _changed_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return float("-inf")


_Function = TypeVar("_Function", bound=Callable[..., Any])
_Items = list["CompletionItem[Any]"]


class Number(click.ParamType):  # type: ignore[type-arg] # generic from click 8.5 on only
    """A number within limits, told in words; of its own ranges click shows `[1<=x<=1000000000000]`."""

    name = "number"

    def __init__(self, kind: type[int] | type[float], least: float, most: float, words: str) -> None:
        """`words` say what it has to be."""
        self._kind = kind
        self._least = least
        self._most = most
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises click.BadParameter."""
        try:
            number = self._kind(value)
        except ValueError:
            number = self._least - 1
        if not self._least <= number <= self._most:
            self.fail(f"{value!r} is not {self._words}", param, ctx)
        return number


_MOST_ROWS = 1_000_000_000_000
"""A number has to fit in 64 bits wherever it goes."""

ROW_COUNT = Number(int, 1, _MOST_ROWS, f"a whole number from 1 to {_MOST_ROWS:,}")
"""Of --max-rows and the like."""


def config_argument(*, required: bool = True) -> Callable[[_Function], _Function]:
    """CONFIG: the path of a config file."""
    return click.argument("config", type=click.Path(path_type=Path), required=required, shell_complete=_complete_config)


def workdir_argument() -> Callable[[_Function], _Function]:
    """WORKDIR: the folder of a run, or the config that names it; of `verify`, also a final file."""
    return click.argument(
        "workdir", type=click.Path(path_type=Path), callback=_named_by_config, shell_complete=_complete_workdir
    )


def set_option(help_text: str) -> Callable[[_Function], _Function]:
    """--set KEY=VALUE, any number of them, as `overrides`."""
    return click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help=help_text, shell_complete=_complete_key
    )


def stop_after_option() -> Callable[[_Function], _Function]:
    """--stop-after TIME, as `stop_after_s`: seconds, or None."""
    return click.option(
        "--stop-after",
        "stop_after_s",
        metavar="TIME",
        callback=_in_seconds,
        help="Stop within TIME (90m, 3h, or seconds); the exit code is 75 if work is left.",
    )


def show_options(function: _Function) -> _Function:
    """The options by which a person chooses; they come to the command as `quiet` and `log_format`."""
    quiet = click.option("-q", "--quiet", is_flag=True, help="Print only what goes wrong, and the final message.")
    log_format = click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="json prints one JSON object for each event, one a line, on standard error.",
    )
    return quiet(log_format(function))


def _in_seconds(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    from chunkvisor.config.values import seconds_of

    try:
        return seconds_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _named_by_config(ctx: click.Context, _param: click.Parameter, path: Path) -> Path:
    """The workdir itself, where a config was given in its place. Raises Halt (78) for a file that is no config."""
    if not path.is_file() or ctx.resilient_parsing:
        return path
    if path.suffix in (".npy", ".parquet", ".json") and _is_final(path, ctx.info_name or ""):
        return path
    from chunkvisor.config.load import load

    return load(path).config.workdir


def _is_final(path: Path, command: str) -> bool:
    """Whether it is a final file, and the command takes one. Raises Halt (78) where it is one, or ends in .npy."""
    from chunkvisor.commands.verify import is_final
    from chunkvisor.errors import config_error, to_check

    if is_final(path):
        if command == "verify":
            return True
        what = f"{path} is a finished file; `chunkvisor {command}` takes the folder of a run, or its config"
        raise config_error(what, remedy=to_check(path))
    if path.suffix == ".npy":
        beside = f"{path.with_suffix('.json').name}, which describes a file of chunkvisor, is not beside it"
        raise config_error(f"{path} is neither a folder of a run nor a config", why=beside)
    return False


def _complete_config(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> _Items:
    """YAML files, where nothing else can be meant; else whatever files the shell finds."""
    folder, start = os.path.split(incomplete)
    try:
        entries = [entry for entry in os.scandir(folder or ".") if entry.name.startswith(start)]
        if not any(entry.is_dir() for entry in entries):
            found = sorted(entry.name for entry in entries if entry.name.endswith((".yaml", ".yml")))
            if found:
                return [CompletionItem(os.path.join(folder, name)) for name in found]  # noqa: PTH118 - as it was typed
    except OSError:
        pass
    return [CompletionItem(incomplete, type="file")]


def _complete_workdir(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> _Items:
    return [CompletionItem(incomplete, type="file")]


def _complete_key(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> _Items:
    """The keys of the config but for those of its outputs, whose names only the file knows."""
    from chunkvisor.config.load import dotted_keys

    return [CompletionItem(f"{key}=") for key in dotted_keys() if key.startswith(incomplete)]
