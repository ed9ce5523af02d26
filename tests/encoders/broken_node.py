"""An encoder that fails wherever BROKEN_NODE is in the environment; elsewhere it waits until that
has failed thrice.

`model.kwargs.notes` is the folder where the failures are noted.
"""

import os
import time
from pathlib import Path

from good import Encoder


class OnNode(Encoder):
    def __init__(self, notes):
        self.notes = Path(notes)

    def encode(self, texts, batch_size):
        if os.environ.get("BROKEN_NODE"):
            (self.notes / f"failed-{texts[0]}").touch()
            raise RuntimeError("something is broken here")
        while len(list(self.notes.glob("failed-*"))) < 3:
            time.sleep(0.01)
        return super().encode(texts, batch_size)


def make(model, device):
    return OnNode(model.kwargs["notes"])
