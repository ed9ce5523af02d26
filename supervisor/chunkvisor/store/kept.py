"""Whether a workdir has anything that the next run need not do again, by a look at the names of its files."""

import contextlib

from chunkvisor.store.layout import Layout
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor_worker.contract.batchlog import read_batch_log
from chunkvisor_worker.contract.files import AttemptFiles


def anything_kept(layout: Layout) -> bool:
    """Whether a text of any output has its vector, be it in the finished batches of an attempt that was stopped."""
    with contextlib.suppress(OSError):
        outputs = [layout.output(folder.name) for folder in layout.outputs.iterdir()]
        return any(map(_has_vectors, outputs)) or any(map(_has_batches, outputs))
    return False


def _has_vectors(output: OutputLayout) -> bool:
    """Those of its final file, of a chunk, or of a part of one."""
    files = (path for folder in (output.chunks, output.parts) for path in folder.glob("*/*.npy"))
    return output.done.exists() or next(files, None) is not None


def _has_batches(output: OutputLayout) -> bool:
    stopped = (AttemptFiles(folder) for folder in output.attempts.glob("*/*/"))
    return any(read_batch_log(files.batches).written for files in stopped if not files.verdict.exists())
