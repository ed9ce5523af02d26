"""What an event is: a frozen dataclass whose fields are the keys of its line in the journal.

A class `ChunkCommitted` is `chunk_committed` there. To add an event, write its class into the module of its subject:
name, fields, words and severity stand in one place, and everything else finds them there.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, dataclass_transform

from chunkvisor.units import counted

KINDS: dict[str, type["Event"]] = {}
"""By the name in the journal, those whose modules have been imported; `events.decode` imports all."""

Kind = TypeVar("Kind", bound="Event")

Signed = Annotated[int, "may be below zero"]
"""All other whole numbers of events are counts, sizes or numbers of things."""


class Severity(IntEnum):
    """How much an event matters to the person."""

    NEWS = 0
    """As it should be."""
    CARE = 1
    """Something went wrong, and is being mended."""
    LOSS = 2
    """Something is lost or left undone, at least by this run: it is shown even with --quiet."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Event:
    """Something that happened in a run.

    A field with a default may be missing in a journal.
    """

    name: ClassVar[str] = ""
    """In the journal."""
    severity: ClassVar[Severity] = Severity.NEWS
    words: ClassVar[str] = ""
    """A line for people; empty where a person need not know.

    Attributes stand in braces. A noun after the colon counts: `{chunks:chunk}` is `1 chunk` or `2 chunks`.
    """

    # As `dataclass` would write them for each of a hundred classes, at every start of a command.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and type(other) is type(self) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        shown = (f"{item.name}={value!r}" for item, value in zip(fields(self), self._values(), strict=True))
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, item.name) for item in fields(self))

    def details(self) -> dict[str, Any]:
        """Plain values by field, as they stand in the journal."""
        return asdict(self)

    @property
    def line(self) -> str:
        """The words, on one line without control characters; empty where there are none."""
        return plain(self.told_by(self.words)) if self.words else ""

    def told_by(self, words: str) -> str:
        """Other words about it, in which attributes and nouns stand as in its own."""
        return words.format_map(_Attributes(self))


class _Attributes:
    """Of an event, for its words."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def __getitem__(self, name: str) -> Any:
        value = getattr(self._event, name)
        return _Count(value) if type(value) is int else value


class _Count(int):
    """A number that can be written with its noun."""

    def __format__(self, spec: str) -> str:
        return counted(self, spec) if spec[:1].isalpha() and len(spec) > 1 else int.__format__(self, spec)


@dataclass_transform(frozen_default=True)
def event(words: str = "", severity: Severity = Severity.NEWS) -> Callable[[type[Kind]], type[Kind]]:
    """Makes a frozen dataclass with slots of a class of events."""

    def make(kind: type[Kind]) -> type[Kind]:
        made = dataclass(frozen=True, slots=True, eq=False, repr=False)(kind)
        made.name = re.sub("(?<=[a-z])(?=[A-Z])", "_", made.__name__).lower()
        made.words, made.severity = words, severity
        if not made.name.endswith("_event"):  # what several events have in common is none itself
            KINDS[made.name] = made
        return made

    return make


Emit: TypeAlias = Callable[[Event], None]
"""Tells an event to the journal and to the observers."""


def plain(text: str) -> str:
    """The text on one line, with nothing in it that could steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text).strip()
