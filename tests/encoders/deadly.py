"""An encoder for which a text that begins with "do " is an order: it ends its worker, or fails, in
the way it names.

`do exit N`, `do print WORDS` (then exit 1), `do signal N`, `do raise CLASS`, `do quote WORDS` (an
error that quotes the text), `do say WORDS` (one that has no other words), `do assert` (a device-side
assert), `do fit N` (larger batches run out of memory), `do nan`. More words may follow. A text that begins with "bad" gets NaN as well. While a file `model.kwargs.mended`
exists (without the key: `mended` in the current folder), all texts are harmless.
"""

import os
import signal
from pathlib import Path

import good
import numpy as np

AcceleratorError = type(
    "AcceleratorError", (RuntimeError,), {"__module__": "torch", "error_code": 710}
)
OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
RAISED = {
    "ValueError": ValueError("this text is beyond me"),
    "IndexError": IndexError("index out of range in self"),
}


def obey(text, rows):
    _, how, *words = text.split()
    match how:
        case "exit":
            os._exit(int(words[0]))
        case "print":
            print(" ".join(words), flush=True)
            os._exit(1)
        case "signal":
            os.kill(os.getpid(), int(words[0]))
            signal.pause()
        case "raise":
            raise RAISED[words[0]]
        case "quote":
            raise RuntimeError("cannot encode: " + text)
        case "say":
            raise ValueError(" ".join(words))
        case "assert":
            raise AcceleratorError("CUDA error: device-side assert triggered")
        case "fit" if rows > int(words[0]):
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Encoder(good.Encoder):
    def __init__(self, mended):
        self.mended = Path(mended)

    def encode(self, texts, batch_size):
        vectors = super().encode(texts, batch_size)
        if self.mended.exists():
            return vectors
        for row, text in enumerate(texts):
            if text.startswith(("do nan", "bad")):
                vectors[row] = np.nan
            elif text.startswith("do "):
                obey(text, min(batch_size, len(texts)))
        return vectors


def make(model, device):
    return Encoder(model.kwargs.get("mended", "mended"))
