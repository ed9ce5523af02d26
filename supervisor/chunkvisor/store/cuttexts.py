"""Which texts of an output the model reads in part only, and how many tokens they have: noted before their chunk is.

One file for each output: an int32 for each text that is encoded, 0 for one that is read whole. It has holes where no
text was cut, so it takes next to no room, and it is not there before the first such text. To note a text twice changes
nothing, so it does not matter which attempt at a chunk brings the vectors.
"""

import os
from pathlib import Path

import numpy as np

from chunkvisor.store.pickrows import fill
from chunkvisor_worker.contract.files import sync_folder

_PAIR_BYTES = 8


def take_cut(path: Path, texts: int, attempt: Path, start: int, stop: int) -> None:
    """Take over what an attempt at the texts start..stop says of them, if it says anything. Raises OSError.

    `path` is the output's file, `texts` the number of its encoded texts. A pair that cannot be is passed over.
    """
    try:
        with open(attempt, "rb") as file:
            data = file.read(_PAIR_BYTES * 2 * (stop - start))  # a canary is tokenized twice
    except FileNotFoundError:
        return
    pairs = np.frombuffer(data[: len(data) // _PAIR_BYTES * _PAIR_BYTES], dtype="<i4").reshape(-1, 2)
    pairs = pairs[(pairs[:, 0] >= 0) & (pairs[:, 0] < stop - start) & (pairs[:, 1] > 0)]
    if not len(pairs):
        return
    first, last = int(pairs[:, 0].min()), int(pairs[:, 0].max())
    tokens = np.zeros(last - first + 1, dtype="<i4")
    is_new = not path.exists()
    with open(os.open(path, os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as out:
        if is_new:
            os.ftruncate(out.fileno(), 4 * texts)
        fill(out.fileno(), tokens.view(np.uint8).data, 4 * (start + first))
        tokens[pairs[:, 0] - first] = pairs[:, 1]
        os.pwrite(out.fileno(), tokens.data, 4 * (start + first))
        os.fsync(out.fileno())
    if is_new:
        sync_folder(path.parent)
