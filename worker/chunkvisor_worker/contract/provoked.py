"""A fault that an integration test has asked for (`chunkvisor.testing`), as its worker reads it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TESTING_FAULTS = "CHUNKVISOR_TESTING_FAULTS"
"""Environment variable with the folders of the faults that are to strike, a JSON list; set by `chunkvisor.testing`."""


@dataclass(frozen=True, slots=True)
class ProvokedFault:
    """What is to strike, and where; in the file `fault.json` of a folder of its own."""

    name: str
    """As `chunkvisor_worker.drill` has it."""
    chunk: int
    output: str | None = None
    """None = any."""
    times: int = 1
    """In how many attempts."""


def fault_file(folder: Path) -> Path:
    """Where the fault is written."""
    return folder / "fault.json"


def claim_file(folder: Path, number: int) -> Path:
    """What a worker makes before the fault strikes for the `number`th time; who makes it may strike."""
    return folder / f"struck-{number}"


def folders_in(environment: Mapping[str, str]) -> list[Path]:
    """The folders that the variable names; none where it holds anything else."""
    try:
        names = json.loads(environment.get(TESTING_FAULTS, "[]"))
    except ValueError:
        return []
    return [Path(name) for name in names if isinstance(name, str)] if isinstance(names, list) else []


def as_variable(folders: Sequence[Path]) -> str:
    """The reverse of `folders_in`."""
    return json.dumps([str(folder) for folder in folders])
