"""The lists of keys in docs/reference/config.md, from the pydantic models.

Key, default, meaning.
"""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from chunkvisor.config.model import Config, OutputConfig
from md import code, listing


def section(model: type[BaseModel], prefix: str) -> str:
    """The keys of a section."""
    return listing(
        (f"{code(prefix + name)} ({default(field)})", meaning(field))
        for name, field in model.model_fields.items()
        if not is_section(field)  # it has a list
    )


def is_section(field: FieldInfo) -> bool:
    """Whether the key has keys below it."""
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def default(field: FieldInfo) -> str:
    """As it would stand in a config; "required" where there is none."""
    if field.is_required():
        return "required"
    value = TypeAdapter(Any).dump_python(field.get_default(call_default_factory=True), mode="json")
    if isinstance(field.default, BaseModel):
        value = {}
    if isinstance(value, list) and len(value) == 1:
        (value,) = value  # one of something stands for a list of one
    if isinstance(value, int) and value > 1 << 20 and not value % (1 << 30):
        return code(f"{value >> 30}GiB")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return code(yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip())


def meaning(field: FieldInfo) -> str:
    """The sentence of its docstring, with the words that it takes if they are a few."""
    said = (field.description or "").replace("\n", " ").removesuffix(".")
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        missing = [code(each.value) for each in kind if each.value not in said]
        said += f" (takes {', '.join(code(each.value) for each in kind)})" if missing else ""
    return said


def keys(model: type[BaseModel] = Config, prefix: str = "") -> dict[str, FieldInfo]:
    """Dotted name of every key -> its field; those of an output as `outputs.NAME.…`."""
    found = {}
    for name, field in model.model_fields.items():
        found[prefix + name] = field
        if isinstance(kind := field.annotation, type) and issubclass(kind, BaseModel):
            found |= keys(kind, f"{prefix}{name}.")
    return found | (keys(OutputConfig, "outputs.NAME.") if model is Config else {})


def _parts() -> dict[str, Callable[[], str]]:
    parts: dict[str, Callable[[], str]] = {"config": partial(section, Config, "")}
    for name, field in Config.model_fields.items():
        if isinstance(kind := field.annotation, type) and issubclass(kind, BaseModel):
            parts[f"config {name}"] = partial(section, kind, f"{name}.")
    return parts | {"config outputs": partial(section, OutputConfig, "outputs.NAME.")}


PARTS = _parts()
"""Name of a part -> what makes it; one for each section."""
