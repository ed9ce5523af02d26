"""Stands in for a model on a GPU: waits `model.kwargs.wait_s` for each chunk, and fails as the others
say.

`faulty` is the UUID of a device (or every), `at` is encode (the default) or load (in the factory).
There the CUDA error `fault`, [code, text], is raised; or, with `message`, torch's error for a lack of
memory in these words. With `notes`, a folder, memory lacks only while there is a file `full`.
"""

import os
import time
from pathlib import Path

from good import Encoder

OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})


class AcceleratorError(RuntimeError):
    def __init__(self, message, code):
        super().__init__(message)
        self.error_code = code


AcceleratorError.__module__ = "torch"


def fail_if_faulty(kwargs, at):
    is_faulty = kwargs.get("faulty") in ("every", os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not is_faulty or at != kwargs.get("at", "encode"):
        return
    if "message" not in kwargs:
        code, text = kwargs.get("fault", [214, "uncorrectable ECC error encountered"])
        raise AcceleratorError(f"CUDA error: {text}", code)
    is_full = "notes" not in kwargs or (Path(kwargs["notes"]) / "full").exists()
    if is_full:
        raise OutOfMemoryError(kwargs["message"])


class OnGpu(Encoder):
    def __init__(self, kwargs):
        self.kwargs = kwargs

    def encode(self, texts, batch_size):
        fail_if_faulty(self.kwargs, "encode")
        time.sleep(self.kwargs.get("wait_s", 0.0))
        return super().encode(texts, batch_size)


def make(model, device):
    assert device == "cuda" or "message" in model.kwargs
    fail_if_faulty(model.kwargs, "load")
    return OnGpu(model.kwargs)
