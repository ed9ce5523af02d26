"""An encoder that plays the faults laid out for it, and writes down what it was asked.

Copied into the config's folder. A file `faults/<text>` there names what happens when that text
comes; it is removed before it happens, so once, unless the name of the fault ends in an exclamation
mark; after a space another one may follow, for the next time. "nan" is played on the vector;
"nan_beside" only while other texts are in the call. `oom!` spares batches of one text. Each call of
`encode` appends its texts as one line to `calls.jsonl`.
"""

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def out_of_memory():
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def value_error():
    raise ValueError("this text is beyond me")


def bad_input():
    """The error by which the worker says that the model's tables have no row for a token."""
    raise IndexError("index out of range in self")


class AcceleratorError(RuntimeError):
    error_code = 710


AcceleratorError.__module__ = "torch"


def damage():
    """A fault that no text can cause: its chunk is given up in the end."""
    raise TextsDamagedError("the texts are not those that were written")


TextsDamagedError = type(
    "TextsDamagedError", (RuntimeError,), {"__module__": "chunkvisor_worker.job"}
)


def device_assert():
    raise AcceleratorError("CUDA error: device-side assert triggered")


def wait_for_release():
    while not (HERE / "release").exists():
        time.sleep(0.01)


def kill_supervisor():
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


def kill_both():
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {
    "oom": out_of_memory,
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "value_error": value_error,
    "bad_input": bad_input,
    "damage": damage,
    "device_assert": device_assert,
    "kill_worker": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill_supervisor": kill_supervisor,
    "kill_both": kill_both,
    "wait": signal.pause,
    "wait_for_release": wait_for_release,
}


class Encoder:
    def encode(self, texts, batch_size):
        with open(HERE / "calls.jsonl", "a") as calls:
            calls.write(json.dumps(texts) + "\n")
        rows = [
            np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint8)[:8]
            for text in texts
        ]
        vectors = np.stack(rows).astype(np.float32) + 1
        for row, text in enumerate(texts):
            script = HERE / "faults" / (hashlib.sha256(text.encode()).hexdigest()[:16])
            if script.exists():
                self.play(script, vectors, row, batch_size)
        return vectors

    def play(self, script, vectors, row, batch_size):
        fault, _, later = script.read_text().partition(" ")
        if fault == "oom!" and batch_size == 1:
            return
        if later:
            script.write_text(later)
        elif not fault.endswith("!"):
            script.unlink()
        fault = fault.rstrip("!")
        if fault == "nan" or (fault == "nan_beside" and len(vectors) > 1):
            vectors[row, 3] = np.nan
        elif fault in FAULTS:
            FAULTS[fault]()


def make(model, device):
    return Encoder()
