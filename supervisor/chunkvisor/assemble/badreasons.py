"""Rows without a vector, grouped by the reason: a hundred rows with one reason are one thing to understand. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkvisor.units import counted

_NUMBERS = re.compile(r"\d+")
"""In which reasons may differ that are the same: of a line, of a text."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class BadReason:
    """Why rows have no vector."""

    outcome: str
    """What became of the attempts at them."""
    reason: str
    """Of the first of them; of the others it may differ in numbers."""
    rows: int
    """How many."""

    @property
    def words(self) -> str:
        """`27 rows: crashed: …`."""
        return f"{counted(self.rows, 'row')}: {self.outcome}: {self.reason}"


def reasons_of(rows: Iterable[Mapping[str, Any]]) -> tuple[BadReason, ...]:
    """The reasons of rows as a manifest lists them, the most frequent first."""
    first, counts = dict[tuple[str, str], tuple[str, str]](), dict[tuple[str, str], int]()
    for row in rows:
        outcome, reason = str(row["outcome"]), str(row["reason"])
        key = outcome, _NUMBERS.sub("0", reason)
        first.setdefault(key, (outcome, reason))
        counts[key] = counts.get(key, 0) + 1
    return tuple(BadReason(*first[key], counts[key]) for key in sorted(counts, key=lambda key: -counts[key]))


def reasons_in_words(reasons: Sequence[BadReason], rows: int) -> list[str]:
    """Lines about the reasons of so many rows, of which a manifest may list only the first."""
    if rows == 1:
        return [f"{each.outcome}: {each.reason}" for each in reasons]
    if len(reasons) == 1 and reasons[0].rows == rows:
        return [f"all {rows:,} for the same reason: {reasons[0].outcome}: {reasons[0].reason}"]
    lines = [each.words for each in reasons[:_SHOWN]]
    if others := reasons[_SHOWN:]:
        lines.append(f"{counted(sum(each.rows for each in others), 'row')}: {counted(len(others), 'other reason')}")
    if (unlisted := rows - sum(each.rows for each in reasons)) > 0:
        lines.append(f"{counted(unlisted, 'row')}: see the file that lists all of them")
    return lines
