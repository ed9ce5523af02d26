"""A slice: the share of one of several runs that work in the same workdir at the same time, on whatever machines."""

import re
from dataclasses import dataclass
from typing import Self

_WORDS = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")
_NAME = re.compile(r"([0-9]{1,6})of([0-9]{1,6})")


@dataclass(frozen=True, slots=True, order=True)
class Slice:
    """Number `number` of `count`, as in 3/8; numbers count from 1. Raises ValueError, with words, for any other."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ValueError(f"{self} is no slice: the first of 8 is 1/8, the last is 8/8")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The slice of these words. Raises ValueError, with words."""
        match = _WORDS.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no slice: it is written as 3/8, the third of eight")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def named(cls, name: str) -> Self | None:
        """The slice that has a folder of this name, None for any other name."""
        match = _NAME.fullmatch(name)
        try:
            found = cls(int(match[1]), int(match[2])) if match else None
        except ValueError:
            return None
        return found if found is not None and found.name == name else None

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.number}of{self.count}"

    def chunks(self, count: int) -> range:
        """Its share of `count` chunks; together, the slices have each of them once. There may be none for it."""
        return range((self.number - 1) * count // self.count, self.number * count // self.count)
