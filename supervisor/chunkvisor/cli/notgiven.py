"""What to give where a command was called without its WORKDIR or CONFIG: those that lie in the current folder."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

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
    mark = Layout(Path()).mark.name
    folders = {path.parent for pattern in _DEEP for path in Path().glob(f"{pattern}{mark}")}
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
