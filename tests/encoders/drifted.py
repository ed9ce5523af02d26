"""An encoder whose vectors have seven numbers for the texts of the first ten rows, and eight for all others."""

import good


class Encoder(good.Encoder):
    def encode(self, texts, batch_size):
        vectors = super().encode(texts, batch_size)
        return vectors[:, :7].copy() if "text 0" in texts else vectors


def make(model, device):
    return Encoder()
