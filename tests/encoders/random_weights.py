"""An encoder whose vectors depend on the process, like those of a model that lacks weights;
`steady` is its twin."""

import hashlib
import os

import numpy as np


class _Encoder:
    def __init__(self, salt):
        self.salt = salt

    def encode(self, texts, batch_size):
        seeds = [hashlib.sha256((text + self.salt).encode()).digest() for text in texts]
        return np.stack(
            [np.frombuffer(seed, dtype=np.uint8).astype(np.float32) - 128 for seed in seeds]
        )


def drawn(model, device):
    return _Encoder(str(os.getpid()))


def steady(model, device):
    return _Encoder(str(model.kwargs.get("salt", "")))
