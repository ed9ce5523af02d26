"""What can follow the end of an attempt; `policy` chooses."""

from dataclasses import dataclass

from chunkvisor.decide.verdict import Verdict
from chunkvisor.errors import ExitCode
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Tier


@dataclass(frozen=True, slots=True)
class Commit:
    """The vectors are good: publish them."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try the chunk again in a new process."""

    delay_s: float = 0
    tier: Tier | None = None
    """Narrower limits; None = as before."""
    lesson: bool = True
    """Whether they hold for all chunks from now on, or for this try alone."""
    charged: bool = True
    """Whether it counts as a try of the chunk for this outcome."""
    blocking_launches: bool = False
    """Run the next try with CUDA_LAUNCH_BLOCKING=1, so that its traceback names the kernel that failed."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The world is not ready: start nothing for a while, then try again; no chunk is charged."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Split:
    """Take the texts apart: keep the good rows and try each of the bad ones alone, or try both halves."""

    bad_rows: tuple[int, ...] = ()
    """Positions of the bad rows; empty = not known, so halves."""


@dataclass(frozen=True, slots=True)
class Isolate:
    """Try the texts of the batches that were under way one by one, and the others by themselves."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The text fails alone: it gets no vector."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """Give the chunk up in this run; the others go on."""


@dataclass(frozen=True, slots=True)
class EndRun:
    """Every further worker would fail: end the run."""

    exit_code: ExitCode
    too_large: bool = False
    """Because the model is larger than the GPU."""

    def of_device(self, verdict: Verdict) -> bool:
        """Whether it may be the matter of one device alone: the others can go on."""
        return self.exit_code is ExitCode.MACHINE or verdict.outcome is Outcome.GPU_BUSY

    def of_machine(self, verdict: Verdict) -> bool:
        """Whether it may be the matter of one machine of a cluster: what is installed there, or its disk."""
        load = verdict.before_first_batch and self.exit_code is ExitCode.CONFIG
        return self.exit_code is ExitCode.DISK or verdict.outcome is Outcome.SETUP or load


@dataclass(frozen=True, slots=True)
class StartAgain:
    """The worker failed before its first batch: try the texts again, after others; the device rests meanwhile."""

    delay_s: float


Step = Commit | Retry | StartAgain | Wait | Split | Isolate | Quarantine | SetAside | EndRun
