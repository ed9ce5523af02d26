"""Whole runs on a null GPU: a real supervisor, real workers, torch's own allocator."""

import pytest

from nullgpu import GpuWorkplace, texts


def rows_of(workplace: GpuWorkplace, chunk: int) -> list[int]:
    """The most rows in a batch of its longest texts, at each try of the chunk."""
    goes = [each for each in workplace.named("go") if each["chunk"] == chunk]
    return [min([each["rows"], *(tier["rows"] for tier in each["tiers"])]) for each in goes]


@pytest.mark.newer
@pytest.mark.usefixtures("new_interpreters")
def test_a_run_completes(gpu_workplace: GpuWorkplace) -> None:
    """A tiny BERT's vectors come from the null GPU, each chunk from a process of its own that gives its memory back.

    What the GPU can do at most is timed by the first of them.
    """
    gpu_workplace.write_texts(20)
    gpu_workplace.write_model_config()
    ended = gpu_workplace.run()
    assert ended.returncode == 0, ended.stderr
    assert gpu_workplace.vectors().shape == (20, 64)
    traces = gpu_workplace.gpu.trace().values()
    assert [any("cudaLaunchKernel" in call for call in calls) for calls in traces] == [True, True]
    assert gpu_workplace.gpu.used_bytes() == 0
    ended_workers = gpu_workplace.named("worker_ended")
    assert all(each["flop"] > 0 < each["peak_flop_per_s"] for each in ended_workers)
    assert len({each["peak_flop_per_s"] for each in ended_workers}) == 1


@pytest.mark.parametrize(
    ("nvml", "sign"),
    [
        pytest.param(0, "torch.OutOfMemoryError: CUDA out of memory", id="out-of-memory"),
        pytest.param(999, "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED", id="nvml"),
    ],
)
def test_a_batch_that_does_not_fit_is_halved_in_a_fresh_process(
    gpu_workplace: GpuWorkplace, nvml: int, sign: str, request: pytest.FixtureRequest
) -> None:
    """The second chunk's texts are long: 64 at once do not fit, 32 do; where NVML is broken, torch asserts instead.

    That is the crash which this project is about: it is met as a person meets it.
    """
    if nvml:
        request.getfixturevalue("new_interpreters")
    gpu_workplace.gpu.set(memory__0=f"{256 + 60}M")
    gpu_workplace.gpu.nvml(init=nvml, smi="ok")
    gpu_workplace.write_source(texts(64) + texts(64, words=500))
    limits = {"chunk.size": 64, "encode.batch_size": 64, "encode.batch_tokens": None}
    gpu_workplace.write_model_config(**limits, **{"workers.start": "warm"})
    ended = gpu_workplace.run()
    assert ended.returncode == 0, ended.stderr
    assert rows_of(gpu_workplace, 0) == [64]
    assert rows_of(gpu_workplace, 1) == [64, 32]
    assert len({each["pid"] for each in gpu_workplace.named("attempt_started")}) == 3
    assert [each["start"] for each in gpu_workplace.named("attempt_started")] == ["warm", "warm", "fresh"]
    assert [each["outcome"] for each in gpu_workplace.named("attempt_failed")] == ["gpu_oom"]
    log = (gpu_workplace.attempts()[0] / "worker.log").read_text()
    assert sign in log
    assert gpu_workplace.manifest()["quarantined"] == []
