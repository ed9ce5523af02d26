"""What a worker asks of the runtime while it computes: nothing waits for the device but for vectors that are wanted."""

from itertools import pairwise

from nullgpu import GpuWorkplace, texts

_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
"""Calls that wait for the device; `cudaMemcpyAsync` does not, where the host's memory is pinned."""


def test_the_next_batch_is_launched_before_the_vectors_of_one_are_waited_for(gpu_workplace: GpuWorkplace) -> None:
    """One wait a batch, for its vectors, and behind the launches of the next batch; no other in its forward pass.

    Texts of two lengths, so that each batch has padding and needs its mask; each goes there by an asynchronous copy.
    """
    batches, rows = 6, 4
    together = [text for pair in zip(texts(12, words=20), texts(12, words=19), strict=True) for text in pair]
    gpu_workplace.write_source(together)
    changes = {"encode.batch_size": rows, "encode.batch_tokens": None, "chunk.size": batches * rows}
    gpu_workplace.write_model_config(**changes)

    ended = gpu_workplace.run()

    assert ended.returncode == 0, ended.stderr
    (calls,) = gpu_workplace.gpu.trace().values()
    names = [call.split()[0] for call in calls]
    # The last wait before the batches is for what shows whether a token sees those behind it; the weights are there.
    start = max(index for index, name in enumerate(names) if name == "cudaStreamSynchronize") + 1
    stop = max(index for index, name in enumerate(names) if name == "cudaEventSynchronize") + 1
    waits = [index for index in range(start, stop) if names[index] in _WAITS]
    assert [names[index] for index in waits] == ["cudaEventSynchronize"] * batches
    between = [names[first:second].count("cudaLaunchKernel") for first, second in pairwise([start, *waits])]
    # Before the first wait two batches are launched, between any two waits one, and none before the last.
    a_batch = between[1]
    assert a_batch > 0
    assert between == [2 * a_batch, *[a_batch] * (batches - 2), 0]
