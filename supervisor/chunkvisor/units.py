"""Sizes and times in the unit that a person reads at a glance.

They never go into JSON or a journal, which have plain numbers.
"""

import time


def human_time(seconds: float) -> str:
    """`42 s`, `12 min`, `3.5 h`, `2.1 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def human_moment(at_s: float) -> str:
    """`2026-01-31 23:59:59`, local time; `at_s` counts from the epoch."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def human_bytes(size: float) -> str:
    """`512 B`, `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
