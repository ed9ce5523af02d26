"""Scales vectors to length 1, as torch.nn.functional.normalize does."""

import numpy as np

from chunkvisor_worker.encoder import Vectors

_LEAST_LENGTH = 1e-12
"""Shorter ones are divided by this (torch's default for `eps`)."""


def unit_length(vectors: Vectors) -> Vectors:
    """The vectors, float32 of shape (rows, dimension), each divided by its length."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = (vectors / np.maximum(lengths, _LEAST_LENGTH)).astype(np.float32)
    return scaled
