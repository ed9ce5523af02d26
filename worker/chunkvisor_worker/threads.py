"""Gives a forked worker the threads that a fresh one has.

It never lowers what the person's own code has chosen, as far as that can be told: one thread is what the template had.
"""

import functools
import importlib
import sys
from typing import Any


@functools.cache
def find_pools() -> Any:
    """A ThreadpoolController of threadpoolctl over the OpenMP and BLAS libraries loaded so far, None without it.

    The template asks first, so that its workers need not look for the libraries again.
    """
    try:
        return importlib.import_module("threadpoolctl").ThreadpoolController()
    except ImportError:  # a numpy loaded by the template then multiplies with one thread
        return None


def use_threads(count: int) -> None:
    """Let torch, OpenMP and BLAS use `count` threads in this process; 0 leaves them as they are.

    Libraries that are loaded later read it from OMP_NUM_THREADS.
    """
    if not count:
        return
    torch = sys.modules.get("torch")
    # Asked first: the answer is OpenMP's, which the next line changes, while torch's own MKL is reached by torch alone.
    untouched = torch is not None and torch.get_num_threads() == 1
    if (pools := find_pools()) is not None:
        pools.limit(limits=count)
    if torch is not None and untouched:
        torch.set_num_threads(count)
