"""What a config says of a model, of its use and of its batches, in the form in which workers get it. Pure."""

from chunkvisor.config.modelsection import ModelConfig
from chunkvisor.config.sections import EncodeConfig
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec

AUTO_ROWS = 32
"""Rows of a batch where no token budget holds, as sentence-transformers has it."""

AUTO_TOKENS = {"cpu": 2048, "cuda": 32768}
"""Padded tokens of a batch for `encode.batch_tokens: auto`. On a CPU more of them fall out of the cores' caches; on a
GPU this is 64 texts of 512 tokens, and `PADDING_TOKENS` and the free memory end most batches before."""

PADDING_TOKENS = {"cpu": 64, "cuda": 2048}
"""What one more batch costs, in tokens that could be computed meanwhile: on a CPU as measured
(docs/explanation/performance.md), on a GPU the ten milliseconds or so in which it waits for the kernels of a deep
model to be launched."""


def model_spec(model: ModelConfig, path: str | None, revision: str | None) -> ModelSpec:
    """The model, with the folder (None = not known, or a plug-in) and the revision that it was resolved to."""
    return ModelSpec(
        name=model.name,
        path=path,
        revision=revision,
        dtype=str(model.dtype),
        max_length=model.max_length,
        pooling=model.pooling,
        trust_remote_code=model.trust_remote_code,
        kwargs=model.kwargs,
        encoder=model.encoder,
    )


def encode_spec(encode: EncodeConfig) -> EncodeSpec:
    """What shapes the vectors; batches do not."""
    return EncodeSpec(
        normalize=encode.normalize,
        prompt=encode.prompt,
        prompt_name=encode.prompt_name,
        task=encode.task,
        kwargs=encode.kwargs,
        truncate_dim=encode.truncate_dim,
    )


def resolve_limits(encode: EncodeConfig, device_kind: str, *, plugin: bool) -> Limits:
    """Limits of one output's batches, `auto` resolved for the device; what a run learns narrows them later.

    A plug-in batches by rows alone, since its tokens cannot be counted.
    """
    rows = None if encode.batch_size == "auto" else int(encode.batch_size)
    if plugin or encode.batch_tokens is None:
        return Limits(rows or AUTO_ROWS)
    measured = encode.batch_tokens == "auto" and device_kind == "cuda"
    tokens = AUTO_TOKENS[device_kind] if encode.batch_tokens == "auto" else int(encode.batch_tokens)
    # No text has less than one token, so a row cap of as many rows as tokens caps nothing.
    return Limits(rows or tokens, tokens, padding=PADDING_TOKENS[device_kind], measured=measured)
