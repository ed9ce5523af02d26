"""An encoder that does what it should."""

import hashlib

import numpy as np


class Encoder:
    def encode(self, texts, batch_size):
        rows = [
            np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint8)[:8]
            for text in texts
        ]
        return np.stack(rows).astype(np.float32) + 1


def make(model, device):
    return Encoder()
