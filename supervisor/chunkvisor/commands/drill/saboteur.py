"""Puts a saboteur in the place of a worker, for chosen attempts.

`python -m chunkvisor.commands.drill.saboteur CONFIG KEY=VALUE…` is a run to be killed: its worker hangs at one
chunk, so that it is found alive, however fast the model is.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from chunkvisor.commands.drill.scratch import ROWS
from chunkvisor.config.load import load
from chunkvisor.engine.fresh import worker_command
from chunkvisor.errors import ChunkvisorError
from chunkvisor.observe.console import Console
from chunkvisor.supervise.request import Request
from chunkvisor.supervise.session import run
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Spec

STRUCK_CHUNK = 1
"""The second: one is committed before, so that the run knows that the model works."""

Command = Callable[[AttemptFiles, Spec], list[str]]
"""The command line of an attempt."""


def in_struck_chunk(name: str, number: int = 0) -> Command:
    """A saboteur in the first attempt at the struck chunk."""

    def command(files: AttemptFiles, spec: Spec) -> list[str]:
        struck = spec.chunk == STRUCK_CHUNK and spec.attempt == 1
        return _saboteur(name, files, number) if struck else worker_command(files, spec)

    return command


def wherever(name: str, text: int) -> Command:
    """A saboteur wherever the text is."""

    def command(files: AttemptFiles, spec: Spec) -> list[str]:
        struck = spec.start <= text < spec.stop
        return _saboteur(name, files, text) if struck else worker_command(files, spec)

    return command


def _saboteur(name: str, files: AttemptFiles, number: int) -> list[str]:
    return [sys.executable, "-P", "-m", "chunkvisor_worker.drill", name, str(files.folder), str(number)]


def main(config: str, *overrides: str) -> int:
    """Run until killed; the exit code of a run that halts before."""
    try:
        request = Request(load(Path(config), overrides), max_rows=ROWS, command=in_struck_chunk("hang"))
        return int(run(request, Console()))
    except ChunkvisorError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
