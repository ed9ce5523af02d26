"""Copies between host and device that do not wait for what the device is at.

It never computes, and imports torch only where a GPU is in use.
"""

from collections.abc import Callable
from typing import Any

from chunkvisor_worker.encoder import Vectors


def to_device(tensor: Any, device: Any) -> Any:
    """The tensor on the device: a copy from pinned memory does not wait for the batch that is computed there."""
    return tensor.to(device) if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def copy_weights(model: Any, device: str) -> None:
    """Move the model to the device, by torch's own `.to()`.

    Weights lie in pageable memory, mostly in pages of the weights file that the template shares. The driver copies such
    memory through a pinned buffer of its own. To pin it first would be a second copy in host memory, for each
    worker; whether that is faster at all only a GPU can tell, so it is not done unmeasured.
    """
    model.to(device)
    import torch

    # The copies are asynchronous in part; without this their time would count as the first batch's.
    torch.cuda.synchronize()


def begin_copy(vectors: Any) -> Callable[[], Vectors]:
    """Begin to copy the vectors to host memory; the function that comes back waits for the copy.

    Without blocking, torch copies from a GPU into pinned memory (Tensor.to), which is not there before the event is.
    """
    if vectors.device.type == "cpu":
        return lambda: vectors.numpy()
    import torch

    copy = vectors.to("cpu", non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def wait() -> Vectors:
        done.synchronize()
        array: Vectors = copy.numpy()
        return array

    return wait
