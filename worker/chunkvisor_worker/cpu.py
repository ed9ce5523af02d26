"""Makes a CPU fast: linear layers packed for oneDNN, and batches computed side by side, a thread each."""

import functools
import importlib.util
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from chunkvisor_worker.batching import Indices, Vectors
from chunkvisor_worker.contract.exits import BATCHES_AT_ONCE, LINEAR, most_lanes

TORCH, ONEDNN = "torch", "onednn"

_WORTHWHILE = 0.9
"""The packed weights' share of torch's own time from which on they are used: if both are alike, all workers of a run
are to choose the same, whatever else the machine does."""
_TOLERANCE = 1e-5
"""Largest difference of two vectors, relative to their largest component, that rounding explains in a deep model."""
_MULTIPLICATIONS = 1 << 28
"""In one timed product: some 5 ms of one core."""
_TYPICAL_ROWS = 1024
"""Tokens of a batch, for which oneDNN chooses the order of the packed weights."""


def choose(model: Any, forward: Callable[[], Any]) -> str:
    """Pack the weights of the model's linear layers if that is faster; says which kernel computes them from now on.

    `forward` computes some vectors with the model: those with packed weights have to be the same, up to 1e-5. Whatever
    goes wrong, the model is as it was. The variable LINEAR of the environment names a kernel, which then is not timed.
    """
    import torch

    wanted = os.environ.get(LINEAR, "")
    layers = packable(model)
    has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
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
    """The linear layers whose weight can be packed: plain ones in float32 on the CPU that share it with no other."""
    import torch

    def is_plain(parameter: Any) -> bool:
        return (
            type(parameter) is torch.nn.Parameter
            and type(parameter.data) is torch.Tensor
            and (parameter.dtype, parameter.layout, parameter.device.type) == (torch.float32, torch.strided, "cpu")
            and parameter.numel() > 0
        )

    modules = list(model.modules())
    parameters = [each for module in modules for each in module._parameters.values() if is_plain(each)]
    owners = Counter(each.data_ptr() for each in parameters)
    return [
        module
        for module in modules
        if type(module) is torch.nn.Linear
        # Not wrapped (accelerate), no weight that is made anew for each pass (the older weight_norm).
        and "forward" not in vars(module)
        and not module._forward_pre_hooks
        and all(is_plain(each) for each in module._parameters.values() if each is not None)
        and owners[module.weight.data_ptr()] == 1
    ]


def pack(layers: Iterable[Any]) -> None:
    """Put a packed weight in the place of each layer's; one after the other, so that one at most is there twice."""
    for layer in layers:
        _replace(layer, _packed(layer.weight), _packed_linear())


def unpack(layers: Iterable[Any]) -> None:
    """Undo `pack`, to the last bit; layers that are not packed stay as they are."""
    import torch

    for layer in layers:
        if layer.weight.is_mkldnn:
            _replace(layer, layer.weight.to_dense(), torch.nn.Linear)


def _replace(layer: Any, weight: Any, kind: type) -> None:
    import torch

    layer.weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
    layer.__class__ = kind


@functools.cache
def _packed_linear() -> type:
    import torch

    class PackedLinear(torch.nn.Linear):  # type: ignore[misc]  # torch is Any where it is not installed
        """A linear layer whose weight oneDNN has packed."""

        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in torch.nn.Linear
            """The product, of any number of dimensions, plus the bias."""
            found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")
            return found

    return PackedLinear


def _packed(weight: Any) -> Any:
    import torch

    with torch.no_grad():
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _TYPICAL_ROWS)


def measured_ratio(layers: Sequence[Any]) -> float:
    """Time both kernels for the largest of the layers, packed by own.

    It counts the CPU time of one thread, which is the same on a busy machine.
    """
    import torch

    layer = max(layers, key=lambda each: each.weight.numel())
    rows = min(512, max(16, _MULTIPLICATIONS // layer.weight.numel()))
    given, weight, bias = torch.rand(rows, layer.in_features), _packed(layer.weight), layer.bias
    took_s = [math.inf, math.inf]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            for turn in range(6):  # the first two make the kernels
                before_s = time.thread_time()
                if turn % 2:
                    torch.ops.mkldnn._linear_pointwise(given, weight, bias, "none", [], "")
                else:
                    torch.nn.functional.linear(given, layer.weight, bias)
                if turn > 1:
                    took_s[turn % 2] = min(took_s[turn % 2], time.thread_time() - before_s)
    finally:
        torch.set_num_threads(threads)
    return took_s[1] / took_s[0] if took_s[0] > 0 else math.inf


Wait: TypeAlias = Callable[[], Vectors]
"""Waits for a batch's vectors."""

_MOST_PRODUCTS = 160e9
"""Padded tokens of a batch times the model's weights, for each thread of its lane. A slow core does 20e9 a second, and
a batch may take 8 s: within a grace of 25 s, a worker that is asked to leave has to finish the batches under way and
the one that waits for a lane."""

STATELESS = frozenset(
    {
        *("bert", "camembert", "distilbert", "electra", "eurobert", "gemma3_text", "llama", "mistral", "modernbert"),
        *("mpnet", "nomic_bert", "qwen2", "qwen3", "roberta", "xlm-roberta"),
    }
)
"""Model types of transformers whose forward pass keeps nothing in the model, so that several may be under way."""
_THREAD_SAFE = "transformers.utils.output_capturing"
"""Before transformers 5 had it, what gathers a forward pass's outputs replaced methods of the model meanwhile."""
_CHANGING_ROPE = ("dynamic", "longrope")
"""Kinds of rotary position embeddings whose frequencies a forward pass changes."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """How many batches are computed at a time, and with how many threads each."""

    count: int = 1
    threads: int = 1
    ahead: int = 0  # batches that may be under way when another begins

    def compute(
        self, batches: Iterable[Indices], begins: Callable[[Indices], bool], start: Callable[[Indices], Wait]
    ) -> Iterator[tuple[Indices, Vectors]]:
        """The batches with their vectors, in their order.

        `begins` hears of each batch, in this thread; False ends the iteration with those under way. `start` starts
        to compute one, and what it returns waits for the vectors; it is called in a lane's thread if there are
        several lanes. A batch of one text has the machine to itself: so it gets through where there is memory for no
        more. Raises what `start` raises.
        """
        under_way: deque[tuple[Indices, Wait]] = deque()
        pool = None
        if self.count > 1:
            import torch

            print(f"{self.count} batches at a time, threads for each: {self.threads}", flush=True)  # noqa: T201 - goes to the log
            pool = ThreadPoolExecutor(self.count, "lane", torch.set_num_threads, (self.threads,))
        try:
            for indices in batches:
                alone = pool is not None and len(indices) == 1
                while under_way and alone:
                    yield under_way[0][0], under_way.popleft()[1]()
                if not begins(indices):
                    break
                if pool is None or alone:
                    under_way.append((indices, start(indices)))
                else:
                    under_way.append((indices, pool.submit(lambda batch: start(batch)(), indices).result))
                while len(under_way) > (0 if alone else self.ahead):
                    yield under_way[0][0], under_way.popleft()[1]()
            while under_way:
                yield under_way[0][0], under_way.popleft()[1]()
        finally:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)


def lanes_for(threads: int, batches: int, products: float) -> Lanes:
    """For so many batches, the largest of which has so many products: its padded tokens times the model's weights."""
    least_threads = max(1, math.ceil(products / _MOST_PRODUCTS))
    count = most_lanes(threads // least_threads, batches, os.environ.get(BATCHES_AT_ONCE, ""))
    return Lanes(count, threads // count, count) if count > 1 else Lanes()


def is_stateless(model: Any) -> bool:
    """Whether several forward passes of this plain text model may be under way at once."""
    if importlib.util.find_spec(_THREAD_SAFE) is None:
        return False
    transformer = model.transformers_model
    rope_types = [getattr(module, "rope_type", None) for module in transformer.modules()]
    kinds = [kind for each in rope_types for kind in (each.values() if isinstance(each, dict) else [each])]
    return transformer.config.model_type in STATELESS and not any(
        changing in str(kind) for kind in kinds for changing in _CHANGING_ROPE
    )
