"""Reads the figures in torch's out-of-memory message, which tell whether others hold the GPU."""

import re
from dataclasses import dataclass

# format_size of CUDACachingAllocator.cpp: two decimals and a binary unit, or whole bytes.
_SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"
_UNIT_BYTES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

_WANTED = re.compile(rf"CUDA out of memory\. Tried to allocate {_SIZE}")
# "capacty" is how torch 2.1 spells it; the second form is that of torch 2.0 and before.
_TOTAL = re.compile(rf"has a total capaci?ty of {_SIZE}|; {_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free|; {_SIZE} free")
_THIS_PROCESS = re.compile(rf"this process has {_SIZE} memory in use")
_OTHER_PROCESS = re.compile(rf"\bProcess \d+ has {_SIZE} memory in use")
_ALLOWED = re.compile(rf"{_SIZE} allowed; ")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"; {_SIZE} reserved in total by PyTorch")

_NOBODYS_BYTES = 768 << 20
"""In use, and by no process that NVML names: what the driver keeps, and the windows of a desktop."""
_CONTEXT_BYTES = 512 << 20
"""Of a CUDA context with its libraries; torch's own count leaves it out."""


@dataclass(frozen=True, slots=True)
class OomFigures:
    """What the GPU's memory was at the time; figures of GiB are rounded to 0.01 of one."""

    wanted_bytes: int
    """Of the one allocation that failed; more may have been to come."""
    total_bytes: int
    free_bytes: int
    process_bytes: int | None
    """All that this process holds, as NVML says; None where it does not (no NVML, another PID namespace)."""
    reserved_bytes: int
    """What torch's allocator holds in this process."""
    others_named: bool = False
    """Whether NVML names other processes beside this one."""
    allowed_bytes: int | None = None
    """What torch's allocator may hold, where per_process_memory_fraction sets a limit."""

    @property
    def ours_bytes(self) -> int:
        """What this process holds, as well as is known."""
        if self.process_bytes is not None:
            return max(self.process_bytes, self.reserved_bytes)
        return self.reserved_bytes + min(_CONTEXT_BYTES, max(0, self.total_bytes - self.free_bytes))

    @property
    def others_bytes(self) -> int:
        """What other processes and the driver hold."""
        return max(0, self.total_bytes - self.free_bytes - self.ours_bytes)

    @property
    def larger_than_gpu(self) -> bool:
        """Whether it would not fit on a GPU that is ours alone; False also where that cannot be told (yet)."""
        if self.allowed_bytes is not None:
            return self.reserved_bytes + self.wanted_bytes > self.allowed_bytes
        if self.ours_bytes + self.wanted_bytes > self.total_bytes:
            return True
        # Where far more was free, it is in pieces, or was taken and given back meanwhile: no matter of size.
        full = self.free_bytes - self.wanted_bytes < self.total_bytes // 32
        return full and not self.others_named and self.others_bytes < _NOBODYS_BYTES


def read_oom(message: str) -> OomFigures | None:
    """The figures of a `torch.OutOfMemoryError`'s message; None where they are not all there."""
    wanted, total, free = (_bytes_in(pattern, message) for pattern in (_WANTED, _TOTAL, _FREE))
    if wanted is None or total is None or free is None or not total:
        return None
    reserved = _bytes_in(_RESERVED, message)
    if reserved is None:
        reserved = (_bytes_in(_ALLOCATED, message) or 0) + (_bytes_in(_UNALLOCATED, message) or 0)
    process = _bytes_in(_THIS_PROCESS, message)
    # Where this process is not named, another name can be its own: container and host count pids differently.
    others_named = process is not None and _OTHER_PROCESS.search(message) is not None
    return OomFigures(wanted, total, free, process, reserved, others_named, _bytes_in(_ALLOWED, message))


def _bytes_in(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    if found is None:
        return None
    number, unit = (group for group in found.groups() if group is not None)
    return round(float(number) * _UNIT_BYTES[unit])
