"""The table of waits and limits in config.md has every time of the config, and the numbers of the
code.
"""

import re
from pathlib import Path

from pydantic import BaseModel

from chunkvisor import judge
from chunkvisor.config import model as values
from chunkvisor.config.model import Config
from chunkvisor.core import policy, scheduler

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"


def rows() -> dict[str, str]:
    """By limit, what happens at its end, as the page has it."""
    section = PAGE.read_text().partition("### Waits and limits")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line][
        1:
    ]
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]
    assert all(bounds and end for _, bounds, end in cells)
    return {name: end for name, _, end in cells if name}


def times(model: type[BaseModel], prefix: str = "") -> set[str]:
    """Dotted names of the keys that are a time, of the section and of those below it."""
    found = set[str]()
    for name, key in model.model_fields.items():
        kind = key.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= times(kind, f"{prefix}{name}.")
        elif any(getattr(each, "func", None) is values.seconds for each in key.metadata):
            found.add(f"{prefix}{name}")
    return found


def test_the_table_has_the_values_of_the_code() -> None:
    """Every time of the config, and every number that is not a key's."""
    assert {"recovery.stall_timeout", "recovery.grace"} <= times(Config) <= rows().keys()
    of_code = {
        f"{judge.BACKOFF_S:g} s, doubled each time up to {judge.BACKOFF_MAX_S:g} s",
        f"{policy.MOST_GIVEN_UP} chunks set aside in a row",
        f"{policy.MOST_WITHOUT_PROGRESS} failed attempts in a row",
        f"{policy.MOST_CANARIES} canaries that fail",
    }
    assert of_code <= rows().keys()
    fifth, most = re.findall(r"in the last (\w+), ([\d.]+) s at most", rows()["recovery.grace"])[0]
    assert (fifth, float(most), scheduler.RESERVE) == ("fifth", scheduler.RESERVE_S, 1 / 5)
