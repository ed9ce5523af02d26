"""Copies through pinned memory, to a null GPU and back."""

from asking import ask

from nullgpu import NullGpu


def test_two_batches_take_turns_in_pinned_memory(gpu: NullGpu) -> None:
    """What comes back is what went there, whatever the sizes, while the next batch is on its way; nothing is freed."""
    said = ask(
        gpu,
        """
from chunkvisor_worker.sentence_transformer import PinnedBuffers
pinned, device = PinnedBuffers(), torch.device("cuda")
sizes, came_back, before = (300, 500, 400, 4000, 16, 200), [], None
for size in sizes:
    pinned.next_batch()
    copied = pinned.begin_copy(pinned.to_device("ids", torch.arange(size).reshape(2, -1), device))
    came_back += [before()] if before else []
    before = copied
came_back.append(before())
say("right", [array.tolist() == torch.arange(size).reshape(2, -1).tolist() for size, array in zip(sizes, came_back)])
say("events", open(f"{os.environ['NULLGPU_DIR']}/trace/{os.getpid()}").read().count("cudaEventRecord"))
""",
    )
    assert said["right"] == [True] * 6
    assert said["events"] == 6  # one for each copy back; torch records one for whatever pinned memory is freed, too
