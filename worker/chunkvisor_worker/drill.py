"""`python -m chunkvisor_worker.drill FAULT ATTEMPT_DIR [NUMBER]`: a worker that meets a fault, for a fire drill.

It never strikes outside its own process and attempt folder, but for `oom`, which fills the GPU until it ends. NUMBER
is the bytes that `host-limit` fills at most.
"""

import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeAlias

from chunkvisor_worker.contract.environment import PARENT_PID
from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, Limits, Phase, Spec
from chunkvisor_worker.encoder import Encoder, Indices, Progress, Vectors
from chunkvisor_worker.job import Build, build_encoder, run_and_exit
from chunkvisor_worker.liveness import die_with_parent
from chunkvisor_worker.sabotage import SABOTAGES, Moment, Sabotage, Scene, spoiled

POISON_ROW = "poison-row"

Then: TypeAlias = Callable[[], None]
"""Done behind a success."""

IsDue: TypeAlias = Callable[[], bool]
"""Asked at the moment of a fault whether it is to strike."""


class Tripwire:
    """The Progress of an encoder; the fault strikes where a forward pass is about to begin."""

    def __init__(self, progress: Progress, sabotage: Sabotage, scene: Scene, is_due: IsDue) -> None:
        self._progress = progress
        self._sabotage = sabotage
        self._scene = scene
        self._is_due = is_due

    def phase(self, phase: Phase) -> None:
        """As `Progress.phase`."""
        self._progress.phase(phase)

    def tick(self) -> None:
        """As `Progress.tick`."""
        self._progress.tick()

    def batch(self, indices: Indices, tokens: int, rows: int = 0) -> None:
        """As `Progress.batch`; then the fault."""
        self._progress.batch(indices, tokens, rows)
        if self._is_due():
            self._sabotage.strike(self._scene)

    def advance(self, rows: int, tokens: int, padded_tokens: int) -> None:
        """As `Progress.advance`."""
        self._progress.advance(rows, tokens, padded_tokens)


class Saboteur:
    """The real encoder with a fault in its way; see `Encoder`."""

    def __init__(self, encoder: Encoder, sabotage: Sabotage, scene: Scene, is_due: IsDue) -> None:
        self._encoder = encoder
        self._sabotage = sabotage
        self._scene = scene
        self._is_due = is_due

    def load(self, progress: Progress) -> None:
        """As `Encoder.load`, or the fault instead."""
        if self._sabotage.moment is Moment.LOAD and self._is_due():
            progress.phase(Phase.MODEL_LOAD)
            self._sabotage.strike(self._scene)
        self._encoder.load(progress)

    def adopt(self, encode: EncodeSpec) -> None:
        """As `Encoder.adopt`."""
        self._encoder.adopt(encode)

    def tokenize(self, texts: list[str], progress: Progress) -> None:
        """As `Encoder.tokenize`."""
        self._encoder.tokenize(texts, progress)

    def start(self, progress: Progress) -> None:
        """As `Encoder.start`."""
        self._encoder.start(progress)

    def encode(self, limits: Limits, progress: Progress) -> Iterator[tuple[Indices, Vectors]]:
        """As `Encoder.encode`, with the fault in the first batch, in its vectors, or behind the last one."""
        moment = self._sabotage.moment
        watched: Progress = progress
        if moment is Moment.BATCH:
            watched = Tripwire(progress, self._sabotage, self._scene, self._is_due)
        for number, (indices, vectors) in enumerate(self._encoder.encode(limits, watched)):
            struck = moment is Moment.VECTORS and number == 0 and self._is_due()
            yield indices, spoiled(vectors) if struck else vectors
        if moment is Moment.WRITE and self._is_due():
            self._sabotage.strike(self._scene)

    def facts(self) -> Facts:
        """As `Encoder.facts`."""
        return self._encoder.facts()

    def release(self) -> bool:
        """As `Encoder.release`."""
        return self._encoder.release()


def sabotaged(
    folder: Path, build: Build, name: str, number: int = 0, is_due: IsDue = lambda: True
) -> tuple[Build, Then]:
    """What `run_and_exit` is to build and to do behind a success, so that the fault strikes wherever `is_due` says."""
    sabotage, scene = SABOTAGES[name], Scene(AttemptFiles(folder), number)

    def build_saboteur(spec: Spec) -> Encoder:
        return Saboteur(build(spec), sabotage, replace(scene, cuda=spec.device == "cuda"), is_due)

    def strike_at_end() -> None:
        if sabotage.moment is Moment.AFTER and is_due():
            sabotage.strike(scene)

    return build_saboteur, strike_at_end


def main(arguments: list[str]) -> NoReturn:
    """Do the attempt with the fault in it; ends the process."""
    if len(arguments) not in (2, 3) or arguments[0] not in SABOTAGES:
        sys.stderr.write(
            "usage: python -m chunkvisor_worker.drill FAULT ATTEMPT_DIR [NUMBER]\n"
            f"FAULT is one of: {', '.join(SABOTAGES)}\n"
        )
        sys.stderr.flush()
        os._exit(WorkerExit.USAGE)
    faulthandler.enable()
    if parent_pid := os.environ.get(PARENT_PID):
        die_with_parent(int(parent_pid))
    name, folder, number = arguments[0], Path(arguments[1]), int(arguments[2]) if len(arguments) == 3 else 0
    run_and_exit(folder, *sabotaged(folder, build_encoder, name, number))


if __name__ == "__main__":
    main(sys.argv[1:])
