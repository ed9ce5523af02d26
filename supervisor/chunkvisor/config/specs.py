"""What a config says of a model and of its use, in the form in which worker processes get it.

Pure: it never resolves a model.
"""

from chunkvisor.config.model import EncodeConfig, ModelConfig
from chunkvisor_worker.contract.messages import EncodeSpec, ModelSpec


def model_spec(model: ModelConfig, path: str | None, revision: str | None) -> ModelSpec:
    """The model, with the folder (None = not known, or a plug-in) and the revision that it was resolved to."""
    return ModelSpec(
        name=model.name,
        path=path,
        revision=revision,
        dtype=str(model.dtype),
        max_length=model.max_length,
        trust_remote_code=model.trust_remote_code,
        kwargs=model.kwargs,
        encoder=model.encoder,
    )


def encode_spec(encode: EncodeConfig) -> EncodeSpec:
    """What shapes the vectors; batches do not."""
    return EncodeSpec(encode.normalize, encode.prompt, encode.prompt_name, encode.truncate_dim)
