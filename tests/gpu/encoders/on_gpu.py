"""An encoder that uses the GPU for real, and there meets the trouble that a test asks for.

`model.kwargs.trouble` maps a chunk's number to one of TROUBLES, met in the first attempt at it; as
many starts fail for each chunk as `failed_starts` says. What it sees it writes to
`notes/CHUNK-ATTEMPT.json` in the config's folder. The vectors are those of tests/encoders/good.py,
through the GPU's memory and back.
"""

import ctypes
import hashlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch


def assert_async():
    torch._assert_async(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()


class OnDevice:
    """Memory of the allocator as torch can take it over, without a claim to it."""

    def __init__(self, pointer, count):
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "<f4", "data": (pointer, False), "version": 3, "strides": None
        }  # fmt: skip


def illegal_address():
    """Write to memory that has gone back to the driver: a block of more than 10 MiB has a segment
    of its own."""
    count = 16 << 20
    pointer = torch.cuda.caching_allocator_alloc(4 * count)
    view = torch.as_tensor(OnDevice(pointer, count), device="cuda")
    torch.cuda.caching_allocator_delete(pointer)
    torch.cuda.empty_cache()
    view.fill_(1.0)
    torch.cuda.synchronize()


PTX = (
    b".version 6.5\n.target sm_75\n.address_size 64\n.visible .entry trapping()\n{\n  trap;\n  "
    b"ret;\n}\n"
)


def launch_failure():
    """A kernel that traps, which the driver compiles."""
    driver, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoadData(ctypes.byref(module), PTX) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"trapping") == 0
    assert driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
    torch.cuda.synchronize()


def no_room_for_cublas():
    """Fill the GPU, and let threads multiply: cuBLAS wants memory for each of them
    (pytorch#128601)."""
    ones, out = torch.ones(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
    taken, size_bytes, threads = [], 1 << 34, 64
    while size_bytes >= 1 << 21:
        try:
            taken.append(torch.empty(size_bytes, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size_bytes //= 2
    together = threading.Barrier(threads)

    def multiply(_):
        together.wait()  # none has ended by then, so each has its own handle
        torch.mm(ones, ones, out=out)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(multiply, range(threads)))


def spin():
    """One kernel that never ends."""
    torch.cuda._sleep(1 << 62)
    torch.cuda.synchronize()


TROUBLES = {
    each.__name__: each
    for each in (assert_async, illegal_address, launch_failure, no_room_for_cublas, spin)
}


class Encoder:
    def __init__(self, kwargs, device):
        self.kwargs, self.device = kwargs, device
        # In a drill, the name of the fault comes first.
        attempt = next(
            folder for folder in map(Path, sys.argv[1:]) if (folder / "spec.json").exists()
        )
        spec = json.loads((attempt / "spec.json").read_text())
        self.trouble = (
            kwargs.get("trouble", {}).get(str(spec["chunk"])) if spec["attempt"] == 1 else None
        )
        self.note_path = (
            Path(spec["import_path"][0]) / "notes" / f"{spec['chunk']}-{spec['attempt']}.json"
        )
        self.notes = {"pid": os.getpid(), "initialised_before": torch.cuda.is_initialized()}
        self.notes["allocated_at_start"] = torch.cuda.memory_allocated()
        if spec["attempt"] <= kwargs.get("failed_starts", 0):
            assert_async()

    def note(self, **what):
        self.notes |= what
        temporary = self.note_path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.notes))
        temporary.replace(self.note_path)

    def encode(self, texts, batch_size):
        self.note(
            product=float(
                (
                    torch.ones(64, 64, device=self.device) @ torch.ones(64, 64, device=self.device)
                ).sum()
            )
        )
        if self.trouble:
            self.meet(self.trouble)
        return np.concatenate(
            [self.batch(texts[i : i + batch_size]) for i in range(0, len(texts), batch_size)]
        )

    def batch(self, texts):
        rows = [
            np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint8)[:8]
            for text in texts
        ]
        return torch.from_numpy(np.stack(rows).astype(np.float32) + 1).to(self.device).cpu().numpy()

    def meet(self, name):
        self.note(trouble=name)
        try:
            TROUBLES[name]()
        except Exception as error:
            self.note(
                raised=f"{type(error).__name__}: {error}"[:300],
                code=getattr(error, "error_code", None),
            )
            self.note(afterwards=self.still_works())
            raise
        self.note(raised="")

    def still_works(self):
        """Whether the context can be used after the fault: what a second, innocent call raises."""
        try:
            torch.ones(8, device=self.device).sum().item()
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:300]
        return ""


def make(model, device):
    return Encoder(model.kwargs, device)
