"""An encoder that is another one as soon as the file `model.kwargs.changed` is there: right length,
other direction."""

from pathlib import Path

import good


class Encoder(good.Encoder):
    def __init__(self, changed):
        self._changed = changed

    def encode(self, texts, batch_size):
        vectors = super().encode(texts, batch_size)
        if self._changed.exists():
            return vectors[:, ::-1].copy()
        if "change" in texts:
            self._changed.touch()
        return vectors


def make(model, device):
    return Encoder(Path(model.kwargs["changed"]))
