"""An encoder that has no vector for texts that begin with "bad", unless a file `mended` lies beside
it."""

from pathlib import Path

import good
import numpy as np


class Encoder(good.Encoder):
    def __init__(self, model):
        self.mended = Path(model.kwargs.get("mended", "mended"))

    def encode(self, texts, batch_size):
        vectors = super().encode(texts, batch_size)
        if not self.mended.exists():
            vectors[[text.startswith("bad") for text in texts]] = np.nan
        return vectors


def make(model, device):
    return Encoder(model)
