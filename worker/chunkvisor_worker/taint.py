"""Tells whether this process is a clean one to fork workers from.

It never asks CUDA or NVML themselves: to ask them is to start them.
"""

import re
from pathlib import Path

FORK_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})
"""Threads that their own library mends after a fork. jemalloc, which pyarrow brings (and transformers imports pyarrow
where it is installed), takes its locks before a fork and begins without the thread in the child: pthread_atfork, and
background_thread_postfork_child in its background_thread.c."""

_DRIVER = re.compile(r"/(libcuda\.so|libnvidia-ml\.so)[^/\s]*", re.MULTILINE)


def find_driver() -> str:
    """The GPU driver's library that is mapped into this process; empty where there is none.

    No CUDA context survives a fork (CUDA C++ Programming Guide, "CUDA initialization and fork"), and a library that was
    only loaded may have begun already: what cannot be told is not risked.
    """
    found = _DRIVER.search(Path("/proc/self/maps").read_text(errors="replace"))
    return found[0][1:] if found else ""


def find_threads() -> list[str]:
    """Names of the threads beside this one that a fork leaves behind, with whatever locks they hold."""
    names = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda path: int(path.name))[1:]:
        try:
            names.append((task / "comm").read_text().strip() or "?")
        except OSError:  # it has just ended
            continue
    return [name for name in names if name not in FORK_SAFE_THREADS]


def find_taint() -> str:
    """Why no worker may be forked from this process, in words; empty where all is well."""
    if library := find_driver():
        return f"loading the model, or importing the plug-in, has loaded the GPU driver ({library})"
    if threads := find_threads():
        return f"loading the model, or importing the plug-in, has started threads ({', '.join(threads[:5])})"
    return ""
