"""The table of waits and limits in config.md has every one, with the value that the code has, and a history."""

import re
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from chunkvisor import judge
from chunkvisor.config import values
from chunkvisor.config.model import Config, RecoveryConfig
from chunkvisor.devices import gpu
from chunkvisor.heart import policy, scheduler, slot, store

from .histories import HISTORIES

DEFAULTS = RecoveryConfig()
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"


class Limit(NamedTuple):
    """What a row of the table has to say."""

    value: str
    histories: tuple[str, ...]
    """Beginnings of the names of histories that play it; none where the scheduler has no part in it."""


def _s(seconds: float) -> str:
    return f"{seconds:g} s"


LIMITS = {
    "recovery.startup_timeout": Limit(_s(DEFAULTS.startup_timeout), ("a worker that begins no batch in time",)),
    "recovery.stall_timeout": Limit(_s(DEFAULTS.stall_timeout), ("a worker without progress is ended", "B5: a text")),
    "recovery.wait_timeout": Limit(
        _s(DEFAULTS.wait_timeout),
        (
            "somebody holds the GPU: wait, longer each time",
            "a suspected GPU stays busy: it is left out, and others go on",
            "E5: the neighbour stays",
            "the hub is down",
            "the disk stays full: 74",
            "a node's disk is full",
            "B10: a waiting spell is wall time",
            "a waiting spell ends with a success",
        ),
    ),
    "recovery.grace": Limit(
        _s(DEFAULTS.grace),
        ("grace: who computes leaves", "grace: a batch that does not end"),
    ),
    "run --stop-after": Limit("none", ("grace: a batch",)),
    "recovery.attempts": Limit(
        str(DEFAULTS.attempts), ("a chunk that cannot be begun is set aside", "E2: a GPU on which no worker starts")
    ),
    "recovery.min_batch_size": Limit(str(DEFAULTS.min_batch_size), ("OOM at the smallest batch allowed",)),
    "recovery.max_bad_rows": Limit(str(DEFAULTS.max_bad_rows), ("more bad texts than max_bad_rows",)),
    "pause before a next try": Limit(
        f"{_s(judge.BACKOFF_S)}, doubled each time up to {_s(judge.BACKOFF_MAX_S)}",
        ("a worker that cannot be started for lack of memory", "a shorter pause does not end"),
    ),
    "chunks set aside in a row": Limit(str(policy.LIMITS["given up"]), ("three chunks given up in a row",)),
    "failed attempts in a row": Limit(
        str(policy.LIMITS["fruitless"]), ("twenty attempts in a row that repeat", "B1: 36 failures in a row")
    ),
    "canaries that fail before the first vector": Limit(
        str(policy.LIMITS["first"]), ("all hangs before a text", "three short texts")
    ),
    "machines lost under a chunk": Limit(str(policy.LIMITS["lost"]), ("a chunk under which ten machines",)),
    "canaries that fail": Limit(
        str(policy.LIMITS["canary"]),
        ("E2: a GPU on which every worker fails", "a machine on which every worker fails", "two canaries fail"),
    ),
    "damaged chunks of an output": Limit(str(store.MAX_DAMAGED), ()),
    "nvidia-smi": Limit(_s(gpu._SMI_TIMEOUT_S), ()),
    "torch": Limit(_s(gpu._TORCH_TIMEOUT_S), ()),
    "SIGTERM or SIGABRT to a worker": Limit(_s(slot.GRACE_S), ()),
    "SIGKILL to a worker": Limit(_s(12 * slot.GRACE_S), ("a machine that leaves ends its workers",)),
}


def _rows() -> list[tuple[str, str, str]]:
    """(limit, what it bounds, what happens at its end), as the page has them; a limit has a row for each thing."""
    section = PAGE.read_text().partition("### Waits and limits")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if "---" not in line]
    return [(name.strip().strip("`"), bounds, end) for name, bounds, end in cells]


def _times(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of the keys that are a time, of the section and of those below it."""
    found = []
    for name, key in model.model_fields.items():
        kind = key.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += _times(kind, f"{prefix}{name}.")
        elif any(getattr(each, "func", None) is values.seconds for each in key.metadata):
            found.append(f"{prefix}{name}")
    return found


def test_the_table_has_the_values_of_the_code() -> None:
    """The page tells of limits that there are; a key's value stands in the tables of keys, any other in its name."""
    of_code = {
        LIMITS["pause before a next try"].value,
        *(f"{LIMITS[name].value} {name}" for name in ("chunks set aside in a row", "failed attempts in a row")),
        f"{LIMITS['canaries that fail'].value} canaries that fail",
    }
    names = {name for name, _, _ in _rows() if name}
    assert of_code <= names
    assert names - of_code <= LIMITS.keys()
    assert all(bounds and end for _, bounds, end in _rows())


def test_the_table_has_every_time_of_the_config() -> None:
    """A key that is a time bounds something, and the table tells what."""
    times = _times(Config)
    assert {"recovery.stall_timeout", "recovery.grace"} <= set(times)
    assert set(times) <= {name for name, *_ in _rows()}


def test_the_table_has_the_share_of_the_grace_that_is_kept_back() -> None:
    """The last fifth, 10 s at most."""
    (end,) = [end for name, _, end in _rows() if name == "recovery.grace"]
    fifth, most = re.findall(r"in the last (\w+), ([\d.]+ s) at most", end)[0]
    assert (fifth, most) == ("fifth", _s(scheduler.RESERVE_S))
    assert scheduler.RESERVE == 1 / 5


def test_every_limit_has_a_history() -> None:
    """Each that the scheduler keeps is played."""
    names = [each[0] for each in HISTORIES]
    for limit in LIMITS.values():
        for begins in limit.histories:
            assert any(name.startswith(begins) for name in names), begins
