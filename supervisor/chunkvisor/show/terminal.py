"""Chooses how a command shows a run: the live view, lines, or JSON."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from chunkvisor.errors import Halt
from chunkvisor.events.event import Severity
from chunkvisor.show.observer import Observer, Observers


@contextlib.contextmanager
def shown(quiet: bool, log_format: str) -> Iterator[Observer]:
    """What to hand to a run. With JSON, a Halt becomes an object and an exit here."""
    least = Severity.LOSS if quiet else Severity.NEWS
    if log_format == "json":
        from chunkvisor.show.console import JsonLines

        lines = JsonLines(least=least)
        try:
            yield lines
        except Halt as halt:
            lines.last_words(halt)
            sys.exit(int(halt.code))
        return
    yield choose(least)


def choose(least: Severity) -> Observer:
    """The live view where there is a terminal that can show it and the person wants news, else lines."""
    if least is Severity.NEWS and can_draw(sys.stderr):
        from chunkvisor.show.live import Live

        return Observers(guarded=[Live()])
    from chunkvisor.show.console import Console

    return Console(least=least)


def can_draw(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    try:
        return stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
    except ValueError:  # closed
        return False
