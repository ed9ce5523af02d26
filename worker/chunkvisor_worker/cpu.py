"""Makes a CPU encode faster: packs linear layers for oneDNN, computes several batches at once."""

import fcntl
import functools
import importlib.util
import math
import os
import time
import timeit
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeAlias

from chunkvisor_worker.batching import Indices, Vectors
from chunkvisor_worker.contract.exits import LINEAR_FILE
from chunkvisor_worker.contract.frozen import frozen

# Two variables of the environment. The kernel of a model's linear layers, `torch` or `onednn`; not
# set: the faster one.
LINEAR = "CHUNKVISOR_LINEAR"
# The most batches that are computed at once; not set: as many as there are threads.
BATCHES_AT_ONCE = "CHUNKVISOR_BATCHES_AT_ONCE"
TORCH = "torch"
ONEDNN = "onednn"

# Packed weights are used if they take less than this share of torch's own time, so that chance does
# not decide between kernels that are about as fast.
_WORTHWHILE = 0.9
# Largest difference of two vectors, relative to their largest component, that rounding explains in
# a deep model.
_TOLERANCE = 1e-5
_MULTIPLICATIONS = 1 << 28  # in one timed product: some 5 ms of one core
_TYPICAL_ROWS = 1024  # tokens of a batch for which oneDNN arranges the packed weights


def choose_kernel(model: Any, forward: Callable[[], Any]) -> str:
    """Pack the weights of the model's linear layers if that is faster; return the kernel's name.

    `forward` computes some vectors with the model: those with packed weights have to be the same,
    up to 1e-5. Whatever goes wrong, the model is as it was. Nothing is timed if LINEAR names a
    kernel, or if an earlier worker has written its choice into LINEAR_FILE: the vectors of the two
    kernels differ in the last digits.
    """
    wanted = os.environ.get(LINEAR, "")
    path = os.environ.get(LINEAR_FILE)
    if path is None:
        return _choose(model, forward, wanted)
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # two workers may be the first
        file.seek(0)
        known = file.read()
        chosen = _choose(model, forward, wanted or known)
        if not known:
            file.write(chosen)
    return chosen


def _choose(model: Any, forward: Callable[[], Any], wanted: str) -> str:
    import torch

    layers = packable(model)
    has_onednn = torch.backends.mkldnn.is_available() and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )
    if wanted == TORCH or not layers or not has_onednn:
        return TORCH
    try:
        if wanted != ONEDNN and measured_ratio(layers) > _WORTHWHILE:
            return TORCH
        expected = forward()
        pack(layers)
        found = forward()
        difference = float((found - expected).abs().max() / expected.abs().max())
        if difference <= _TOLERANCE:
            return ONEDNN
        reason = f"vectors differ by {difference:.1e} of their size"
    except Exception as error:  # noqa: BLE001 - code that reads weights, a CPU without such kernels
        reason = f"{type(error).__name__}: {error}"
    log(f"linear layers stay torch's own; with weights packed by oneDNN: {reason}")
    unpack(layers)
    return TORCH


def log(line: str) -> None:
    """Print a line, which goes to the worker's log."""
    print(line, flush=True)  # noqa: T201 - see above


def packable(model: Any) -> list[Any]:
    """Return the linear layers whose weight can be packed.

    They are plain, in float32 on the CPU, and share their weight with no other layer.
    """
    import torch

    def is_plain(parameter: Any) -> bool:
        return (
            type(parameter) is torch.nn.Parameter
            and type(parameter.data) is torch.Tensor
            and (parameter.dtype, parameter.layout, parameter.device.type)
            == (torch.float32, torch.strided, "cpu")
            and parameter.numel() > 0
        )

    def is_packable(module: Any) -> bool:
        return (
            type(module) is torch.nn.Linear
            # not wrapped (accelerate), no weight computed for each pass (the older weight_norm)
            and "forward" not in vars(module)
            and not module._forward_pre_hooks
            and all(is_plain(each) for each in module._parameters.values() if each is not None)
            and owners[module.weight.data_ptr()] == 1
        )

    owners = Counter[int]()
    for module in model.modules():
        plain = filter(is_plain, module._parameters.values())
        owners.update(each.data_ptr() for each in plain)
    return [module for module in model.modules() if is_packable(module)]


def pack(layers: Iterable[Any]) -> None:
    """Pack each layer's weight, one after the other: only one is in memory twice."""
    import torch

    for layer in layers:
        layer.weight = torch.nn.Parameter(_packed(layer.weight), requires_grad=False)
        layer.forward = functools.partial(_product, layer)


def unpack(layers: Iterable[Any]) -> None:
    """Undo `pack`, to the last bit; leave layers that are not packed."""
    import torch

    for layer in layers:
        if layer.weight.is_mkldnn:
            layer.weight = torch.nn.Parameter(layer.weight.detach().to_dense(), requires_grad=False)
            del layer.forward


def _packed(weight: Any) -> Any:
    import torch

    with torch.no_grad():
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _TYPICAL_ROWS)


def _product(layer: Any, given: Any) -> Any:
    """Compute a packed layer's output for an input of any number of dimensions."""
    import torch

    return torch.ops.mkldnn._linear_pointwise(given, layer.weight, layer.bias, "none", [], "")


def measured_ratio(layers: Sequence[Any]) -> float:
    """Time both kernels with the largest layer; return the packed one's share of torch's time.

    The CPU time of one thread counts, which is the same on a busy machine.
    """
    import torch

    layer = max(layers, key=lambda each: each.weight.numel())
    packed = SimpleNamespace(weight=_packed(layer.weight), bias=layer.bias)
    rows = min(512, max(16, _MULTIPLICATIONS // layer.weight.numel()))
    given = torch.rand(rows, layer.in_features)

    def took_s(product: Callable[[], Any]) -> float:
        # the first of the three makes the kernel
        return min(timeit.repeat(product, timer=time.thread_time, repeat=3, number=1))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return took_s(lambda: _product(packed, given)) / took_s(lambda: layer(given))
    finally:
        torch.set_num_threads(threads)


Wait: TypeAlias = Callable[[], Vectors]  # waits for a batch's vectors

# Limit of (padded tokens of a batch) x (weights of the model) for each thread of a lane. A slow
# core takes 8 s for that: a worker that is asked to stop has 25 s for the batches under way and the
# one that waits for a lane.
_MOST_PRODUCTS = 160e9
_BATCHES_A_LANE = 4  # at least, since with the last batches of a chunk some lanes are idle
# Model types of transformers whose forward pass keeps nothing in the model, so that several passes
# may be under way at once.
STATELESS = frozenset((
    "bert", "camembert", "distilbert", "electra", "eurobert", "gemma3_text", "llama", "mistral",
    "modernbert", "mpnet", "nomic_bert", "qwen2", "qwen3", "roberta", "xlm-roberta",
))  # fmt: skip
# transformers that lack this module replace methods of the model during a forward pass.
_THREAD_SAFE = "transformers.utils.output_capturing"
_CHANGING_ROPE = ("dynamic", "longrope")  # position embeddings that a forward pass changes


@frozen
class Lanes:
    """How many batches are computed at a time, and with how many threads each."""

    count: int = 1
    threads: int = 1
    ahead: int = 0  # batches that may be under way when another begins

    def compute(
        self,
        batches: Iterable[Indices],
        begins: Callable[[Indices], bool],
        start: Callable[[Indices], Wait],
    ) -> Iterator[tuple[Indices, Vectors]]:
        """Yield the batches with their vectors, in their order.

        `begins` is called with each batch, in this thread; if it returns False, only those under
        way are finished. `start` begins to compute one, in a lane's thread if there are several;
        what it returns waits for the vectors. A batch of one text is computed while no other is:
        there may be memory for just one.
        """
        under_way: deque[tuple[Indices, Wait]] = deque()

        def oldest() -> tuple[Indices, Vectors]:
            indices, wait = under_way.popleft()
            return indices, wait()

        pool = None
        if self.count > 1:
            import torch

            log(f"{self.count} batches at a time, threads for each: {self.threads}")
            pool = ThreadPoolExecutor(self.count, "lane", torch.set_num_threads, (self.threads,))
        try:
            for indices in batches:
                single = pool and len(indices) == 1
                while under_way and single:
                    yield oldest()
                if not begins(indices):
                    break
                if not pool or single:
                    wait = start(indices)
                else:
                    wait = pool.submit(lambda batch: start(batch)(), indices).result
                under_way.append((indices, wait))
                while len(under_way) > (0 if single else self.ahead):
                    yield oldest()
            while under_way:
                yield oldest()
        finally:
            if pool:
                pool.shutdown(wait=False, cancel_futures=True)


def lanes_for(threads: int, batches: int, products: float) -> Lanes:
    """Choose lanes for this number of batches.

    `products` are the largest batch's padded tokens times the model's weights.
    """
    least_threads = max(1, math.ceil(products / _MOST_PRODUCTS))
    wanted = os.environ.get(BATCHES_AT_ONCE, "")
    most = min(threads // least_threads, int(wanted) if wanted.isdigit() else threads)
    count = min(most, batches // _BATCHES_A_LANE)
    return Lanes(count, threads // count, count) if count > 1 else Lanes()


def is_stateless(model: Any) -> bool:
    """Say whether several forward passes of this plain text model may be under way at once."""
    if not importlib.util.find_spec(_THREAD_SAFE):
        return False
    transformer = model.transformers_model
    # A name, or one for each kind of layer.
    kinds = {str(getattr(module, "rope_type", "")) for module in transformer.modules()}
    changes = any(kind in " ".join(kinds) for kind in _CHANGING_ROPE)
    return transformer.config.model_type in STATELESS and not changes
