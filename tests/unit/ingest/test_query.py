"""The order of a query's rows: which queries have one, and how rows that tie get theirs."""

import pytest

from chunkvisor.errors import Halt
from chunkvisor.ingest.query import Dialect, in_fixed_order, one_statement

DUCKDB, SQLITE = Dialect.DUCKDB, Dialect.SQLITE


ADDED = {DUCKDB: ", 1, 2", SQLITE: ", 1 COLLATE BINARY, 2 COLLATE BINARY"}


@pytest.mark.parametrize(
    ("dialect", "head", "tail", "dropped"),
    [
        (DUCKDB, "SELECT a, b FROM t ORDER BY a", "", ""),
        (DUCKDB, "SELECT a, b FROM t ORDER BY a DESC", " LIMIT 5", "; -- end"),
        (DUCKDB, "FROM t JOIN u USING (id) ORDER BY a", " OFFSET 3", ";"),
        (DUCKDB, "SELECT a, b FROM t ORDER BY a", " -- ;\n LIMIT 5", "\n"),
        (DUCKDB, "SELECT 1 UNION SELECT 2 ORDER /* by */ BY 1", "", " /* end */"),
        (DUCKDB, "FROM (FROM t ORDER BY a LIMIT 3) ORDER BY b", "", ""),
        (DUCKDB, r"SELECT E'it\'s ;', $$ ( $$, t['x;'] FROM t ORDER BY a", "", ""),
        (SQLITE, "select a, b from t order by a collate nocase", "", ""),
        (SQLITE, "SELECT [a(], `b;` FROM t ORDER BY [limit]", " LIMIT 5, 10", ";"),
    ],
)
def test_ties_are_broken_by_the_columns(dialect: Dialect, head: str, tail: str, dropped: str) -> None:
    """The columns of the result stand behind those of the outermost ORDER BY, and nothing else is changed."""
    found = in_fixed_order(one_statement(head + tail + dropped, dialect), dialect, 2)
    assert found == head + ADDED[dialect] + tail


def test_by_all() -> None:
    """An order by all columns is left as it is."""
    assert in_fixed_order("FROM t ORDER BY ALL DESC", DUCKDB, 2) == "FROM t ORDER BY ALL DESC"


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT a FROM t", "no ORDER BY at its end"),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", "no ORDER BY at its end"),
        ("WITH c AS (SELECT a FROM t ORDER BY a) SELECT a FROM c", "no ORDER BY at its end"),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", "no ORDER BY at its end"),
        ("SELECT 'ORDER BY a' AS \"ORDER BY a\" FROM t -- ORDER BY a\n/* ORDER BY a */", "no ORDER BY at its end"),
        ("SELECT a FROM t LIMIT 3", "a LIMIT without an ORDER BY"),
        ("SELECT a FROM (SELECT a FROM t LIMIT 3) ORDER BY a", "a LIMIT without an ORDER BY"),
        ("SELECT a FROM t ORDER BY a; DROP TABLE t", "more than one statement"),
    ],
)
def test_no_fixed_order(dialect: Dialect, query: str, words: str) -> None:
    """A query whose rows may come in another order, or be others, is refused with the reason."""
    with pytest.raises(Halt, match=words) as raised:
        in_fixed_order(one_statement(query, dialect), dialect, 1)
    assert raised.value.code == 78
