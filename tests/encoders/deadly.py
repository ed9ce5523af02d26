"""An encoder for which a text that begins with "do " is an order: it ends its worker, or raises, in the way it names.

`do exit N`, `do signal N`, `do raise CLASS`, `do quote WORDS` (an error of its own that quotes the text), `do cuda N`.
"""

import errno
import os
import signal

import good

AcceleratorError = type("AcceleratorError", (RuntimeError,), {"__module__": "torch"})
CPU_ALLOCATOR = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
RAISED = {
    "MemoryError": lambda: MemoryError(),
    "ENOMEM": lambda: OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    "allocator": lambda: RuntimeError(CPU_ALLOCATOR),
    "KeyboardInterrupt": lambda: KeyboardInterrupt(),
}


def obey(text):
    _, how, what = text.split(" ", 2)
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
            error = AcceleratorError(
                "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
            )
            error.error_code = int(what)
            raise error


class Encoder(good.Encoder):
    def encode(self, texts, batch_size):
        for text in texts:
            if text.startswith("do "):
                obey(text)
        return super().encode(texts, batch_size)


def make(model, device):
    return Encoder()
