"""An encoder for which a text that begins with "do " is an order: it ends its worker, or fails, in
the way it names.

`do exit N`, `do signal N`, `do raise CLASS`, `do quote WORDS` (an error of its own that quotes the
text), `do cuda N`, `do fit N` (larger batches run out of memory), `do nan`. More words may follow.
"""

import errno
import os
import signal

import good
import numpy as np

AcceleratorError = type("AcceleratorError", (RuntimeError,), {"__module__": "torch"})
OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
CPU_ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried"
)
RAISED = {
    "MemoryError": lambda: MemoryError(),
    "ENOMEM": lambda: OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    "allocator": lambda: RuntimeError(CPU_ALLOCATOR),
    "KeyboardInterrupt": lambda: KeyboardInterrupt(),
    "ValueError": lambda: ValueError("this text is beyond me"),
    "IndexError": lambda: IndexError("index out of range in self"),
}
CUDA = {
    46: "CUDA-capable device(s) is/are busy or unavailable",
    710: "device-side assert triggered",
}


def obey(text, rows):
    _, how, what, *_ = text.split()
    match how:
        case "exit":
            os._exit(int(what))
        case "signal":
            os.kill(os.getpid(), int(what))
            signal.pause()
        case "raise":
            raise RAISED[what]()
        case "quote":
            raise RuntimeError("cannot encode: " + text)
        case "cuda":
            error = AcceleratorError(f"CUDA error: {CUDA[int(what)]}")
            error.error_code = int(what)
            raise error
        case "fit" if rows > int(what):
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Encoder(good.Encoder):
    def encode(self, texts, batch_size):
        vectors = super().encode(texts, batch_size)
        for row, text in enumerate(texts):
            if text.startswith("do nan"):
                vectors[row] = np.nan
            elif text.startswith("do "):
                obey(text, min(batch_size, len(texts)))
        return vectors


def make(model, device):
    return Encoder()
