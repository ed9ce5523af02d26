"""Runs a command of chunkvisor whose large source is read only when the test has it so: `held.py FILE ARGUMENT…`.

The reading that goes on beside the head waits until FILE exists. Where there is a file `no_room` beside it, the disk
has no room for vectors. As a module, `hold` does the same for this process.
"""

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chunkvisor.cli import main
from chunkvisor.ingest import reading
from chunkvisor.ingest.child import stage_table
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.table import StagedTable
from chunkvisor.supervise import storage


def hold(until: Callable[[Path], bool], most_s: float = math.inf) -> None:
    """Have every reading wait until this holds of the folder of the output's state, and no longer than `most_s`."""

    def stage(request: IngestRequest, folder: Path, on_wait: Callable[[], None]) -> StagedTable:
        deadline_s = time.monotonic() + most_s
        while not until(folder.parent) and time.monotonic() < deadline_s:
            on_wait()
            time.sleep(0.01)
        return stage_table(request, folder, on_wait)

    reading.stage_table = stage  # type: ignore[attr-defined]  # it is there, for the module itself


def has_chunk(state: Path) -> bool:
    """Whether a chunk of the head is committed."""
    return next(state.glob("head/chunks/*/*.npy"), None) is not None


def no_room(folder: Path) -> int:
    """Bytes that are free on its disk."""
    return 0


if __name__ == "__main__":
    file = Path(sys.argv[1])
    sys.argv[1:] = sys.argv[2:]
    hold(lambda _: file.exists())
    if file.with_name("no_room").exists():
        storage.free_bytes = no_room  # type: ignore[attr-defined]  # it is there, for the module itself
    main()
