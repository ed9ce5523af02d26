"""Two choices that transformers makes for each batch of sdpa attention, made better on a GPU; neither changes a vector.

Functions of transformers 5.23: integrations/sdpa_attention.py, masking_utils.py. If they are others, all stays as
it is; so does the CPU's path.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_AMPERE = (8, 0)
"""Compute capability from which on there are fused kernels for grouped queries, in half precision."""

_padded: ContextVar[bool | None] = ContextVar("padded", default=None)
"""Whether the batch that this thread computes has padding; None = not known here."""


@contextmanager
def known_padding(padded: bool | None) -> Iterator[None]:
    """Within it, transformers need not ask the device whether the batch has padding."""
    token = _padded.set(padded)
    try:
        yield
    finally:
        _padded.reset(token)


def prepare() -> None:
    """Put both choices in place of transformers' own; once for a process."""
    sdpa, masks = "transformers.integrations.sdpa_attention", "transformers.masking_utils"
    _replace(sdpa, "use_gqa_in_sdpa", ["attention_mask", "key", "value"], _grouped)
    _replace(masks, "_ignore_causal_mask_sdpa", ["padding_mask", "q_length", "kv_length"], _skip)
    _replace(masks, "_ignore_bidirectional_mask_sdpa", ["padding_mask", "kv_length"], _skip)


def _grouped(original: Callable[..., bool]) -> Callable[..., bool]:
    """Whether sdpa hears of grouped queries, rather than that keys and values are repeated for it.

    Only the flash and cuDNN kernels take them, which want half precision and Ampere: in float32, or on an older
    GPU, sdpa would take the math kernel, with all scores in memory (48 GiB for one text of 32k tokens, Qwen2-1.5B).
    """

    @functools.wraps(original)
    def use_gqa(attention_mask: Any, key: Any, value: Any) -> bool:
        return original(attention_mask, key, value) and (key.device.type != "cuda" or _has_fused_kernel(key))

    return use_gqa


def _has_fused_kernel(key: Any) -> bool:
    import torch

    return key.dtype in (torch.float16, torch.bfloat16) and torch.cuda.get_device_capability(key.device) >= _AMPERE


def _skip(original: Callable[..., bool]) -> Callable[..., bool]:
    """Whether a batch needs no mask: `padding_mask.all()` waits for the device, and the host knows the answer."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def ignore(padding_mask: Any, *args: Any, **kwargs: Any) -> bool:
        bound = signature.bind(padding_mask, *args, **kwargs).arguments
        lengths, padded = {bound.get("q_length", bound["kv_length"]), bound["kv_length"]}, _padded.get()
        if padded is None or padding_mask is None or lengths != {padding_mask.shape[-1]}:
            return original(padding_mask, *args, **kwargs)
        return not padded and original(None, *args, **kwargs)

    return ignore


def _replace(module_name: str, name: str, parameters: list[str], wrap: Callable[[Any], Any]) -> None:
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return
    original = getattr(module, name, None)
    if original is None or hasattr(original, "__wrapped__"):
        return
    if list(inspect.signature(original).parameters)[: len(parameters)] == parameters:
        setattr(module, name, wrap(original))
