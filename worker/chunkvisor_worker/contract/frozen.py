"""The decorator of all records that do not change: frozen dataclasses with slots."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make a frozen dataclass with slots of the class.

    `dataclasses.replace` and `asdict` work on it.
    """
    return dataclass(frozen=True, slots=True)(cls)
