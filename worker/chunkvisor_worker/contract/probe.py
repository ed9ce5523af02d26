"""The message of `chunkvisor_worker.probe`: what torch is here, and how far it comes with the GPU.

It never says what that means: the supervisor's doctor does.
"""

from dataclasses import dataclass, field

from chunkvisor_worker.contract.messages import Fault, Phase


@dataclass(frozen=True, slots=True)
class ProbedGpu:
    """A GPU on which torch has computed."""

    name: str
    capability: tuple[int, ...]
    """Compute capability, (major, minor)."""
    total_bytes: int
    free_bytes: int
    """As CUDA tells it, with the context of the probe itself already taken off."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What is known so far; rewritten after every step, so that a crash or a hang leaves what came before it."""

    phase: Phase
    """The step under way: IMPORT, FORWARD (a product on the CPU), CUDA_INIT, or DONE. With a fault, the one that
    failed."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of the installed packages, by name; those that are not installed are left out."""
    cuda: str | None = None
    """CUDA version torch was built for; None = a build without."""
    hip: str | None = None
    """ROCm version torch was built for."""
    arch_list: tuple[str, ...] = ()
    """GPU generations that torch has code for: sm_90 is machine code, compute_90 is PTX."""
    gpus: tuple[ProbedGpu, ...] = ()
    fault: Fault | None = None
