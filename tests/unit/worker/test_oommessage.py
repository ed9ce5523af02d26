"""The figures in torch's out-of-memory messages.

The messages are genuine ones, of releases from 1.9 to 2.9, as people posted them in public issues; those that say so
are composed by the same scheme (CUDACachingAllocator.cpp).
"""

import pytest

from chunkvisor_worker.contract.rule import read_oom

MIB, GIB = 1 << 20, 1 << 30

ALONE_2_1 = (
    "CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacty of 4.00 GiB of which 41.56 MiB is free."
    " Including non-PyTorch memory, this process has 3.44 GiB memory in use. Of the allocated memory 2.58 GiB is "
    "allocated by PyTorch, and 1.90 MiB is reserved by PyTorch but unallocated."
)
ALONE = (
    "CUDA out of memory. Tried to allocate 226.00 MiB. GPU 0 has a total capacity of 15.70 GiB of which 210.38 MiB is "
    "free. Including non-PyTorch memory, this process has 15.48 GiB memory in use. Of the allocated memory 14.81 GiB is"
    " allocated by PyTorch, and 336.73 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory "
    "is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
NAMELESS_PROCESS = (
    "CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacty of 14.75 GiB of which 235.06 MiB is "
    "free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 14.06 GiB is allocated by PyTorch, and "
    "330.42 MiB is reserved by PyTorch but unallocated."
)
HUGE_BATCH = (
    "CUDA out of memory. Tried to allocate 55.57 GiB. GPU 0 has a total capacty of 12.00 GiB of which 9.02 GiB is free."
    " Of the allocated memory 984.52 MiB is allocated by PyTorch, and 463.48 MiB is reserved by PyTorch but "
    "unallocated."
)
PIECES = (
    "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already allocated; "
    "3.03 GiB free; 1.24 GiB reserved in total by PyTorch) "
)
SMALL_NEIGHBOUR = (
    "CUDA out of memory. Tried to allocate 138.00 MiB. GPU 0 has a total capacty of 15.90 GiB of which 8.44 MiB is free"
    ". Process 1246069 has 577.00 MiB memory in use. Including non-PyTorch memory, this process has 15.32 GiB memory in"
    " use. Of the allocated memory 14.12 GiB is allocated by PyTorch, and 410.41 MiB is reserved by PyTorch but "
    "unallocated."
)
# Composed.
NEIGHBOUR = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.25 GiB of which 12.38 MiB is "
    "free. Process 2048 has 76.14 GiB memory in use. Including non-PyTorch memory, this process has 3.10 GiB memory in "
    "use. Of the allocated memory 2.58 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but "
    "unallocated."
)
NEIGHBOUR_WITHOUT_NVML = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.25 GiB of which 12.38 MiB is "
    "free. Of the allocated memory 2.58 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but "
    "unallocated."
)
CAPPED = (
    "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 20.00 GiB is "
    "free. Including non-PyTorch memory, this process has 2.40 GiB memory in use. 2.00 GiB allowed; Of the allocated "
    "memory 1.97 GiB is allocated by PyTorch, and 512 bytes is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("message", "larger"),
    [
        pytest.param(ALONE_2_1, True, id="alone, torch 2.1"),
        pytest.param(ALONE, True, id="alone, torch 2.9"),
        pytest.param(NAMELESS_PROCESS, True, id="alone in a container, where our own pid looks like another's"),
        pytest.param(HUGE_BATCH, True, id="one allocation larger than the GPU"),
        pytest.param(PIECES, False, id="enough is free, but in pieces"),
        pytest.param(SMALL_NEIGHBOUR, False, id="it would fit without the small neighbour"),
        pytest.param(NEIGHBOUR, False, id="a large neighbour"),
        pytest.param(NEIGHBOUR_WITHOUT_NVML, False, id="a large neighbour that nobody names"),
        pytest.param(CAPPED, True, id="at the share that this process was given"),
    ],
)
def test_larger_than_the_gpu_is_told_from_held_by_others(message: str, larger: bool) -> None:
    """Only what would not fit on a GPU of our own counts as larger than the GPU."""
    figures = read_oom(message)
    assert figures is not None
    assert figures.larger_than_gpu is larger


def test_figures() -> None:
    """Every figure of the message is read, in bytes."""
    figures = read_oom(NEIGHBOUR)
    assert figures is not None
    assert figures.wanted_bytes == 20 * MIB
    assert figures.total_bytes == round(79.25 * GIB)
    assert figures.free_bytes == round(12.38 * MIB)
    assert figures.ours_bytes == figures.process_bytes == round(3.10 * GIB)
    assert figures.reserved_bytes == round(2.58 * GIB) + 10 * MIB
    assert figures.others_bytes == figures.total_bytes - figures.free_bytes - figures.ours_bytes
    assert figures.others_named
    old = read_oom(PIECES)  # the form in brackets of torch 2.0 and before
    assert old is not None
    assert (old.free_bytes, old.reserved_bytes) == (round(3.03 * GIB), round(1.24 * GIB))


@pytest.mark.parametrize(
    "message",
    [
        "",
        "CUDA out of memory. Tried to allocate more than 1EB memory.",
        "CUDA error: out of memory",
        "CUDA out of memory. Tried to allocate 20.00 MiB.",
        "CUDA out of memory. Tried to allocate 1 GiB. GPU 0 has a total capacity of 0 bytes of which 0 bytes is free. ",
    ],
)
def test_a_message_without_figures_is_none(message: str) -> None:
    """Where a figure is missing, nothing is said."""
    assert read_oom(message) is None
