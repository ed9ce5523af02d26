"""Has the faults strike that an integration test has asked for; see `chunkvisor.testing`.

It never strikes without a folder that `chunkvisor.testing` has made and not yet removed.
"""

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Spec, read_message
from chunkvisor_worker.contract.provoked import ProvokedFault, claim_file, fault_file, folders_in
from chunkvisor_worker.drill import POISON_ROW, Then, sabotaged
from chunkvisor_worker.job import Build
from chunkvisor_worker.sabotage import SABOTAGES


@dataclass(frozen=True, slots=True)
class Trap:
    """One fault that is to strike in this attempt, if it has not struck often enough."""

    folder: Path
    fault: ProvokedFault
    spec: Spec

    def is_due(self) -> bool:
        """Whether it is to strike now; whoever is told so has to strike."""
        due = self._holds_the_poison() if self.fault.name == POISON_ROW else self._claim()
        if due:
            with contextlib.suppress(OSError, ValueError):  # a full or closed log is no reason to spare the worker
                sys.stdout.write(f"chunkvisor.testing: the fault {self.fault.name} strikes here, as a test asked\n")
                sys.stdout.flush()
        return due

    def _claim(self) -> bool:
        return any(_made(claim_file(self.folder, number)) for number in range(self.fault.times))

    def _holds_the_poison(self) -> bool:
        """The poison is the first text of the chunk; its number is laid down by the first attempt that gets there."""
        place = claim_file(self.folder, 0)
        with contextlib.suppress(OSError):
            _made(place, str(self.spec.start))
            return self.spec.start <= int(place.read_text()) < self.spec.stop
        return False


def provoked(folder: Path, build: Build, then: Then | None) -> tuple[Build, Then | None]:
    """What `run_and_exit` is to build and to do behind a success, with the faults that are meant for this attempt."""
    spec = read_message(Spec, AttemptFiles(folder).spec)
    traps = _traps(spec) if spec is not None else []
    if not traps:
        return build, then
    # Of several in one attempt the one that was asked for first strikes; the others wait for the next.
    return sabotaged(folder, build, traps[0].fault.name, is_due=traps[0].is_due)


def _traps(spec: Spec) -> list[Trap]:
    traps = []
    for folder in folders_in(os.environ):
        fault = read_message(ProvokedFault, fault_file(folder))
        if fault is None or fault.name not in SABOTAGES:  # its test is over
            continue
        here = fault.chunk == spec.chunk and fault.output in (None, spec.output)
        left = fault.name == POISON_ROW or not claim_file(folder, fault.times - 1).exists()
        if here and left:
            traps.append(Trap(folder, fault, spec))
    return traps


def _made(path: Path, text: str = "") -> bool:
    """Whether it was us who made the file."""
    try:
        with open(path, "x") as file:
            file.write(text)
    except OSError:  # it exists, or the test is over
        return False
    return True
