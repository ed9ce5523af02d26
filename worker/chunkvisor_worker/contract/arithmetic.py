"""What is told of a model's arithmetic beside its vectors: the kernel of its layers, and what int8 costs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """What computes the linear layers of a model on a CPU; the vectors are equal to 1e-6 (see `linear`)."""

    name: str
    """"torch" (its own products) or "onednn" (with packed weights)."""
    time_ratio: float = 0.0
    """Time that oneDNN takes, by that of torch's own, as the worker has measured; 0 = not measured."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """How a model was quantised to int8, and how near its vectors are to those in float32."""

    calibrated: int
    """Texts of the run that have set the ranges of its numbers."""
    compared: int
    """Texts on which the following was measured: other ones, unless there are very few."""
    mean_cosine: float = 1.0
    least_cosine: float = 1.0
    neighbours: float = 1.0
    """Share of the ten nearest among those texts that are the same."""
