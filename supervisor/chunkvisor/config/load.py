"""A config file and its --set overrides -> a validated Config, or one message with everything that is wrong.

What is valid, `model` decides; here are the line, the nearest valid key and the words.
"""

import copy
import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from chunkvisor.config.givenvalues import GivenValues, wrong_config
from chunkvisor.config.model import Config
from chunkvisor.config.modelsection import ModelConfig
from chunkvisor.config.sections import EncodeConfig
from chunkvisor.config.suffixes import COMPRESSIONS, FORMATS
from chunkvisor.config.yaml import YamlError, parse
from chunkvisor.errors import config_error

_SIZE_LIMIT_BYTES = 1 << 20


class Given(StrEnum):
    """How a config was given: it decides what a person can do where it is refused."""

    FILE = "file"
    OPTIONS = "options"
    """Of `chunkvisor encode`."""
    ARGUMENTS = "arguments"
    """Of `chunkvisor.encode`."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid config and where it came from."""

    config: Config
    path: Path
    """Absolute."""
    folder: Path
    """Relative paths in the config start here."""
    overrides: tuple[str, ...]
    """KEY=VALUE each, as given."""
    given: Given = Given.FILE

    def trial(self, max_rows: int) -> "LoadedConfig":
        """The same with the workdir of a trial of so many rows, beside its own: neither is in the other's way."""
        workdir = self.config.workdir
        beside = workdir.with_name(f"{workdir.name}-first-{max_rows}")
        return replace(self, config=self.config.model_copy(update={"workdir": beside, "reuse_from": ()}))


def load(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read and validate the file. Raises Halt (exit 78) that lists all problems, each with its line or --set."""
    source = GivenValues(str(path))
    if path.suffix.lower() in FORMATS.keys() | COMPRESSIONS and path.is_file():
        command = f"chunkvisor encode {shlex.quote(str(path))} --column NAME --model MODEL -o OUT.npy"
        remedy = f"to encode this one file: {command}; or name it in a config, which `chunkvisor init` writes"
        raise config_error(f"{path} is a source, not a config", remedy=remedy)
    try:
        document = parse(_read(path))
    except YamlError as error:
        raise wrong_config([f"{source.name}:{error.line}: {error.sentence}"]) from None
    if document.value is None:
        raise wrong_config([f"{source.name}: the file is empty; `chunkvisor init` writes a config to start from"])
    if not isinstance(document.value, dict):
        raise wrong_config([f"{source.name}:1: the file must hold keys and values, such as `workdir: cache`"])
    source.take(document)
    for override in overrides:
        source.override(override)
    folder = path.absolute().parent
    config = source.validate(folder)
    return LoadedConfig(config, path.absolute(), folder, tuple(overrides))


def from_values(values: Mapping[str, Any], folder: Path, overrides: Sequence[str] = ()) -> Config:
    """A Config of plain values, for callers without a file. Raises Halt as `load` does, without lines."""
    source = GivenValues("")
    source.values = copy.deepcopy(dict(values))
    for override in overrides:
        source.override(override)
    return source.validate(folder)


def in_sections(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Values of keys such as `dtype` and `normalize` under the sections `model` and `encode`, which have such keys."""
    kinds: dict[str, type[BaseModel]] = {"model": ModelConfig, "encode": EncodeConfig}
    found = {name: {key: given[key] for key in kind.model_fields if key in given} for name, kind in kinds.items()}
    found["encode"].pop("kwargs", None)  # the argument `kwargs` is that of the model
    return found


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_SIZE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, _yaml_files(path.parent), 1)
        hint = f"`chunkvisor init {shlex.quote(str(path))}` writes a config to start from"
        hint = f"did you mean {path.with_name(near[0])}?" if near else hint
        raise wrong_config([f"{path}: there is no such file; {hint}"]) from None
    except IsADirectoryError:
        inside = _yaml_files(path)
        raise wrong_config(
            [f"{path}: this is a folder" + (f"; did you mean {path / inside[0]}?" if inside else "")]
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise wrong_config([f"{path}: cannot be read: {reason}"]) from None
    if len(data) > _SIZE_LIMIT_BYTES:
        raise wrong_config([f"{path}: larger than {_SIZE_LIMIT_BYTES:,} bytes; this cannot be a config"])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise wrong_config([f"{path}:{line}: not UTF-8 text; save the file in this encoding"]) from None


def _yaml_files(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml"))
    except OSError:
        return []
