"""The query over a database: one SELECT whose rows come in the same order each time. Text only; nothing is run.

SQL promises an order for an outermost ORDER BY alone, and none among rows that are equal in it. So there has to be
one, and the columns of the result are put behind it, from left to right: rows that still tie are alike.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from chunkvisor.errors import Halt, config_error


class Dialect(Enum):
    """What differs between the two: how names and texts are quoted, and what may stand behind an ORDER BY."""

    DUCKDB = (
        r"""[eE]'(?:[^'\\]|\\.|'')*' | (?P<dollar>\$\w*\$).*?(?P=dollar)""",
        ("LIMIT", "OFFSET", "FETCH", "USING"),
        "",
    )
    SQLITE = (r"`[^`]*` | \[[^\]]*\]", ("LIMIT",), " COLLATE BINARY")

    def __init__(self, quotes: str, tails: tuple[str, ...], plain: str) -> None:
        self.tails = tails
        self.plain = plain
        """Behind a column: its values are compared as they are, whatever order the table has for them."""
        self.tokens = re.compile(
            rf"""(?P<comment>--[^\n]*|/\*.*?\*/|\s+) | (?P<quoted>{quotes}|'(?:[^']|'')*'|"(?:[^"]|"")*")
            | (?P<open>[(\[{{]) | (?P<close>[)\]}}]) | (?P<word>\w+) | (?P<end>;) | (?P<other>.)""",
            re.VERBOSE | re.DOTALL,
        )


@dataclass(slots=True)
class _Level:
    """What stands between two brackets."""

    ordered: bool = False
    by_all: bool = False
    """By all of the result's columns already."""
    tail: int | None = None
    """Where the ORDER BY ends, if something is behind it."""


def one_statement(query: str, dialect: Dialect) -> str:
    """The query without what ends it. Raises Halt (exit 78) for more than one statement."""
    end, ended = 0, False
    for kind, word, start in _tokens(query, dialect):
        if ended:
            raise config_error(f"`query` is more than one statement: {query}", remedy="Keep one SELECT.")
        ended = kind == "end"
        end = end if ended else start + len(word)
    return query[:end]


def in_fixed_order(query: str, dialect: Dialect, columns: int) -> str:
    """The one statement, which the database takes, with its result's columns behind those of its ORDER BY.

    Raises Halt (exit 78) where there is no ORDER BY, and where a LIMIT takes some rows of no order.
    """
    levels, end, previous = [_Level()], 0, ""
    for kind, word, start in _tokens(query, dialect):
        before, end = end, start + len(word)
        word, level = word.upper() if kind == "word" else word, levels[-1]
        if kind == "open":
            levels.append(_Level())
        elif kind == "close" and len(levels) > 1:
            levels.pop()
        elif word == "BY" and previous == "ORDER":
            level.ordered, word = True, "ORDER BY"
        elif word == "ALL" and previous == "ORDER BY":
            level.by_all = True
        elif word in dialect.tails and kind == "word":
            if word == "LIMIT" and not level.ordered:
                raise _no_order(query, "a LIMIT without an ORDER BY of its own, which takes other rows each time")
            if level.ordered and level.tail is None:
                level.tail = before
        previous = word
    (whole,) = levels[:1]
    if not whole.ordered:
        raise _no_order(query, "no ORDER BY at its end, and without one a database gives rows in any order")
    if whole.by_all:
        return query
    behind = "".join(f", {number}{dialect.plain}" for number in range(1, columns + 1))
    cut = whole.tail if whole.tail is not None else end
    return query[:cut] + behind + query[cut:]


def _tokens(query: str, dialect: Dialect) -> Iterator[tuple[str, str, int]]:
    """(kind, text, place) of each, without comments and spaces."""
    for match in dialect.tokens.finditer(query):
        if match.lastgroup is not None and match.lastgroup != "comment":
            yield match.lastgroup, match[0], match.start()


def _no_order(query: str, what: str) -> Halt:
    return config_error(
        f"`query` has {what}: {query}",
        why="Row i of the final file is row i of the query, and has to be so when it is read again. "
        "The ORDER BY of a subquery does not count.",
        remedy='End it with the column that numbers the rows, such as "… ORDER BY id".',
    )
