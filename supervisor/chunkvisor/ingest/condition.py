"""`where`: which rows of a source are rows of the output, by an SQL condition over the columns of each row.

The condition is folded into the expression that gives the text: a row for which it does not hold has none.
"""

from dataclasses import replace

import duckdb

from chunkvisor.errors import config_error
from chunkvisor.ingest.expression import bare_names, changing_calls
from chunkvisor.ingest.request import IngestRequest

OF_THE_MOMENT = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "current_user"}
)
"""Functions that SQL calls without brackets: to the parser they are columns."""


def check_condition(connection: duckdb.DuckDBPyConnection, where: str) -> None:
    """Raise Halt (exit 78) for what is no condition over one row, or would not hold for the same rows tomorrow."""
    changing = {
        *changing_calls(connection, where, "where"),
        *OF_THE_MOMENT.intersection(bare_names(connection, where)),
    }
    if names := sorted(changing):
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
