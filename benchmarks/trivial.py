"""A plug-in encoder that costs next to nothing, or waits as if for a GPU.

What is left is chunkvisor itself.
"""

import time
from typing import Any

import numpy as np


class Trivial:
    """A few numbers a text."""

    def __init__(self, wait_s: float, dimension: int) -> None:
        self._wait_s = wait_s
        self._columns = np.arange(1, dimension + 1, dtype=np.float32)

    def encode(self, texts: list[str], batch_size: int) -> np.ndarray:  # noqa: ARG002 - the contract's signature
        """Lengths and counts; never zero."""
        time.sleep(self._wait_s)
        return np.asarray([len(text) for text in texts], dtype=np.float32)[:, None] + self._columns

    def release(self) -> None:
        """It holds nothing of a device: the next worker may have it while this one writes."""


def make(model: Any, device: str) -> Trivial:  # noqa: ARG001 - the contract's signature
    """The factory that the config names.

    Model.kwargs: wait_s, seconds for each call, and dimension.
    """
    return Trivial(float(model.kwargs.get("wait_s", 0.0)), int(model.kwargs.get("dimension", 8)))
