"""Sizes, times and lists in words, as a person reads them at a glance.

JSON and journals have plain numbers.
"""

import difflib
import time
from collections.abc import Iterable, Sequence


def human_time(seconds: float) -> str:
    """Say `42 s`, `12 min`, `3.5 h`, `2.1 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def human_moment(at_s: float) -> str:
    """Say `2026-01-31 23:59:59`, local time; `at_s` counts from the epoch."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def human_bytes(size: float) -> str:
    """Say `512 B`, `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def listed(items: Sequence[str], most: int) -> str:
    """Say `a, b and 3 more`: name the first `most` items, and count the rest."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def which_rows(rows: Sequence[int]) -> str:
    """Say `row 13`, `rows 10 to 19`, `rows 3, 5 to 9 and more`; without rows, nothing.

    `rows` are sorted; at most five ranges of them are named.
    """
    if not rows:
        return ""
    ranges = list[tuple[int, int]]()
    for row in rows:
        if ranges and row == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], row
        else:
            ranges.append((row, row))
    shown = [f"{first}" if first == last else f"{first} to {last}" for first, last in ranges[:5]]
    noun = "row" if len(rows) == 1 else "rows"
    more = " and more" if len(ranges) > 5 else ""
    return f"{noun} {', '.join(shown)}{more}"


def counted(number: int, noun: str) -> str:
    """Say `1 fault`, `2 faults`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "there are") -> str:
    """Say `did you mean run?`; if no name is similar, `there are: run, encode`."""
    known = list(names)
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"{otherwise}: {listed(known, 20)}"


def printable(text: str) -> str:
    """Return the text with a replacement character for each that could steer a terminal."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )
