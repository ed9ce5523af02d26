"""Tells with how many threads torch, and the MKL inside it, would compute."""

import re

import numpy as np
import torch


class Encoder:
    def encode(self, texts, batch_size):
        found = re.search(r"mkl_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())
        threads = torch.get_num_threads()
        return np.full(
            (len(texts), 2), [threads, int(found[1]) if found else threads], dtype=np.float32
        )


def make(model, device):
    return Encoder()
