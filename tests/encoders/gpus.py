"""Stands in for a model on a GPU: waits a moment for each chunk, and dies on one of the devices if
told to.

`model.kwargs.faulty` is that device's UUID (or every), and `fault` the CUDA error, [code, text];
`at` is encode or load.
"""

import os
import time

from good import Encoder


class AcceleratorError(RuntimeError):
    def __init__(self, message, code):
        super().__init__(message)
        self.error_code = code


AcceleratorError.__module__ = "torch"


ECC = [214, "uncorrectable ECC error encountered"]


def fail_if_faulty(kwargs, at):
    if kwargs.get("faulty") in ("every", os.environ["CUDA_VISIBLE_DEVICES"]) and at == kwargs.get(
        "at", "encode"
    ):
        code, text = kwargs.get("fault", ECC)
        raise AcceleratorError(f"CUDA error: {text}", code)


class OnGpu(Encoder):
    def __init__(self, kwargs):
        self.kwargs = kwargs

    def encode(self, texts, batch_size):
        fail_if_faulty(self.kwargs, "encode")
        time.sleep(self.kwargs.get("wait_s", 0.0))
        return super().encode(texts, batch_size)


def make(model, device):
    assert device == "cuda"
    fail_if_faulty(model.kwargs, "load")
    return OnGpu(model.kwargs)
