"""Makes a CPU fast.

Linear layers packed for oneDNN, and batches computed side by side, a thread each.
"""

import fcntl
import functools
import importlib.util
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeAlias

from chunkvisor_worker.batching import Indices, Vectors
from chunkvisor_worker.contract.exits import LINEAR_FILE
from chunkvisor_worker.contract.frozen import frozen

# the kernel of a model's linear layers, `torch` or `onednn`; not set: the faster one
LINEAR = "CHUNKVISOR_LINEAR"
BATCHES_AT_ONCE = "CHUNKVISOR_BATCHES_AT_ONCE"  # at most; not set: as many as there are threads
TORCH = "torch"
ONEDNN = "onednn"

# The packed weights' share of torch's own time from which on they are used: if both are alike, all
# workers of a run are to choose the same, whatever else the machine does.
_WORTHWHILE = 0.9
# Largest difference of two vectors, relative to their largest component, that rounding explains in
# a deep model.
_TOLERANCE = 1e-5
_MULTIPLICATIONS = 1 << 28  # in one timed product: some 5 ms of one core
_TYPICAL_ROWS = 1024  # tokens of a batch, for which oneDNN chooses the order of the packed weights


def choose(model: Any, forward: Callable[[], Any]) -> str:
    """Pack the weights of the model's linear layers if that is faster.

    Says which kernel computes them from now on.

    `forward` computes some vectors with the model: those with packed weights have to be the same,
    up to 1e-5. Whatever goes wrong, the model is as it was. The variable LINEAR of the environment
    names a kernel, which then is not timed; nor is it if LINEAR_FILE names a file in which an
    earlier worker has written its choice: vectors would differ.
    """
    wanted, path = os.environ.get(LINEAR, ""), os.environ.get(LINEAR_FILE)
    if path is None:
        return _choose(model, forward, wanted)
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # for two first workers at once
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
    except Exception as error:  # noqa: BLE001 - a model whose code reads its weights, a CPU that oneDNN has nothing for
        reason = f"{type(error).__name__}: {error}"
    print(f"linear layers stay torch's own; with weights packed by oneDNN: {reason}", flush=True)  # noqa: T201 - goes to the log
    unpack(layers)
    return TORCH


def packable(model: Any) -> list[Any]:
    """The linear layers whose weight can be packed.

    Plain ones in float32 on the CPU that share it with no other.
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

    modules = list(model.modules())
    parameters = [
        each for module in modules for each in module._parameters.values() if is_plain(each)
    ]
    owners = Counter(each.data_ptr() for each in parameters)
    return [
        module
        for module in modules
        if type(module) is torch.nn.Linear
        # Not wrapped (accelerate), no weight that is made anew for each pass (the older
        # weight_norm).
        and "forward" not in vars(module)
        and not module._forward_pre_hooks
        and all(is_plain(each) for each in module._parameters.values() if each is not None)
        and owners[module.weight.data_ptr()] == 1
    ]


def pack(layers: Iterable[Any]) -> None:
    """Put a packed weight in the place of each layer's.

    One after the other, so that one at most is there twice.
    """
    import torch

    for layer in layers:
        layer.weight = torch.nn.Parameter(_packed(layer.weight), requires_grad=False)
        layer.forward = functools.partial(_product, layer)


def unpack(layers: Iterable[Any]) -> None:
    """Undo `pack`, to the last bit; layers that are not packed stay as they are."""
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
    """What a packed layer makes of an input of any number of dimensions."""
    import torch

    return torch.ops.mkldnn._linear_pointwise(given, layer.weight, layer.bias, "none", [], "")


def measured_ratio(layers: Sequence[Any]) -> float:
    """Time both kernels for the largest of the layers: the packed one's share of torch's own time.

    It counts the CPU time of one thread, which is the same on a busy machine.
    """
    import torch

    layer = max(layers, key=lambda each: each.weight.numel())
    packed = SimpleNamespace(weight=_packed(layer.weight), bias=layer.bias)
    rows = min(512, max(16, _MULTIPLICATIONS // layer.weight.numel()))
    given = torch.rand(rows, layer.in_features)

    def took_s(product: Callable[[], Any]) -> float:
        best_s = math.inf
        for _ in range(3):  # the first makes the kernel
            before_s = time.thread_time()
            product()
            best_s = min(best_s, time.thread_time() - before_s)
        return best_s

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return took_s(lambda: _product(packed, given)) / took_s(lambda: layer(given))
    finally:
        torch.set_num_threads(threads)


Wait: TypeAlias = Callable[[], Vectors]  # waits for a batch's vectors

# Padded tokens of a batch times the model's weights, for each thread of its lane: 8 s of a slow
# core, since a worker that is asked to leave has 25 s for the batches under way and the one that
# waits for a lane.
_MOST_PRODUCTS = 160e9
_BATCHES_A_LANE = 4  # at least: the last batches of a chunk leave cores without work
# Model types of transformers whose forward pass keeps nothing in the model, so that several may be
# under way.
STATELESS = frozenset(
    {
        *(
            "bert",
            "camembert",
            "distilbert",
            "electra",
            "eurobert",
            "gemma3_text",
            "llama",
            "mistral",
            "modernbert",
        ),
        *("mpnet", "nomic_bert", "qwen2", "qwen3", "roberta", "xlm-roberta"),
    }
)
# Before transformers 5 had it, what gathers a forward pass's outputs replaced methods of the model
# meanwhile.
_THREAD_SAFE = "transformers.utils.output_capturing"
# rotary position embeddings whose frequencies a forward pass changes
_CHANGING_ROPE = (
    "dynamic",
    "longrope",
)


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
        """The batches with their vectors, in their order.

        `begins` hears of each batch, in this thread; False ends the iteration with those under way.
        `start` starts to compute one, in a lane's thread if there are several, and what it returns
        waits for the vectors. A batch of one text has the machine to itself: so it gets through
        where there is memory for no more.
        """
        under_way: deque[tuple[Indices, Wait]] = deque()

        def oldest() -> tuple[Indices, Vectors]:
            indices, wait = under_way.popleft()
            return indices, wait()

        pool = None
        if self.count > 1:
            import torch

            print(f"{self.count} batches at a time, threads for each: {self.threads}", flush=True)  # noqa: T201 - goes to the log
            pool = ThreadPoolExecutor(self.count, "lane", torch.set_num_threads, (self.threads,))
        try:
            for indices in batches:
                alone = pool is not None and len(indices) == 1
                while under_way and alone:
                    yield oldest()
                if not begins(indices):
                    break
                if pool is None or alone:
                    under_way.append((indices, start(indices)))
                else:
                    under_way.append(
                        (indices, pool.submit(lambda batch: start(batch)(), indices).result)
                    )
                while len(under_way) > (0 if alone else self.ahead):
                    yield oldest()
            while under_way:
                yield oldest()
        finally:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)


def lanes_for(threads: int, batches: int, products: float) -> Lanes:
    """For this number of batches.

    `products` are those of the largest: its padded tokens times the model's weights.
    """
    least_threads = max(1, math.ceil(products / _MOST_PRODUCTS))
    wanted = os.environ.get(BATCHES_AT_ONCE, "")
    most = min(threads // least_threads, int(wanted) if wanted.isdigit() else threads)
    count = min(most, batches // _BATCHES_A_LANE)
    return Lanes(count, threads // count, count) if count > 1 else Lanes()


def is_stateless(model: Any) -> bool:
    """Whether several forward passes of this plain text model may be under way at once."""
    if importlib.util.find_spec(_THREAD_SAFE) is None:
        return False
    transformer = model.transformers_model
    rope_types = [getattr(module, "rope_type", None) for module in transformer.modules()]
    kinds = [
        kind
        for each in rope_types
        for kind in (each.values() if isinstance(each, dict) else [each])
    ]
    return transformer.config.model_type in STATELESS and not any(
        changing in str(kind) for kind in kinds for changing in _CHANGING_ROPE
    )
