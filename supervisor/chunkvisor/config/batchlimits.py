"""The batch limits of a config, with `auto` resolved for a device.

Pure: it never looks at a device or a model. What a run learns of them (memory, faults) narrows these limits later.
"""

from chunkvisor.config.model import EncodeConfig
from chunkvisor_worker.contract.messages import Limits

AUTO_ROWS = 32
"""Rows of a batch where no token budget holds, as sentence-transformers has it."""

AUTO_TOKENS = {"cpu": 2048, "cuda": 32768}
"""Padded tokens of a batch for `encode.batch_tokens: auto`. On a CPU more of them fall out of the cores' caches; on a
GPU this is 64 texts of 512 tokens, and `PADDING_TOKENS` and the free memory end most batches before."""

PADDING_TOKENS = {"cpu": 64, "cuda": 2048}
"""What one more batch costs, in tokens that could be computed meanwhile: on a CPU as measured (docs/performance.md), on
a GPU the ten milliseconds or so in which it waits for the kernels of a deep model to be launched."""


def resolve_limits(encode: EncodeConfig, device_kind: str, *, plugin: bool) -> Limits:
    """Limits of one output's batches; a plug-in batches by rows alone, since its tokens cannot be counted."""
    rows = None if encode.batch_size == "auto" else int(encode.batch_size)
    if plugin or encode.batch_tokens is None:
        return Limits(rows or AUTO_ROWS)
    measured = encode.batch_tokens == "auto" and device_kind == "cuda"
    tokens = AUTO_TOKENS[device_kind] if encode.batch_tokens == "auto" else int(encode.batch_tokens)
    # No text has less than one token, so a row cap of as many rows as tokens caps nothing.
    return Limits(rows or tokens, tokens, padding=PADDING_TOKENS[device_kind], measured=measured)
