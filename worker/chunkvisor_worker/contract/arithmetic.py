"""What is told of a model's arithmetic beside its vectors: the kernel of its layers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """What computes the linear layers of a model on a CPU; the vectors are equal to 1e-6 (see `linear`)."""

    name: str
    """"torch" (its own products) or "onednn" (with packed weights)."""
    time_ratio: float = 0.0
    """Time that oneDNN takes, by that of torch's own, as the worker has measured; 0 = not measured."""
