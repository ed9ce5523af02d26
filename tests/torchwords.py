"""What torch says."""


def oom(
    wanted: str, total: str, free: str, ours: str = "", other: str = "", allocated: str = "0.50 GiB"
) -> str:
    """Word torch's error for a lack of memory, as since 2.2; sizes as in "1.20 GiB".

    `other` is held by the process 77.
    """
    named = f"Process 77 has {other} memory in use. " if other else ""
    if ours:
        named += f"Including non-PyTorch memory, this process has {ours} memory in use. "
    return (
        f"CUDA out of memory. Tried to allocate {wanted}. GPU 0 has a total capacity of {total} "
        f"of which {free} is free. {named}Of the allocated memory {allocated} is allocated by "
        "PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
        "expandable_segments:True to avoid fragmentation."
    )
