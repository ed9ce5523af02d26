"""Stands in for a model on a GPU: waits a moment for each chunk, and dies on one of the devices if told to."""

import os
import time

from good import Encoder


class AcceleratorError(RuntimeError):
    def __init__(self, message, code):
        super().__init__(message)
        self.error_code = code


AcceleratorError.__module__ = "torch"


class OnGpu(Encoder):
    def __init__(self, wait_s, faulty):
        self.wait_s, self.faulty = wait_s, faulty

    def encode(self, texts, batch_size):
        if os.environ["CUDA_VISIBLE_DEVICES"] == self.faulty:
            raise AcceleratorError("CUDA error: uncorrectable ECC error encountered", 214)
        time.sleep(self.wait_s)
        return super().encode(texts, batch_size)


def make(model, device):
    assert device == "cuda"
    return OnGpu(model.kwargs.get("wait_s", 0.0), model.kwargs.get("faulty", ""))
