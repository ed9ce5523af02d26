"""The table at the end of the GPU tests: one line a case, in Markdown.

Pure: it never prints.
"""

import datetime
from collections.abc import Sequence
from typing import NamedTuple

from gpuplace import TestGpu


class Row(NamedTuple):
    """One case."""

    name: str
    """Of the test, with its parameters."""
    outcome: str
    figure: str


def table(gpu: TestGpu, rows: Sequence[Row], version: str) -> list[str]:
    """The lines: what it ran on, then the cases."""
    about = {"GPU": gpu.name, "driver": gpu.driver, **gpu.versions, "chunkvisor": version}
    words = [f"{name} {value}" for name, value in about.items() if value]
    passed = sum(row.outcome == "passed" for row in rows)
    return [
        f"{passed} of {len(rows)} cases passed on {', '.join(words)}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "",
        "| case | result | figure |",
        "| --- | --- | --- |",
        *(f"| {title(row.name)} | {row.outcome} | {row.figure.replace('|', '/')} |" for row in rows),
    ]


def title(name: str) -> str:
    """A test's name in words."""
    name, _, parameters = name.removeprefix("test_").partition("[")
    words = name.replace("_", " ")
    return f"{words} ({parameters.removesuffix(']')})" if parameters else words
