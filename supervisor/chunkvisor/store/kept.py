"""Whether a workdir has anything that the next run need not do again, by a look at the names of its files."""

import contextlib
from pathlib import Path

from chunkvisor_worker.contract.batchlog import read_batch_log
from chunkvisor_worker.contract.files import AttemptFiles

_STATES = ("*", "*/head")
_VECTORS = ("*/done.json", *(f"{state}/{kind}/*/*.npy" for state in _STATES for kind in ("chunks", "parts")))


def anything_kept(outputs: Path) -> bool:
    """Whether a text of any output has its vector, be it in the finished batches of an attempt that was stopped."""
    with contextlib.suppress(OSError):
        if any(next(outputs.glob(pattern), None) for pattern in _VECTORS):
            return True
        stopped = (AttemptFiles(path) for path in outputs.glob("*/attempts/*/*/"))
        return any(read_batch_log(files.batches).written for files in stopped if not files.verdict.exists())
    return False
