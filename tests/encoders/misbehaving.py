"""Encoders that die, hang and lie as they are told to, chunk by chunk; otherwise they do what
good.py does.

`model.kwargs.plan` maps "OUTPUT/CHUNK" to "NAME@MOMENT", NAME one of MISBEHAVIOURS and MOMENT one
of import, load, encode (the first call) and second (the second call). `model.kwargs.times` says in
how many attempts at the chunk it happens (null = in all); `model.kwargs.fits` maps "OUTPUT/CHUNK"
to the largest batch that the simulated GPU holds. With BEHAVE=1 in the environment nothing happens:
the cause is mended.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import good
import numpy as np
import xxhash

ATTEMPT = Path(sys.argv[1])
SPEC = json.loads((ATTEMPT / "spec.json").read_text())
TEXTS = (ATTEMPT / "texts.jsonl").read_text().splitlines()
CANARY = json.loads(TEXTS[-1]) if SPEC["canary"] else None
NOTES = Path(SPEC["import_path"][0])
KWARGS = SPEC["model"]["kwargs"]
PLACE = f"{SPEC['output']}/{SPEC['chunk']}"


@dataclass
class Call:
    texts: list[str]
    batch_size: int
    vectors: np.ndarray


def torch_error(name, module="torch", **attributes):
    return type(name, (RuntimeError,), {"__module__": module, **attributes})


OutOfMemoryError = torch_error("OutOfMemoryError")
OldOutOfMemoryError = torch_error("OutOfMemoryError", module="torch.cuda")
BUSY_HUB = {"__module__": "huggingface_hub.errors", "response": SimpleNamespace(status_code=429)}
HubError = type("HfHubHTTPError", (OSError,), BUSY_HUB)
IllegalAccess = torch_error("AcceleratorError", error_code=700)
NVML_ASSERT = (
    'NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/'
    'CUDACachingAllocator.cpp":1131, please report a bug to PyTorch. '
)


def raising(error):
    def misbehave(call):
        raise error

    return misbehave


def full_above(error):
    def misbehave(call):
        if call is None or call.batch_size > KWARGS.get("fits", {}).get(PLACE, 0):
            raise error

    return misbehave


def killing(number):
    def misbehave(call):
        os.kill(os.getpid(), number)
        signal.pause()

    return misbehave


def at_exit(do):
    """Do it where the worker ends itself: its result is on disk by then."""

    def misbehave(call):
        leave = os._exit
        os._exit = lambda status: do(leave)

    return misbehave


def returning(change):
    return lambda call: change(call.vectors)


def with_element(value):
    def change(vectors):
        vectors[min(1, len(vectors) - 1), 3] = value
        return vectors

    return returning(change)


def no_file_may_grow(call):
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))


def no_file_may_open(call):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def sleep(call):
    time.sleep(3600)


def deaf_sleep(call):
    for number in (signal.SIGTERM, signal.SIGABRT, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(3600)


def hold_the_gil(call):
    sum(iter(int, 1))


def start_child(call):
    child = subprocess.Popen(["sleep", "3600"])
    (NOTES / f"child-{SPEC['output']}-{SPEC['chunk']}").write_text(str(child.pid))


def child_then_die(call):
    start_child(call)
    os._exit(1)


def half_a_file(call):
    (ATTEMPT / "embeddings.npy").write_bytes(b"\x93NUMPY\x01\x00half")
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def lie(**changes):
    """Claim success in the worker's name."""

    def misbehave(call):
        np.save(
            ATTEMPT / "embeddings.npy", np.ones((SPEC["stop"] - SPEC["start"], 8), dtype=np.float32)
        )
        data = (ATTEMPT / "embeddings.npy").read_bytes()
        result = {
            key: SPEC[key] for key in ("fingerprint", "output", "chunk", "start", "stop", "limits")
        }
        facts = {"dimension": 8, "dtype": "", "max_length": None, "versions": {}}
        result |= {
            "digest": xxhash.xxh3_128_hexdigest(data),
            "size_bytes": len(data),
            "facts": facts,
            **changes,
        }
        (ATTEMPT / "result.json").write_text(json.dumps(result))
        os._exit(0)

    return misbehave


def leaving(make):
    """Put something in the place of the record of a fault, then die."""

    def misbehave(call):
        make(ATTEMPT / "fault.json")
        os._exit(1)

    return misbehave


def garbage(path):
    path.write_bytes(bytes(range(256)) * 64)


def huge(path):
    path.write_bytes(b'{"phase": "forward", "chain": ["' + b"x" * (100 << 20))


def beat_garbage(call):
    garbage(ATTEMPT / "beat.json")


def endless_log_then_die(call):
    for _ in range(100):
        os.write(1, b"chatter chatter\n" * (1 << 16))
    os._exit(1)


def close_streams(call):
    sys.stdout.close()
    sys.stderr.close()
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            os.close(fd)


def close_descriptors(call):
    for fd in (0, 1, 2):
        os.close(fd)


def forget_the_texts(call):
    (ATTEMPT / "texts.jsonl").unlink()


def change_the_texts(call):
    with open(ATTEMPT / "texts.jsonl", "a") as file:
        file.write('"one more"\n')


def remove_the_attempt(call):
    if not (NOTES / "removed").exists():
        (NOTES / "removed").touch()
        shutil.rmtree(ATTEMPT)


def leave_a_thread(call):
    threading.Thread(target=time.sleep, args=(3600,)).start()


MISBEHAVIOURS = {
    # exceptions
    "runtime_error": raising(RuntimeError("something else broke")),
    "value_error": raising(ValueError("a bad value")),
    "memory_error": raising(MemoryError),
    "system_exit_0": raising(SystemExit(0)),
    "import_error": raising(ModuleNotFoundError("No module named 'flash_attn'")),
    "surrogate_message": raising(RuntimeError("half an emoji \ud83d and a NUL \0")),
    # the GPU's faults, as torch words them
    "cuda_oom": full_above(OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")),
    "cuda_oom_old_name": full_above(OldOutOfMemoryError("CUDA out of memory.")),
    "cuda_oom_runtime_error": full_above(RuntimeError("CUDA error: out of memory")),
    "nvml_assert": full_above(RuntimeError(NVML_ASSERT)),
    "cublas_alloc": full_above(
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublas`")
    ),
    "resource_exhausted": full_above(
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")
    ),
    "cuda_700": raising(IllegalAccess("CUDA error: an illegal memory access was encountered")),
    "no_gpu": raising(RuntimeError("No CUDA GPUs are available")),
    # the world
    "hub_429": raising(HubError("429 Too Many Requests")),
    "disk_full": raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
    "no_file_may_grow": no_file_may_grow,
    "no_file_may_open": no_file_may_open,
    # death
    "segfault": lambda call: ctypes.string_at(0),
    "abort": lambda call: os.abort(),
    "sigkill": killing(signal.SIGKILL),
    "sigterm": killing(signal.SIGTERM),
    "exit_0": lambda call: os._exit(0),
    # standstill
    "sleep": sleep,
    "deaf_sleep": deaf_sleep,
    "hold_the_gil": hold_the_gil,
    "sigstop": killing(signal.SIGSTOP),
    # relatives
    "child_then_die": child_then_die,
    "child_and_finish": start_child,
    "leave_a_thread": leave_a_thread,
    # a good result, then trouble
    "exit_20_after": at_exit(lambda leave: leave(20)),
    "segfault_after": at_exit(lambda leave: ctypes.string_at(0)),
    "sleep_after": at_exit(lambda leave: time.sleep(3600)),
    # wrong vectors
    "row_missing": returning(lambda vectors: vectors[:-1]),
    "float64": returning(lambda vectors: vectors.astype(np.float64)),
    "int8": returning(lambda vectors: vectors.astype(np.int8)),
    "list": returning(lambda vectors: vectors.tolist()),
    "nothing": returning(lambda vectors: 0),
    "nan": with_element(np.nan),
    "inf": with_element(np.inf),
    "other_dimension": returning(lambda vectors: np.ascontiguousarray(vectors[:, :7])),
    # lies and damage on the wire
    "half_a_file": half_a_file,
    "lie_digest": lie(digest="0" * 64),
    "lie_fingerprint": lie(fingerprint="another"),
    "lie_dimension": lie(facts={"dimension": 9, "dtype": "", "max_length": None, "versions": {}}),
    "fault_garbage": leaving(garbage),
    "fault_huge": leaving(huge),
    "fault_is_a_pipe": leaving(os.mkfifo),
    "beat_garbage": beat_garbage,
    # bad manners
    "endless_log_then_die": endless_log_then_die,
    "close_streams": close_streams,
    "close_descriptors": close_descriptors,
    "forget_the_texts": forget_the_texts,
    "change_the_texts": change_the_texts,
    "remove_the_attempt": remove_the_attempt,
}


def _misbehave(moment, call=None):
    name, _, when = KWARGS["plan"].get(PLACE, "").partition("@")
    times = KWARGS.get("times", 1)
    spent = times is not None and SPEC["attempt"] > times
    if when != moment or spent or os.environ.get("BEHAVE"):
        return None
    return MISBEHAVIOURS[name](call)


class Encoder(good.Encoder):
    def __init__(self):
        self.calls = 0

    def encode(self, texts, batch_size):
        assert "torch" not in sys.modules
        vectors = super().encode(texts, batch_size)
        if texts == [CANARY]:  # of another chunk
            return vectors
        self.calls += 1
        moment = {1: "encode", 2: "second"}.get(self.calls, "later")
        changed = _misbehave(moment, Call(texts, batch_size, vectors))
        if os.environ.get("CUDA_LAUNCH_BLOCKING"):
            (NOTES / f"blocking-{SPEC['output']}-{SPEC['chunk']}").touch()
        return vectors if changed is None else changed


def make(model, device):
    _misbehave("load")
    return Encoder()


_misbehave("import")
