"""Messages about bad input: which file, where in it, and what is wrong."""

import difflib
from collections.abc import Iterable
from pathlib import Path

from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.store.disk import DISK_ERRNOS, FORBIDDEN_ERRNOS, LIMIT_ERRNOS, with_room

MAX_TEXT_BYTES = 16 << 20
"""Of UTF-8, of one text."""
MAX_RECORD_BYTES = 64 << 20
"""Of one line or CSV record; above a text's limit, for its other columns and JSON's escapes."""
_LISTED_COLUMNS = 60


def input_error(
    path: Path, what: str, *, line: int | None = None, row: int | None = None, why: str = "", remedy: str = ""
) -> Halt:
    """A Halt (exit 78) for a fault in a source; lines are counted from 1, rows of the file from 0."""
    where = f", line {line}" if line is not None else f", row {row} (counted from 0)" if row is not None else ""
    return config_error(f"{path}{where}: {what}", why=why, remedy=remedy)


def refused(error: OSError, folder: Path) -> Halt | None:
    """A Halt for what the machine refuses on the way into `folder`; None where it can only be a bug of ours."""
    if error.errno in DISK_ERRNOS:
        return disk_full(folder, error)
    if error.errno in LIMIT_ERRNOS:
        return Halt(
            ExitCode.MACHINE,
            "The process that reads the sources has met a limit of this machine.",
            why=str(error),
            remedy="Raise the limits of open files and memory (ulimit -a shows them), then run the same command again.",
        )
    if error.errno in FORBIDDEN_ERRNOS:
        return config_error(
            f"{error.filename or folder} may not be used.",
            why=str(error),
            remedy="Have its owner give you the right to (chmod, chown), or run as its owner.",
        )
    return None


def disk_full(folder: Path, error: BaseException | None = None) -> Halt:
    """A Halt for a disk that is full or failing on the way into `folder`."""
    return Halt(
        ExitCode.DISK,
        f"The disk is full or failing while the sources are read into {folder}.",
        why=with_room(str(error or ""), folder),
        remedy="Free some space there, or move the workdir to another disk.",
    )


def missing_column(path: Path, name: str, columns: Iterable[str], *, why: str = "") -> Halt:
    """A Halt for a column that the file does not have; names the nearest and lists them all."""
    known = list(dict.fromkeys(column for column in columns if column))
    folded = {column.casefold(): column for column in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    listed = ", ".join(repr(column) for column in known[:_LISTED_COLUMNS]) + ", ..." * (len(known) > _LISTED_COLUMNS)
    suggestion = f"The nearest is {folded[near[0]]!r}. " if near else ""
    return input_error(
        path, f"there is no column {name!r}.", why=why, remedy=f"{suggestion}The columns are: {listed or 'none'}."
    )


def too_large(path: Path, size_bytes: int, *, line: int | None = None, row: int | None = None) -> Halt:
    """A Halt for a text above `MAX_TEXT_BYTES`."""
    return input_error(
        path,
        f"the text has {size_bytes:,} bytes of UTF-8, more than the {MAX_TEXT_BYTES:,} that one may have.",
        line=line,
        row=row,
        why="No model reads that much; most such rows are damage, such as a quote that is never closed.",
        remedy="Correct or shorten it in the source, or use sql: left(column, 100000).",
    )


def too_deep(path: Path, line: int) -> Halt:
    """A Halt for JSON in JSON in JSON, hundreds of times."""
    return input_error(path, "the JSON is nested too deeply.", line=line)


def blank_line(path: Path, line: int) -> Halt:
    """A Halt for a blank line in the middle of a file: nobody can tell what it stands for."""
    return input_error(path, "the line is blank, and rows follow.", line=line, remedy="Remove the blank line.")


def refuse_case_twins(path: Path, columns: Iterable[str]) -> None:
    """Raise a Halt where two names differ only in case: SQL would silently take one of them for the other."""
    seen: dict[str, str] = {}
    for column in columns:
        # DuckDB folds ASCII only; folding more refuses at worst a file that it could tell apart.
        twin = seen.setdefault(column.casefold(), column)
        if twin != column:
            raise input_error(
                path,
                f"the columns {twin!r} and {column!r} differ only in case, and SQL cannot tell them apart.",
                remedy="Rename one of them, or use column or template, which can.",
            )
