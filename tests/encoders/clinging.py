"""An encoder whose first batch fails while a local holds what aborts when it is freed: pinned
memory, say."""

import os
from pathlib import Path
from typing import Any

import good

AcceleratorError = type("AcceleratorError", (RuntimeError,), {"__module__": "torch"})


class Pinned:
    def __del__(self):
        os.abort()


class Encoder(good.Encoder):
    def __init__(self, folder):
        self.folder = folder

    def encode(self, texts, batch_size):
        mark = self.folder / "failed"
        if texts[0] == "text 0" and not mark.exists():
            mark.touch()
            buffer, ring = Pinned(), list[Any]([Pinned()])  # noqa: F841 - they live as long as this frame
            ring.append(ring)
            raise AcceleratorError("CUDA error: an illegal memory access was encountered")
        return super().encode(texts, batch_size)


def make(model, device):
    return Encoder(Path(model.kwargs["notes"]))
