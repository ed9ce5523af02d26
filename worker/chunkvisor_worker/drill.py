"""Faults on purpose: the beat of a worker that a drill or an integration test (`chunkvisor.testing`) wants to fail.

A fault strikes its process and attempt folder only; `oom` fills the GPU until the worker ends.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Phase, Spec
from chunkvisor_worker.contract.provoked import ProvokedFault, claim_file, fault_file, folders_in
from chunkvisor_worker.contract.wire import read_message
from chunkvisor_worker.encoder import Indices
from chunkvisor_worker.progress import BeatWriter
from chunkvisor_worker.sabotage import SABOTAGES, Moment, Scene

POISON_ROW = "poison-row"

IsDue: TypeAlias = Callable[[frozenset[int]], bool]
"""Whether a fault is to strike at a batch of these texts, or (none) before and after all batches."""


class Tripwire(BeatWriter):
    """The beat of a worker, with a fault in its way: it strikes at its moment, where `is_due` says so."""

    def __init__(self, name: str, scene: Scene, spec: Spec, is_due: IsDue = lambda _texts: True) -> None:
        super().__init__(scene.files.beat)
        self._sabotage = SABOTAGES[name]
        self._scene = scene
        self._is_due = is_due
        self._wanted = np.delete(np.arange(spec.start, spec.stop), list(spec.skip))
        self._texts: frozenset[int] = frozenset()
        """Of the batch under way."""

    def phase(self, phase: Phase) -> None:
        """As `BeatWriter.phase`; then the fault."""
        loads = phase is Phase.IMPORT and self._sabotage.moment is Moment.LOAD
        super().phase(Phase.MODEL_LOAD if loads else phase)
        if loads or phase is Phase.WRITE:
            self._reach(Moment.LOAD if loads else Moment.WRITE)

    def batch(self, indices: Indices, tokens: int, rows: int = 0) -> None:
        """As `BeatWriter.batch`; then the fault."""
        super().batch(indices, tokens, rows)
        if not len(self.positions):
            return  # a canary of another chunk: what is provoked is about the texts of this one
        self._texts = frozenset(self._wanted[self.positions[indices]].tolist())
        self._reach(Moment.BATCH)

    def ended(self) -> None:
        """The fault."""
        self._reach(Moment.AFTER)

    def _reach(self, moment: Moment) -> None:
        if self._sabotage.moment is not moment or not self._is_due(self._texts):
            return
        self.provoked = True
        if error := self._sabotage.strike(self._scene):
            raise error


@dataclass(frozen=True, slots=True)
class Trap:
    """A fault that a test has asked for, and that is to strike in this attempt if it has not struck often enough."""

    folder: Path
    fault: ProvokedFault
    spec: Spec

    def is_due(self, texts: frozenset[int]) -> bool:
        """Whether it is to strike now, at a batch of these texts; whoever is told so has to strike."""
        due = self._holds_the_poison(texts) if self.fault.name == POISON_ROW else self._claim()
        if due:
            with contextlib.suppress(OSError, ValueError):  # a full or closed log is no reason to spare the worker
                sys.stdout.write(f"chunkvisor.testing: the fault {self.fault.name} strikes here, as a test asked\n")
                sys.stdout.flush()
        return due

    def _claim(self) -> bool:
        return any(_made(claim_file(self.folder, number)) for number in range(self.fault.times))

    def _holds_the_poison(self, texts: frozenset[int]) -> bool:
        """The poison is the first text of the chunk; its number is laid down by the first attempt that gets there."""
        place = claim_file(self.folder, 0)
        with contextlib.suppress(OSError):
            _made(place, str(self.spec.start))
            return int(place.read_text()) in texts
        return False


def provoked(files: AttemptFiles, spec: Spec) -> Tripwire | None:
    """The beat of an attempt that a test wants to meet a fault; None for any other.

    Of several faults the one that was asked for first strikes; the others wait for the next attempt.
    """
    for folder in folders_in(os.environ):
        fault = read_message(ProvokedFault, fault_file(folder))
        if fault is None or fault.name not in SABOTAGES:  # its test is over
            continue
        here = fault.chunk == spec.chunk and fault.output in (None, spec.output)
        if here and (fault.name == POISON_ROW or not claim_file(folder, fault.times - 1).exists()):
            return Tripwire(fault.name, Scene(files), spec, Trap(folder, fault, spec).is_due)
    return None


def _made(path: Path, text: str = "") -> bool:
    """Whether it was us who made the file."""
    try:
        with open(path, "x") as file:
            file.write(text)
    except OSError:  # it exists, or the test is over
        return False
    return True
