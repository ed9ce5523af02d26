"""Values: what the cells of a row are, and the text that they make."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from chunkvisor.ingest.request import IngestRequest, Part, parse_template

Cell: TypeAlias = Any
"""str, `Number`, bool, None, list or dict; CSV and plain text have str only."""
Row: TypeAlias = tuple[int, Sequence[Cell]]
"""Line on which the row starts, counted from 1, and the wanted columns' cells."""
Composer: TypeAlias = Callable[[Sequence[Cell]], str]
"""Cells to text. Raises `NotTextError`."""


class Number(str):
    """A JSON number as its source writes it: no digit is lost, and 1.10 stays 1.10."""

    __slots__ = ()


class NotTextError(ValueError):
    """A value that is no text; says which, for the person."""


def composer(request: IngestRequest) -> tuple[tuple[str, ...], Composer]:
    """The columns that a request by column or template needs, and how their cells make a text."""
    if request.column is not None:
        return (request.column,), _only_text(request.column)
    assert request.template is not None
    parts = parse_template(request.template)
    columns = tuple(dict.fromkeys(part.column for part in parts if part.column is not None))
    return columns, _filler(parts, columns)


def json_text(cell: Cell) -> str:
    """The cell as JSON, its numbers as the source writes them."""
    if isinstance(cell, Number):
        return str(cell)
    if isinstance(cell, list):
        return "[" + ", ".join(json_text(item) for item in cell) + "]"
    if isinstance(cell, dict):
        return "{" + ", ".join(f"{json_text(key)}: {json_text(value)}" for key, value in cell.items()) + "}"
    return json.dumps(cell, ensure_ascii=False)


def _only_text(column: str) -> Composer:
    def text(cells: Sequence[Cell]) -> str:
        cell = cells[0]
        if type(cell) is str:
            return cell
        if cell is None:
            return ""
        raise NotTextError(f"column {column!r} holds {_kind(cell)}, not text.")

    return text


def _filler(parts: Sequence[Part], columns: Sequence[str]) -> Composer:
    # A place is the index of its column, a literal stands for itself.
    pieces = [columns.index(part.column) if part.column is not None else part.literal for part in parts]

    def text(cells: Sequence[Cell]) -> str:
        filled = [_fill(columns[index], cell) for index, cell in enumerate(cells)]
        return "".join([piece if isinstance(piece, str) else filled[piece] for piece in pieces])

    return text


def _fill(column: str, cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    raise NotTextError(f"column {column!r} holds {_kind(cell)}, which a template cannot take.")


def _kind(cell: Cell) -> str:
    if isinstance(cell, Number):
        return "a number"
    return {bool: "a boolean", list: "an array", dict: "an object"}[type(cell)]
