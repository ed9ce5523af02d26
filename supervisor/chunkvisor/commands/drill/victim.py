"""`python -m chunkvisor.commands.drill.victim CONFIG KEY=VALUE…`: a run to be killed; its worker hangs at one chunk.

It never ends by itself: however fast the model is, whoever is to kill the run finds it alive.
"""

import sys
from pathlib import Path

from chunkvisor.commands.drill.saboteur import in_struck_chunk
from chunkvisor.commands.drill.scratch import ROWS
from chunkvisor.config.load import load
from chunkvisor.errors import ChunkvisorError
from chunkvisor.observe.console import Console
from chunkvisor.supervise.session import run
from chunkvisor.supervise.work import Request


def main(config: str, *overrides: str) -> int:
    """Run until killed; returns the exit code of a run that halts before."""
    try:
        request = Request(load(Path(config), overrides), max_rows=ROWS, command=in_struck_chunk("hang"))
        return int(run(request, Console()))
    except ChunkvisorError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
