"""How many operations a model's batches take, and how many the device does in a second, by a matrix product.

The second is what the first is compared with. On a CPU it is of one thread, by its processor time, so that other work
beside it does not matter, and in a template no thread is started.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chunkvisor_worker.contract.arithmetic import LinearKernel
from chunkvisor_worker.contract.layershapes import LayerShapes

CPU_SIZE = 512
"""Of a square matrix; a product takes some 3 ms of a core."""
_GPU_SIZES = (1024, 2048, 4096)
_ROUNDS = 5
_GPU_PRODUCTS = 4
"""In a round: so that the wait for the device is a small part of it."""
_TIME_LIMIT_S = 0.03
_TOPOLOGY = Path("/sys/devices/system/cpu")


def layer_shapes(transformer: Any) -> LayerShapes:
    """The shapes of a transformers model (None: unknown).

    Unknown where a token is not multiplied with each matrix once: experts, layers used several times, convolutions.
    """
    if transformer is None:
        return LayerShapes()
    import torch

    config = transformer.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    repeated = ("num_hidden_groups", "num_experts", "num_local_experts", "n_routed_experts")
    if any(getattr(config, name, None) for name in repeated) or any(each.ndim > 2 for each in transformer.parameters()):
        return LayerShapes()
    weights = sum(
        # Of a quantized layer, its weight has another shape than the matrix it stands for.
        module.in_features * module.out_features if isinstance(module, torch.nn.Linear) else module.weight.numel()
        for name, module in transformer.named_modules()
        if getattr(getattr(module, "weight", None), "ndim", 0) == 2
        and not isinstance(module, torch.nn.Embedding)
        and "pooler" not in name  # of one token of a text
    )
    layers, heads = (getattr(config, name, None) or 0 for name in ("num_hidden_layers", "num_attention_heads"))
    of_head = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // max(1, heads)
    return LayerShapes(weights, layers * heads * of_head)


def cpu_rate(dtype: Any, kernel: LinearKernel) -> float:
    """Operations a second of a core, by the kernel that computes the linear layers; 0 = this CPU has none for it."""
    import torch

    given = torch.rand(CPU_SIZE, CPU_SIZE).to(dtype)
    try:
        with one_thread(), torch.inference_mode():
            rate = core_rate(lambda: torch.nn.functional.linear(given, given))
    except RuntimeError:
        return 0.0
    return rate / kernel.time_ratio if kernel.name == "onednn" and kernel.time_ratio else rate


def core_rate(product: Callable[[], Any], products: int = 1) -> float:
    """Operations a second of so many products of two square matrices that this thread computes, at its fastest."""
    best_s, began_s = float("inf"), time.thread_time()
    product()  # makes the kernel
    for _ in range(_ROUNDS):
        before_s = time.thread_time()
        product()
        now_s = time.thread_time()
        best_s = min(best_s, now_s - before_s)
        if now_s - began_s > _TIME_LIMIT_S:
            break
    return products * 2 * CPU_SIZE**3 / best_s if best_s > 0 else 0.0


def gpu_rate(dtype: Any, device: str) -> float:
    """Operations a second of the GPU in this dtype; 0 = unknown, as where it has no memory free for it.

    Whatever else fails here, the model meets it as well, at the next call.
    """
    import torch

    try:
        rate = _rate_of_gpu(torch, dtype, device) if dtype is not None else 0.0
        torch.cuda.empty_cache()
    except RuntimeError as error:
        print(f"what the GPU can do at most is not known: {error}", flush=True)  # noqa: T201 - goes to the log
        return 0.0
    return rate


def _rate_of_gpu(torch: Any, dtype: Any, device: str) -> float:
    """The matrices grow for as long as the next ones take little time."""
    rate = 0.0
    for size in _GPU_SIZES:
        flop = 2 * size**3 * _GPU_PRODUCTS
        if rate and flop * _ROUNDS / rate > _TIME_LIMIT_S:
            break
        given = torch.rand(size, size, dtype=dtype, device=device)
        for number in range(_ROUNDS):
            torch.cuda.synchronize()
            began_s = time.perf_counter()
            for _ in range(_GPU_PRODUCTS):
                torch.mm(given, given)
            torch.cuda.synchronize()
            if number:  # the first makes the kernel
                rate = max(rate, flop / (time.perf_counter() - began_s))
    return rate


def torch_threads() -> int:
    """Threads that torch computes with on the CPU."""
    import torch

    return int(torch.get_num_threads())


def cores(threads: int) -> int:
    """Of the CPU that so many threads of this process can use (0 = as many as there are); two may share one (SMT)."""
    usable = {_core(cpu) for cpu in os.sched_getaffinity(0)}
    return min(threads or len(usable), len(usable))


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it, torch computes with one thread."""
    import torch

    threads = torch.get_num_threads()
    if threads != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)


def _core(cpu: int) -> str:
    """Its name among the cores; that of the CPU itself where the system does not tell (some containers)."""
    try:
        return (_TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return str(cpu)
