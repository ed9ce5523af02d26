"""Encoders that must not be forked after their import: UNFORKABLE in the environment says why."""

import mmap
import os
import tempfile
import threading
import time
from pathlib import Path

from good import make

__all__ = ["make"]


def open_gpu():
    # What counts is the name of what is open.
    folder = Path(tempfile.mkdtemp(), "dev")
    folder.mkdir()
    return open(folder / "nvidiactl", "w")


def map_driver():
    # What every import of a CUDA build of torch does: the driver's library is there, and asleep.
    path = Path(tempfile.mkdtemp(), "libcuda.so.1")
    path.write_bytes(bytes(4096))
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)


def start_thread():
    threading.Thread(target=time.sleep, args=(3600,), name="pool", daemon=True).start()


def start_jemalloc():
    # What counts is the name that the kernel shows; jemalloc's own thread is made by importing
    # pyarrow, say.
    def be_named():
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("jemalloc_bg_thd")
        named.set()
        time.sleep(3600)

    named = threading.Event()
    threading.Thread(target=be_named, daemon=True).start()
    named.wait()


def fail():
    raise ImportError("no such library")


def hang():
    if os.environ.get("HF_DEACTIVATE_ASYNC_LOAD"):  # as in a template alone
        time.sleep(3600)


KEPT = globals()[os.environ["UNFORKABLE"]]()
