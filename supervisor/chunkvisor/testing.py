"""For integration tests of pipelines: a fault at a chosen chunk, so that a test can see what comes of it.

An environment variable, set for as long as the block lasts, tells the workers; no workdir or config is changed.
"""

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.commands.drill.faults import FAULTS, Place
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.units import did_you_mean
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.provoked import (
    TESTING_FAULTS,
    ProvokedFault,
    as_variable,
    claim_file,
    fault_file,
    folders_in,
)
from chunkvisor_worker.contract.wire import write_message

__all__ = ["Provoked", "fault"]

_BY_OUTCOME = {fault.seen_as: fault.name for fault in reversed(FAULTS) if fault.place is Place.WORKER} | {
    Outcome.HUNG: "hang",
    Outcome.BAD_OUTPUT: "nan-row",
}
"""The fault that stands for an outcome: the first of the table but for two."""

_ELSEWHERE = {
    Outcome.LOST: "a whole machine has to die for it",
    "host-limit": "it needs a cgroup with a limit; host_oom is the same outcome",
    "disk-limit": "it needs a file system of its own; disk_full is the same outcome",
    "supervisor-killed": "it would kill your test; kill a run that you have started as a process",
}
"""Names that are known elsewhere, and why they cannot be had here."""

NAMES = tuple(fault.name for fault in FAULTS if fault.place in (Place.WORKER, Place.ROW))


@dataclass(slots=True)
class Provoked:
    """A fault, and how often it has struck."""

    name: str
    """As the drill calls it."""
    chunk: int
    output: str | None
    _folder: Path
    _struck: int | None = None
    """Once the block is over."""

    @property
    def struck(self) -> int:
        """In how many attempts it has struck so far; for `poison-row` 1, however many meet it."""
        if self._struck is not None:
            return self._struck
        return next(number for number in itertools.count() if not claim_file(self._folder, number).exists())


@contextlib.contextmanager
def fault(name: str, *, chunk: int, output: str | None = None, times: int = 1) -> Iterator[Provoked]:
    """In this block, the workers of the chunk meet a fault: `with chunkvisor.testing.fault("gpu_oom", chunk=1): …`.

    `name` is a fault of the drill ("segfault", "nan-row"; docs/reference/drill.md lists them) or an outcome ("gpu_oom",
    "hung"); `chunk` is counted from 0; `output` names one, None = any; `times` says in how many attempts it strikes,
    the first of the chunk and those that follow. "poison-row" strikes wherever the first text of the chunk is.

    It holds for `chunkvisor.run` and `chunkvisor.encode`, and for the commands that the block starts, on this machine:
    not for the nodes of a cluster. Nothing of it is left afterwards. Blocks may be nested.

    Raises ChunkvisorError (2) for a name that is not known, and AssertionError at the end of a block in which the
    fault never struck: such a test would show nothing.
    """
    provoked = ProvokedFault(_known(name), chunk, output, times)
    if chunk < 0 or times < 1:
        raise Halt(ExitCode.USAGE, f"chunk={chunk}, times={times}: there is no such chunk, or nothing to do")
    with tempfile.TemporaryDirectory(prefix="chunkvisor-testing-") as place:
        folder = Path(place)
        write_message(fault_file(folder), provoked, durable=False)
        found = Provoked(provoked.name, chunk, output, folder)
        _set([*folders_in(os.environ), folder])
        try:
            yield found
        finally:
            _set([each for each in folders_in(os.environ) if each != folder])
            found._struck = found.struck
    if not found.struck:
        of_output = f" of output {output}" if output else ""
        raise AssertionError(
            f"the fault {provoked.name} never struck: in this block, no worker of this machine got so far with chunk "
            f"{chunk}{of_output}; chunks are counted from 0, and one that is done already is not done again"
        )


def _set(folders: list[Path]) -> None:
    if folders:
        os.environ[TESTING_FAULTS] = as_variable(folders)
    else:
        os.environ.pop(TESTING_FAULTS, None)


def _known(name: str) -> str:
    """The drill's name of a fault. Raises Halt (2)."""
    names = {each: each for each in NAMES} | {str(outcome): each for outcome, each in _BY_OUTCOME.items()}
    if name in names:
        return names[name]
    if why := _ELSEWHERE.get(name):
        raise Halt(ExitCode.USAGE, f"the fault {name} cannot be provoked here: {why}")
    raise Halt(ExitCode.USAGE, f"there is no fault {name} to provoke; {did_you_mean(name, names)}")
