"""Copies the weights of a model to a GPU, by the faster of two ways.

It never changes a weight, and leaves to torch's own `.to()` whatever is no plain parameter in host memory.

Weights lie in pageable memory, mostly in pages of the weights file that the template shares. The driver copies such
memory through a small pinned buffer of its own; through a larger one of ours, filled by several threads while the
device reads the other half, it may be faster, and on some machines it is not. So the first large weight is copied half
in one way and half in the other, and the faster one is taken for the rest. It needs no more memory than the buffer.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

PIECE_BYTES = 16 << 20
"""Of pinned memory; there are two of it. To pin more would cost each worker more than it saves."""

MEASURED_BYTES = 64 << 20
"""A weight of this size is worth a comparison; a model without one is copied in tens of milliseconds anyhow."""

_SOONER = 0.9
"""Of the time of the one way, for the other to be taken."""

_kept: list["PinnedPieces"] = []
"""Pinned memory must not be freed after a fault, see `devicecopy.PinnedBuffers`."""

_LEFT_BYTES = 256 << 20
"""What torch may still hold of a GPU that is free for the next worker: workspaces of cuBLAS."""

Copy = Callable[[Any, Any], None]
"""Copies the second of two flat tensors, in host memory, into the first, on the device."""


def copy_weights(model: Any, device: str) -> None:
    """Move the model to the device, as `model.to(device)` does. Raises what torch raises."""
    import torch

    copy: Copy | None = None
    for weight in _weights(model, torch):
        target = torch.empty_like(weight, device=device)
        flat, source = target.view(-1), weight.detach().view(-1)
        if copy is None and weight.nbytes >= MEASURED_BYTES and (pieces := _pinned_pieces(torch)) is not None:
            copy = _compare(flat, source, pieces, torch)
        else:
            copy = copy or plain  # large ones come first: where there was nothing to compare, there is nothing
            copy(flat, source)
        weight.data = target
    model.to(device)  # buffers, and whatever else there is
    # The copies are asynchronous in part; without this their time would count as the first batch's.
    torch.cuda.synchronize()


def drop_weights(model: Any) -> bool:
    """Give the GPU's memory back; whether nearly all of it is free then. Raises what torch raises."""
    import torch

    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.new_empty(0)
    torch.cuda.empty_cache()
    return bool(torch.cuda.memory_reserved() <= _LEFT_BYTES)


def plain(target: Any, source: Any) -> None:
    """As `.to()` copies: from pageable memory, by the driver's own buffer."""
    target.copy_(source)


class PinnedPieces:
    """Two pieces of pinned memory: while the device reads one, the other is filled."""

    def __init__(self, torch: Any) -> None:
        """Take them. Raises RuntimeError where the system has no memory to pin."""
        self._torch = torch
        self._pieces = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._read = [torch.cuda.Event() for _ in range(2)]
        self._turn = 0

    def copy(self, target: Any, source: Any) -> None:
        """As `Copy`; it may still be under way when this returns, and `source` may go."""
        target, source = target.view(self._torch.uint8), source.view(self._torch.uint8)
        for start in range(0, len(source), PIECE_BYTES):
            self._turn = 1 - self._turn
            piece, read = self._pieces[self._turn], self._read[self._turn]
            read.synchronize()  # at once for an event that was never recorded
            part = source[start : start + PIECE_BYTES]
            piece[: len(part)].copy_(part)
            target[start : start + len(part)].copy_(piece[: len(part)], non_blocking=True)
            read.record()


def _weights(model: Any, torch: Any) -> Iterator[Any]:
    """Parameters that are no more than a tensor in host memory, those that several modules share once; large first."""
    found = [
        weight
        for weight in model.parameters()
        if type(weight) is torch.nn.Parameter and weight.device.type == "cpu" and weight.is_contiguous()
    ]
    return iter(sorted(found, key=lambda weight: -weight.nbytes))


def _pinned_pieces(torch: Any) -> PinnedPieces | None:
    try:
        pieces = PinnedPieces(torch)
    except RuntimeError as error:  # a fault of the device itself comes back with the next call
        print(f"weights are copied without pinned memory: {error}")  # noqa: T201 - goes to the log
        return None
    _kept.append(pieces)
    return pieces


def _compare(target: Any, source: Any, pieces: PinnedPieces, torch: Any) -> Copy:
    """Copy it in four parts, two in either way; returns the way that was faster."""
    took_s = {plain: 0.0, pieces.copy: 0.0}
    quarter = -(-len(source) // 4)
    torch.cuda.synchronize()
    for number, copy in enumerate((plain, pieces.copy, pieces.copy, plain)):
        began_s = time.perf_counter()
        copy(target[number * quarter : (number + 1) * quarter], source[number * quarter : (number + 1) * quarter])
        torch.cuda.synchronize()
        took_s[copy] += time.perf_counter() - began_s
    pinned = took_s[pieces.copy] < _SOONER * took_s[plain]
    rates = [f"{source.nbytes / 2e9 / max(took_s[copy], 1e-9):.1f} GB/s" for copy in (plain, pieces.copy)]
    chosen = "the rest so" if pinned else "the rest not"
    print(f"weights: {rates[0]} as they lie, {rates[1]} through pinned memory, {chosen}")  # noqa: T201 - goes to the log
    return pieces.copy if pinned else plain
