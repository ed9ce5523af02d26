"""Faults on a real GPU: each is met in the second chunk, ends its own process, and costs no row."""

import json
import os
import signal
from typing import Any

import numpy as np
import pytest
from gpuplace import LIMIT_S, TEXTS, GpuPlace

from chunkvisor import testing
from harness import expected, finish, lives, wait_for

MIB = 1 << 20


def with_trouble(place: GpuPlace, name: str, **changes: Any) -> None:
    """A config whose plug-in meets the trouble in the first attempt at chunk 1; of a GPU without kernels, by a knob."""
    if not place.gpu.arithmetic and name not in place.gpu.troubles:
        pytest.skip("kernels do nothing here, and this null GPU has no knob for what they would do")
    env = {} if place.gpu.arithmetic else dict(place.gpu.troubles[name])
    place.configure(**{"model__kwargs": {"trouble": {"1": name}}, "env": env, **changes})


def assert_right(place: GpuPlace) -> None:
    """Every row is there, in its place: the vectors went through the memory of the GPU and back."""
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))


def test_a_fault_in_one_chunk_is_not_felt_in_the_next(place: GpuPlace) -> None:
    """Each attempt has a process and a context of its own: after a fault the next one computes as if nothing was."""
    with_trouble(place, "assert_async", chunk__size=64)

    place.complete()

    assert place.failed() == [(1, "device_fault")]
    assert_right(place)
    noted = place.noted()
    assert sorted(noted) == [(0, 1), (1, 1), (1, 2), (2, 1)]
    assert len({each["pid"] for each in noted.values()}) == len(noted)
    assert all(each["product"] == 64**3 for each in noted.values()) or not place.gpu.arithmetic
    assert not any(each["initialised_before"] or each["allocated_at_start"] for each in noted.values())


@pytest.mark.parametrize(
    ("trouble", "code"), [("assert_async", 710), ("index_out_of_range", 710), ("illegal_address", 700)]
)
def test_a_sticky_fault_is_cured_by_the_next_process(trouble: str, code: int, place: GpuPlace) -> None:
    """A genuine CUDA fault breaks its process for every later call, and the next process does the chunk."""
    with_trouble(place, trouble)

    place.complete()

    assert place.failed() == [(1, "device_fault")]
    assert_right(place)
    struck = place.noted()[1, 1]
    assert struck["code"] == code, struck
    assert struck["afterwards"], "the context was not broken"
    assert "afterwards" not in place.noted()[1, 2]


def test_a_plugin_out_of_memory_is_halved(place: GpuPlace) -> None:
    """A plug-in bounded by set_per_process_memory_fraction runs out of memory, and finishes with smaller batches."""
    kwargs = {"limit_bytes": 300 * MIB, "row_bytes": 16 * MIB}
    place.configure(model__kwargs=kwargs, encode={"batch_size": 32})

    place.complete()

    assert set(place.failed()) == {(0, "gpu_oom")}
    assert_right(place)
    assert lowered(place)


def test_a_model_out_of_memory_is_halved(place: GpuPlace, minilm_path: Any) -> None:
    """MiniLM bounded by the allocator's own setting runs out of memory in a forward pass, and finishes."""
    share = 400 * MIB / (place.gpu.memory_bytes or 1)
    setting = {"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{share:.6f}"}
    place.configure(minilm_path, env=setting, encode={"batch_size": 256, "batch_tokens": None}, chunk__size=192)
    place.write_source(["word " * 400 + str(number) for number in range(192)])

    place.complete()

    assert place.failed()
    assert {outcome for _, outcome in place.failed()} == {"gpu_oom"}
    assert place.vectors().shape == (192, 384)
    assert lowered(place)


def lowered(place: GpuPlace) -> list[int]:
    """Rows to which batches were cut, one after the other."""
    return [each["rows"] for each in place.events() if each["event"] == "limits_lowered"]


def test_a_worker_killed_while_it_computes_gives_its_memory_back(place: GpuPlace) -> None:
    """SIGKILL in the middle of kernels: the run goes on, and the driver takes the memory back."""
    ballast = 1024 * MIB
    kwargs = {"trouble": {"1": "compute"}, "ballast_bytes": ballast}
    place.configure(model__kwargs=kwargs, workers={"start": "fresh", "standby": 0})
    process = place.start("run", str(place.config_path))
    try:
        note = place.notes / "1-1.json"
        pid = wait_for(
            lambda: note.exists() and "trouble" in (seen := json.loads(note.read_text())) and seen["pid"], LIMIT_S
        )
        full = place.gpu.used_bytes()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not lives(pid), LIMIT_S)
        # The next worker may have its context by then, but not more of the ballast than this one had.
        wait_for(lambda: place.gpu.used_bytes() < full - 3 * ballast // 4, LIMIT_S)
    finally:
        ended = finish(process, LIMIT_S)
    assert ended.returncode == 0, ended.stderr
    assert place.failed() == [(1, "crashed")]
    assert_right(place)


def test_a_kernel_that_never_ends_is_ended(place: GpuPlace) -> None:
    """A spinning kernel counts as hung after stall_timeout; its process can be ended, and the next one computes."""
    with_trouble(place, "spin", recovery__stall_timeout=15)

    place.complete()

    assert place.failed() == [(1, "hung")]
    assert_right(place)
    assert place.noted()[1, 1]["trouble"] == "spin"


def test_a_fault_asked_for_by_a_test_is_met_on_the_gpu(place: GpuPlace, minilm_path: Any) -> None:
    """`chunkvisor.testing.fault` fills the GPU for MiniLM in its second chunk: a genuine out-of-memory error."""
    share = 1024 * MIB / (place.gpu.memory_bytes or 1)
    place.configure(minilm_path, env={"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{share:.6f}"})
    with testing.fault("gpu_oom", chunk=1) as fault:
        place.complete()
    assert (fault.struck, place.failed()) == (1, [(1, "gpu_oom")])
