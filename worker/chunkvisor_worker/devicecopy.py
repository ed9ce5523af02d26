"""Copies between host and device that do not wait for what the device is at.

It never computes, and imports torch only where a GPU is in use.
"""

from collections.abc import Callable
from typing import Any

from chunkvisor_worker.encoder import Vectors


class PinnedBuffers:
    """Pinned host memory through which a batch goes to the device and its vectors come back.

    It is kept: torch records an event in the destructor of a pinned tensor, where the error of a context that is lost
    cannot be raised, and ends the process by abort (CachingHostAllocator; pytorch#84756). Two batches take turns:
    before the third uses the buffers of the first, the vectors of that one have been waited for.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, str], Any] = {}
        self._outgrown: list[Any] = []
        self._turn = 0

    def next_batch(self) -> None:
        """From now on copies are those of another batch."""
        self._turn = 1 - self._turn

    def to_device(self, name: str, tensor: Any, device: Any) -> Any:
        """The tensor on the device, by a copy that does not wait for the batch that is computed there."""
        if device.type == "cpu":
            return tensor.to(device)
        return self._like(name, tensor).copy_(tensor).to(device, non_blocking=True)

    def begin_copy(self, vectors: Any) -> Callable[[], Vectors]:
        """Begin to copy the vectors to host memory; the function that comes back waits for the copy."""
        if vectors.device.type == "cpu":
            return lambda: vectors.numpy()
        import torch

        copy = self._like("vectors", vectors).copy_(vectors, non_blocking=True)
        done = torch.cuda.Event()
        done.record()

        def wait() -> Vectors:
            done.synchronize()
            array: Vectors = copy.numpy().copy()
            return array

        return wait

    def _like(self, name: str, tensor: Any) -> Any:
        """Pinned memory of the tensor's shape and type, from the buffer of this name, which grows by doubling."""
        import torch

        key = self._turn, name
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < tensor.numel() or buffer.dtype != tensor.dtype:
            if buffer is not None:
                self._outgrown.append(buffer)
            capacity = 1 << max(0, tensor.numel() - 1).bit_length()
            buffer = self._buffers[key] = torch.empty(capacity, dtype=tensor.dtype, pin_memory=True)
        return buffer[: tensor.numel()].view(tensor.shape)
