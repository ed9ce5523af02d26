"""Makes events of a journal's lines and a node's reports; what is damaged or of another version is passed over."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, TypeAlias, get_type_hints

from chunkvisor.events import attempt, device, model, output, run
from chunkvisor.events.event import KINDS, Event, Signed

SUBJECTS = (run, model, output, attempt, device)
"""The modules of events; importing them fills KINDS."""
_MOST = 1 << 53
"""Larger numbers are not exact in JSON, and none of ours."""

Read: TypeAlias = Callable[[Any], Any]
"""A value of a field from one of JSON; None where it cannot be."""


class _Field(NamedTuple):
    name: str
    read: Read
    default: Any
    """MISSING where it is required."""


def event_of(name: str, details: Mapping[str, Any]) -> Event | None:
    """The event; None where there is none of that name, or a field without a default is missing or wrong."""
    if (kind := KINDS.get(name)) is None:
        return None
    values = []
    for key, read, default in _fields_of(name):
        value = details.get(key)
        if value is None or (value := read(value)) is None:
            if default is MISSING:
                return None
            value = default
        values.append(value)
    return kind(*values)


@functools.cache
def _fields_of(name: str) -> tuple[_Field, ...]:
    hints, found = get_type_hints(KINDS[name], include_extras=True), []
    for item in fields(KINDS[name]):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        found.append(_Field(item.name, _READ[hints[item.name]], default))
    return tuple(found)


def _reader(kinds: Any, least: float = 0) -> Read:
    """Reads numbers of these types from `least` on; NaN and a truth value are none."""

    def read(value: Any) -> Any:
        return value if isinstance(value, kinds) and type(value) is not bool and least <= value < _MOST else None

    return read


_count, _signed, _any_number = _reader(int), _reader(int, -_MOST), _reader(int | float, -_MOST)


def _number(value: object) -> float | None:
    return None if _any_number(value) is None else float(_any_number(value))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _all_of(read: Read) -> Read:
    def read_all(values: object) -> tuple[Any, ...] | None:
        found = tuple(read(value) for value in values) if isinstance(values, list | tuple) else (None,)
        return None if None in found else found

    return read_all


def _seconds(values: object) -> dict[str, float] | None:
    if not isinstance(values, dict):
        return None
    return {str(key): number for key, value in values.items() if (number := _number(value)) is not None}


_READ: dict[Any, Read] = {
    str: _text,
    bool: _flag,
    int: _count,
    int | None: _count,
    Signed: _signed,
    float: _number,
    float | None: _number,
    tuple[str, ...]: _all_of(_text),
    tuple[int, ...]: _all_of(_count),
    dict[str, float]: _seconds,
}
