"""The list of events in docs/reference/machine-readable.md, from the classes of events."""

import re
from dataclasses import fields

from chunkvisor.events.event import KINDS, Event, Weight
from md import code, listing


def events() -> str:
    """Every event, in the order of their classes."""
    return listing((code(kind.name), _meaning(kind)) for kind in KINDS.values())


def _meaning(kind: type[Event]) -> str:
    own = (kind.__doc__ or "").partition("\n")[0]
    # what dataclass writes where there is none
    said = "" if own.startswith(f"{kind.__name__}(") else own
    shown = _shown(kind)
    weight = "" if kind.weight is Weight.NEWS else f"**{kind.weight.name.lower()}:** "
    return weight + (said or (code(shown) if shown else ""))


def _shown(kind: type[Event]) -> str:
    """The line for people, with the names of fields in it.

    What is put together of several is left out.
    """
    names = {item.name for item in fields(kind)}
    counted = re.sub(r"{(\w+):([a-z][a-zA-Z ]+)}", r"{\1} \2s", kind.words, flags=re.IGNORECASE)
    return re.sub(r"{(\w+)}", lambda found: found[0] if found[1] in names else "", counted).strip()
