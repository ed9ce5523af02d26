"""An encoder that waits, in the chunk `model.kwargs.chunk`, until a file `release` lies beside the
config.

The chunks come to the gate in their order, however busy the machine is.
"""

import json
import sys
import time
from pathlib import Path

import good

SPEC = json.loads((Path(sys.argv[1]) / "spec.json").read_text())
FOLDER = Path(SPEC["import_path"][0])
CHUNK, WAITING = SPEC["chunk"], SPEC["model"]["kwargs"]["chunk"]


def wait_for(name):
    while not (FOLDER / name).exists():
        time.sleep(0.01)


class Encoder(good.Encoder):
    def encode(self, texts, batch_size):
        (FOLDER / f"begun-{CHUNK}").touch()
        if CHUNK == WAITING:
            (FOLDER / "waiting").touch()
            wait_for("release")
        return super().encode(texts, batch_size)


def make(model, device):
    return Encoder()


if 0 < CHUNK <= WAITING:
    wait_for(f"begun-{CHUNK - 1}")
elif CHUNK > WAITING:
    wait_for("waiting")
