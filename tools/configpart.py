"""The tables of docs/reference/config.md, from the pydantic models: key, default, what is taken, meaning."""

import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from chunkvisor.config.load import what_is_right
from chunkvisor.config.model import Config, OutputConfig
from md import code, table


def section(model: type[BaseModel], prefix: str) -> str:
    """The keys of a section."""
    rows = [
        (code(prefix + name), default(field), takes(field), _sentence(field.description or ""))
        for name, field in model.model_fields.items()
    ]
    return table(("key", "default", "takes", "meaning"), rows)


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


def takes(field: FieldInfo) -> str:
    """What is right for the key, in the words of the error for anything else."""
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "a section"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(code(each.value) for each in kind)
    try:
        annotated: Any = Annotated
        TypeAdapter(annotated[kind, None, *field.metadata]).validate_python(object())
    except ValidationError as error:
        (first, *_) = error.errors()
        what = what_is_right(first).replace("a whole number from 1 to 1,000,000,000", "a count")
        if field.default is None:  # the column of defaults shows that null is taken
            what = re.sub(r"(, | )or null$", "", what)
        return _SHORT.get(what, what)
    raise AssertionError(f"{field} takes anything")


_SHORT = {
    'a positive number of seconds, or a time like "90s", "10m" or "2h"': "a time",
    "a mapping with plain values only (text, finite numbers, true, false, null, lists, mappings)": "a mapping",
}
"""Words of errors that are longer than a table needs -> what its page says elsewhere."""


def keys(model: type[BaseModel] = Config, prefix: str = "") -> dict[str, FieldInfo]:
    """Dotted name of every key -> its field; those of an output as `outputs.NAME.…`."""
    found = {}
    for name, field in model.model_fields.items():
        found[prefix + name] = field
        if isinstance(kind := field.annotation, type) and issubclass(kind, BaseModel):
            found |= keys(kind, f"{prefix}{name}.")
    return found | (keys(OutputConfig, "outputs.NAME.") if model is Config else {})


def _sentence(text: str) -> str:
    return text.replace("\n", " ").removesuffix(".")


def _parts() -> dict[str, Callable[[], str]]:
    parts: dict[str, Callable[[], str]] = {"config": partial(section, Config, "")}
    for name, field in Config.model_fields.items():
        if isinstance(kind := field.annotation, type) and issubclass(kind, BaseModel):
            parts[f"config {name}"] = partial(section, kind, f"{name}.")
    return parts | {"config outputs": partial(section, OutputConfig, "outputs.NAME.")}


PARTS = _parts()
"""Name of a part -> what makes it; one for each section."""
