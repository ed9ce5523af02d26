"""A source that is read while the run does other work."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from chunkvisor.ingest.child import stage_table
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.table import StagedTable

_LOOK_S = 0.1


class Reading:
    """Stages the request into the folder, from now on; the caller closes it."""

    def __init__(self, request: IngestRequest, folder: Path, on_end: Callable[[], None]) -> None:
        """`on_end` is called by another thread, when the source is read or cannot be."""
        self._unwanted = False
        # The kernel ends the child with the thread that has started it, and that one lives until the child has ended.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read")
        self._future = self._pool.submit(stage_table, request, folder, self._still_wanted)
        self._future.add_done_callback(lambda _: on_end())

    @property
    def over(self) -> bool:
        """Whether it has come to its end, or to an error."""
        return self._future.done()

    def table(self, on_wait: Callable[[], None]) -> StagedTable:
        """What it has come to, once it has. Calls `on_wait` about ten times a second; raises as `stage_table`."""
        while not wait([self._future], _LOOK_S).done:
            on_wait()
        return self._future.result()

    def close(self) -> None:
        """Give it up, if it is still under way."""
        self._unwanted = True
        self._pool.shutdown(wait=True)

    def _still_wanted(self) -> None:
        if self._unwanted:
            raise InterruptedError("the source need not be read any more")
