"""What the policy is told beside the verdict: what came before it, and what the config allows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from chunkvisor_worker.contract.exits import Outcome


@dataclass(frozen=True, slots=True)
class Budget:
    """What the config allows."""

    attempts: int = 3
    """Tries of a chunk for one cause."""
    min_batch_size: int = 1
    wait_timeout_s: float = 600


class Company(Enum):
    """Who else holds memory of the attempt's device."""

    UNTOLD = "untold"
    """Nobody has looked, or it is no GPU."""
    ALONE = "alone"
    CAME = "came"
    """Others, who were not there when the run began and hold what was missing."""
    OURS = "ours"
    """Another worker of this run."""
    BLIND = "blind"
    """Nobody can be asked: NVML is broken."""


@dataclass(frozen=True, slots=True)
class History:
    """What came before this verdict."""

    tries: Mapping[Outcome, int] = field(default_factory=dict)
    """Charged failures of this chunk, by outcome."""
    worked_before: bool = False
    """Whether this run has kept vectors of this output; for a failed start, whether workers have encoded there."""
    waited_s: float = 0
    """How long this cause is waited for by now while nothing has succeeded anywhere: wall time of one spell."""
    spell_s: float = 0
    """The same, whatever has succeeded on other devices meanwhile."""
    company: Company = Company.UNTOLD
    failed_starts: int = 0
    """Workers that failed before their first batch since the last success, on the device or machine of the attempt."""
    failing_s: float = 0
    """How long ago the first of them failed."""
    barren_chunks: int = 0
    """Chunks given up since the last success of the run."""
    fruitless: int = 0
    """Attempts of the run that failed since the last success."""
    other_dimension: int = 0
    """Attempts in a row, since the last success, all of whose vectors had another dimension than those before."""
    texts: int = 2
    """Texts in the attempt."""
    under_way: int = 0
    """Those of them that were in the batches under way when it ended; 0 = not known."""
    taken_apart: bool = False
    """Whether the attempt was at a part of a chunk that is searched for texts that fail."""
