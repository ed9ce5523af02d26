"""JSON lines: one object a line, read as a stream with the line of each; numbers stay as the source writes them."""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from chunkvisor.ingest.lines import decode, lines
from chunkvisor.ingest.problem import blank_line, input_error, missing_column, too_deep
from chunkvisor.ingest.sources import SourceFile
from chunkvisor.ingest.values import Number, Row

_ENDS = ("\n", "\r\n", "")
"""Of a line."""


class _Ambiguous(dict[str, Any]):
    """An object that has a key twice."""

    __slots__ = ("keys_twice",)
    keys_twice: set[str]


def read_jsonl(
    file: SourceFile, columns: Sequence[str], *, skip_blank: bool = False, limit: int | None = None
) -> Iterator[Row]:
    """The first `limit` rows with the values of `columns`; a key that a line lacks is None.

    Raises Halt (exit 78) for bad input, and for a column that no line of the whole file has. Without columns the
    lines are only counted.
    """
    if not columns:
        yield from islice(((number, ()) for number, _ in _filled_lines(file, skip_blank=skip_blank)), limit)
        return
    missing = set(columns)
    known: dict[str, None] = {}
    rows = 0
    for number, item in read_objects(file, skip_blank=skip_blank):
        if missing:
            missing -= item.keys()
            if len(known) < 1000:  # enough to name the nearest; keys that are data must not fill the memory
                known |= dict.fromkeys(item)
        if rows != limit:
            if isinstance(item, _Ambiguous) and (twice := item.keys_twice.intersection(columns)):
                raise input_error(
                    file.path, f"the object has the key {min(twice)!r} twice.", line=number, remedy="Keep one of them."
                )
            rows += 1
            yield number, [item.get(column) for column in columns]
        # Past the limit the rest is only searched for keys that the rows asked for happen to lack.
        if rows == limit and not missing:
            return
    if rows and missing:
        raise missing_column(file.path, min(missing), known, why="No line of the file has that key.")


def read_objects(file: SourceFile, *, skip_blank: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each row. Raises Halt (exit 78) for bad input."""
    parse, opening = _parser(), b""
    for number, line in _filled_lines(file, skip_blank=skip_blank):
        opening = opening or line.strip()[:2]
        text = decode(file.path, number, line)
        try:
            item = parse(text)
        except ValueError as error:
            what = str(error)
            if isinstance(error, json.JSONDecodeError):
                what = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
            raise input_error(
                file.path,
                f"malformed JSON: {what}.",
                line=number,
                remedy=_advice(file.path, number, opening),
            ) from error
        except RecursionError as error:
            raise too_deep(file.path, number) from error
        if not isinstance(item, dict):
            raise input_error(
                file.path,
                "the line is JSON, but no object.",
                line=number,
                remedy='Each line must be an object, such as {"text": "..."}.',
            )
        yield number, item


def _advice(path: Path, number: int, opening: bytes) -> str:
    """What to do about a line that is not JSON, by the first characters of the file's first line that is not blank.

    To a file that has one object a line, jq's `.[]` would do harm: it takes the objects apart.
    """
    name = shlex.quote(str(path))
    unpack = {".gz": f"zcat {name} | ", ".zst": f"zstdcat {name} | "}.get(path.suffix.lower(), "")
    given = "" if unpack else f" {name}"
    if opening.startswith(b"[") or opening == b"{":
        items = "'.[]'" if opening.startswith(b"[") else "."
        return (
            "Each line must be one whole JSON object. This file is an array or is indented; to convert it: "
            f"{unpack}jq -c {items}{given} > converted.jsonl"
        )
    return (
        f"Each line must be one whole JSON object. This one seems to be cut off or damaged; to look at it: {unpack}"
        f"sed -n {number}p{given}. Correct it or fetch the file again, then run the same command again."
    )


def _parser() -> Callable[[str], object]:
    """What one JSON text stands for. Raises ValueError, RecursionError."""
    decoder = json.JSONDecoder(
        object_pairs_hook=_object, parse_float=Number, parse_int=Number, parse_constant=_refuse_constant
    )
    scan = decoder.scan_once  # type: ignore[attr-defined] # typeshed leaves it out

    def parse(text: str) -> object:
        # A third of the time of `decode` are its searches for white space, which most lines have at their end alone.
        try:
            item, end = scan(text, 0)
        except StopIteration:
            return decoder.decode(text)
        return item if text[end:] in _ENDS else decoder.decode(text)

    return parse


def _filled_lines(file: SourceFile, *, skip_blank: bool) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank; blank ones may end the file, in the middle they are refused unless `skip_blank`."""
    blank = 0
    for number, line in lines(file):
        if not line.strip(b" \t\r\n"):
            blank = blank or number
            continue
        if blank and not skip_blank:
            raise blank_line(file.path, blank)
        yield number, line


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) == len(pairs):
        return item
    # Refused only where it matters: a twin in some nested object that nobody reads does no harm.
    ambiguous = _Ambiguous(item)
    seen: set[str] = set()
    ambiguous.keys_twice = {key for key, _ in pairs if key in seen or seen.add(key)}  # type: ignore[func-returns-value] # add() returns None on purpose
    return ambiguous


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
