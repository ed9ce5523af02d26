"""One output while a run works on it.

It never decides anything; the loop and its helpers share it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.attempt import Job
from chunkvisor.store.ledger import Ledger
from chunkvisor_worker.contract.messages import Limits


@dataclass(slots=True)
class OutputRun:
    """One output that is not complete yet."""

    ledger: Ledger
    table: StagedTable
    job: Job
    limits: Limits
    """Batch limits of the config, before any lesson."""
    finish: Callable[[Callable[[], None]], dict[str, Any]]
    """Assembles and publishes; gets a function to call now and then, returns the details of the closing event."""
    committed_here: int = 0
    """Chunks committed by this run."""
    texts_here: int = 0
    """Texts in them."""

    @property
    def name(self) -> str:
        """Of the output, as the config has it."""
        return self.ledger.layout.name
