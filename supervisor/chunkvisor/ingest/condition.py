"""`where`: which rows of a source are rows of the output, by an SQL condition over the columns of each row.

The condition is folded into the expression that gives the text: a row for which it does not hold has none.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import duckdb

from chunkvisor.errors import config_error
from chunkvisor.ingest.database import literal
from chunkvisor.ingest.expression import check_expression
from chunkvisor.ingest.request import IngestRequest

_OF_THE_MOMENT = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "current_user"}
)
"""Functions that SQL calls without brackets: to the parser they are columns."""


def check_condition(connection: duckdb.DuckDBPyConnection, where: str) -> None:
    """Raise Halt (exit 78) for what is no condition over one row, or would not hold for the same rows tomorrow."""
    check_expression(connection, where, key="where")
    statement = literal(f"SELECT (\n{where}\n)")
    ((tree,),) = connection.execute(f"SELECT json_serialize_sql({statement})").fetchall()
    called = sorted(set(_called(json.loads(tree))))
    changing = connection.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() "
        "WHERE stability IN ('VOLATILE', 'CONSISTENT_WITHIN_QUERY') AND list_contains($1, function_name)",
        [called],
    ).fetchall()
    if names := sorted({name for (name,) in changing} | (_OF_THE_MOMENT & set(called))):
        raise config_error(
            f"`where` has {names[0]}, which gives something else each time: {where}",
            why="The next run would take other rows for those that are done.",
            remedy="Write the value itself, such as a date.",
        )


def folded(where: str, sql: str) -> str:
    """The expression that gives the text of rows for which the condition holds, and NULL for the others."""
    return f"CASE WHEN ((\n{where}\n)::BOOLEAN) THEN coalesce((\n{sql}\n), '') END"


def question(request: IngestRequest) -> IngestRequest:
    """The request for the condition alone: its rows have a text where it holds."""
    assert request.where is not None
    return replace(request, column=None, template=None, sql=folded(request.where, "''"))


def _called(node: Any) -> Iterator[str]:
    """Names of functions in a parsed statement, and those of columns without a table, in lower case."""
    if isinstance(node, list):
        for each in node:
            yield from _called(each)
    elif isinstance(node, dict):
        if isinstance(name := node.get("function_name"), str):
            yield name.lower()
        if node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
            yield from {str(node["column_names"][0]).lower()} & _OF_THE_MOMENT
        yield from _called(list(node.values()))
