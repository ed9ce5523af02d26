"""Harvest the docstrings of Python's own standard library into JSON lines.

Real English text that every machine has.

It never imports what it reads: source files are parsed with `ast`, so that no module runs. The rows
depend on the Python that runs this script and on nothing else.
"""

import argparse
import ast
import json
import os
import sysconfig
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path

ROWS = 1500
"""Rows kept at most; enough for several chunks, and about a minute of work on a slow CPU."""

OUT = Path(__file__).with_name("data") / "docstrings.jsonl"
"""Where configs/quickstart.yaml looks for its source."""

SKIPPED = {"ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "turtledemo"}
"""Folders that hold tests, demos and bundled programs, not the library that people call."""

Row = dict[str, str]


def main() -> None:
    """Harvest, thin out to --rows, and write --out in one rename."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=OUT, help="JSON lines file to write (default: %(default)s)"
    )
    parser.add_argument(
        "--rows", type=int, default=ROWS, help="rows at most (default: %(default)s)"
    )
    arguments = parser.parse_args()

    rows = harvest(Path(sysconfig.get_paths()["stdlib"]))
    chosen = spread(rows, arguments.rows)
    write(arguments.out, chosen)
    print(
        f"harvested {len(chosen)} of {len(rows)} standard library docstrings into "
        f"{os.path.relpath(arguments.out)}"
    )


def harvest(library: Path) -> list[Row]:
    """Every public docstring under the folder `library`, sorted by name.

    Names are unique, the first one wins.
    """
    rows: dict[str, Row] = {}
    for path in sorted(library.rglob("*.py")):
        name = module_name(path.relative_to(library))
        if name is None:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (
            SyntaxError,
            ValueError,
        ):  # the library keeps a few broken files on purpose, for its own tests
            continue
        for row in docstrings(name, "module", tree):
            rows.setdefault(row["name"], row)
    return [rows[name] for name in sorted(rows)]


def module_name(path: Path) -> str | None:
    """Dotted name of the module in `path` (relative to the library).

    None for one that is not public.
    """
    parts = list(path.with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    public = parts and all(part.isidentifier() and not part.startswith("_") for part in parts)
    return ".".join(parts) if public and SKIPPED.isdisjoint(parts) else None


def docstrings(
    name: str, kind: str, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[Row]:
    """The docstring of `node`, then those of its public members.

    Functions within functions are left out: they are no API.
    """
    doc = ast.get_docstring(node)
    if doc:
        yield {"name": name, "kind": kind, "doc": doc}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for member in definitions(node.body):
        if member.name.startswith("_"):
            continue
        is_class = isinstance(member, ast.ClassDef)
        member_kind = (
            "class" if is_class else "method" if isinstance(node, ast.ClassDef) else "function"
        )
        yield from docstrings(f"{name}.{member.name}", member_kind, member)


def definitions(
    body: list[ast.stmt],
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes and functions defined in `body`, also under an `if` or a `try` (platform and accelerator variants)."""
    for statement in body:
        match statement:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield statement
            case ast.If():
                yield from definitions(statement.body + statement.orelse)
            case ast.Try():
                yield from definitions(statement.body + statement.orelse)
                for handler in statement.handlers:
                    yield from definitions(handler.body)


def spread(rows: list[Row], count: int) -> list[Row]:
    """At most `count` rows, sorted by name, dealt out evenly among the top-level modules.

    Each gives its shortest dotted names first, which are those that people know: `json.dumps`
    before `json.encoder.JSONEncoder.default`. A plain sample would be a third of user interface
    toolkits.
    """
    members: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["name"].count("."), row["name"])):
        members.setdefault(row["name"].partition(".")[0], []).append(row)
    rounds = (row for turn in zip_longest(*members.values()) for row in turn if row is not None)
    return sorted(islice(rounds, count), key=lambda row: row["name"])


def write(path: Path, rows: list[Row]) -> None:
    """Replace `path` by the rows in one rename, so that an interrupted harvest leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main()
