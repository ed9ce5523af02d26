"""The list of events in docs/reference/machine-readable.md, from the classes of events."""

import re
from dataclasses import MISSING, Field, fields
from typing import Any

from chunkvisor.events.event import KINDS, Event, Weight
from md import code, listing


def events() -> str:
    """Every event, in the order of their classes."""
    known = dict[str, str]()
    entries = []
    for kind in KINDS.values():
        listed = _fields(kind)
        # A list as long as that of `attempt_failed` is written once.
        first = known.setdefault(listed, kind.name)
        same = first != kind.name and listed.count(",") > _SHORT
        entries.append((code(kind.name), f"{_meaning(kind)} {f'Fields as {code(first)}.' if same else listed}".strip()))
    return listing(entries)


_PLACE = {"output", "chunk", "attempt"}
"""Fields that the page explains once, for all events."""

_SHORT = 3
"""Lists of fields with no more commas than this are repeated."""


def _meaning(kind: type[Event]) -> str:
    own = (kind.__doc__ or "").partition("\n")[0]
    said = "" if own.startswith(f"{kind.__name__}(") else own  # what dataclass writes where there is none
    shown = _shown(kind)
    weight = "" if kind.weight is Weight.NEWS else f"**{kind.weight.name.lower()}:** "
    return weight + (said or (code(shown) if shown else ""))


def _shown(kind: type[Event]) -> str:
    """The line for people, with the names of fields in it; what is put together of several is left out."""
    names = {item.name for item in fields(kind)}
    counted = re.sub(r"{(\w+):([a-z][a-zA-Z ]+)}", r"{\1} \2s", kind.words, flags=re.IGNORECASE)
    return re.sub(r"{(\w+)}", lambda found: found[0] if found[1] in names else "", counted).strip()


def _fields(kind: type[Event]) -> str:
    told = [item for item in fields(kind) if item.name not in _PLACE]
    return ", ".join(code(item.name) + ("" if _required(item) else "?") for item in told)


def _required(item: "Field[Any]") -> bool:
    return item.default is MISSING and item.default_factory is MISSING
