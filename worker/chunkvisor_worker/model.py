"""Builds the sentence-transformers model a person asked for, or says which of their settings cannot be had."""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunkvisor_worker.contract.messages import EncodeSpec, ModelSpec
from chunkvisor_worker.loaded import WrongModelError, check_tokenizer, loading_code

CONSTRUCTOR_KWARGS = frozenset(
    {
        *("backend", "config_kwargs", "default_prompt_name", "model_kwargs", "processor_kwargs", "prompts"),
        "tokenizer_kwargs",
    }
)
"""Keys of `model.kwargs` that are SentenceTransformer's own; all others are the transformers model's."""

EXCLUDE_PROMPT = frozenset({"hkunlp/instructor-base", "hkunlp/instructor-large", "hkunlp/instructor-xl"})
"""sentence-transformers knows these by their hub id, which the path of a snapshot hides from it."""

TEXT_MODULES = frozenset({"Transformer", "Pooling", "Normalize", "Dense", "Dropout", "LayerNorm"})
"""Modules of sentence-transformers that need nothing but the padded token ids."""

NO_LIMIT = 10**9
"""A tokenizer without a maximum length says 10**30."""


def load_model(spec: ModelSpec, device: str) -> Any:
    """The SentenceTransformer in eval mode on `device`, with its maximum length set as asked.

    Raises ValueError for a setting the model cannot meet (TokenizerMismatchError is one), and whatever
    sentence-transformers raises.
    """
    from sentence_transformers import SentenceTransformer

    own, model_kwargs = split_kwargs(spec.kwargs)
    if own.get("backend", "torch") == "torch" and "torch_dtype" not in model_kwargs:
        model_kwargs.setdefault("dtype", spec.dtype)
    with loading_code(spec):
        model: Any = SentenceTransformer(
            spec.path or spec.name,
            # The revision of a local folder is our digest of it, which the library cannot know.
            revision=None if spec.path else spec.revision,
            # With a device map of the person's, accelerate places the model.
            device=device if model_kwargs.get("device_map") is None else None,
            trust_remote_code=spec.trust_remote_code is True,
            model_kwargs=model_kwargs,
            **own,
        )
    if spec.pooling is not None:  # in the place of the one that the library has made up
        from sentence_transformers.sentence_transformer.modules import Pooling

        del model[1:]
        model.append(Pooling(model[0].get_embedding_dimension(), spec.pooling))
    if spec.name in EXCLUDE_PROMPT:
        model.set_pooling_include_prompt(False)
    _fit_length(model, spec.max_length)
    transformer, tokenizer = model.transformers_model, getattr(model, "tokenizer", None)
    if transformer is not None and hasattr(tokenizer, "unk_token"):
        check_tokenizer(tokenizer, table_rows(transformer))
    return model.eval()


def split_kwargs(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`model.kwargs` as (SentenceTransformer's own, the transformers model's)."""
    own = {key: value for key, value in kwargs.items() if key in CONSTRUCTOR_KWARGS}
    rest = {key: value for key, value in kwargs.items() if key not in CONSTRUCTOR_KWARGS}
    return own, {**(own.pop("model_kwargs", None) or {}), **rest}


def is_placed_by_loading(spec: ModelSpec) -> bool:
    """Whether the weights go to their device as they are loaded: quantized, with a device map, or for ONNX or OpenVINO.

    Such a model must not be moved with `.to()` afterwards, so it is loaded once the GPU may be used.
    """
    own, model_kwargs = split_kwargs(spec.kwargs)
    if own.get("backend", "torch") != "torch":
        return True
    if model_kwargs.get("quantization_config") is not None or model_kwargs.get("device_map") is not None:
        return True
    try:
        config = json.loads((Path(spec.path or spec.name) / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("quantization_config") is not None


def is_plain_text_model(model: Any) -> bool:
    """Whether token ids are all that the modules need; only then may tokenizing and forwarding be parted."""
    first = model[0]
    return (
        model.get_backend() == "torch"
        and type(first).__name__ == "Transformer"
        and all(type(module).__module__.startswith("sentence_transformers.") for module in model)
        and all(type(module).__name__ in TEXT_MODULES for module in model)
        and "processing_kwargs" in inspect.signature(first.preprocess).parameters
        and list(first.modality_config) == ["text"]
        and not first.processing_kwargs  # its own padding or length would be overridden
    )


def chosen_prompt(encode: EncodeSpec, prompts: Mapping[str, str], default_name: str | None) -> str | None:
    """Choose the text put before every text, None for none: `prompt`, `prompt_name`'s, the task's, or the default.

    Raises ValueError for a `prompt_name` that is not one of the model's prompts.
    """
    if encode.prompt is not None:
        return encode.prompt
    if encode.prompt_name is None and encode.task is not None:
        # As `encode_query` and `encode_document` choose.
        names = ("query",) if encode.task == "query" else ("document", "passage", "corpus")
        for name in names:
            if name in prompts:
                return prompts[name]
    if encode.prompt_name is not None and encode.prompt_name not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise ValueError(f"prompt_name {encode.prompt_name!r} is not a prompt of this model; it has: {known}")
    return prompts.get(encode.prompt_name or default_name or "")


def max_length(model: Any) -> int | None:
    """Tokens the model reads of a text, None where it has no limit."""
    length = model.max_seq_length
    return int(length) if length is not None and length < NO_LIMIT else None


def sample_vector(model: Any) -> Any:
    """The vector of a text of eight tokens, of shape (1, dimension), by a plain text model.

    The tokenizer is not asked for it: it would start threads, which a template must not have.
    """
    import torch

    rows = table_rows(model.transformers_model) or 8
    ids = torch.arange(rows // 2, rows // 2 + 8)[None] % rows
    with torch.inference_mode():
        return model({"input_ids": ids, "attention_mask": torch.ones_like(ids)})["sentence_embedding"]


def table_rows(transformer: Any) -> int | None:
    """Rows of the input embedding table of a transformers model, None where there is no such table."""
    try:
        table = transformer.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    rows: int | None = getattr(table, "num_embeddings", None)
    return rows


def position_limit(transformer: Any) -> int | None:
    """Longest input in tokens that the model has positions for, None where it names no limit.

    RoBERTa's family counts positions from its padding index + 1, so that a table of 514 serves 512 tokens.
    """
    config = (
        transformer.config.get_text_config() if hasattr(transformer.config, "get_text_config") else transformer.config
    )
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:  # XLNet says -1
        return None
    tables = (getattr(module, "position_embeddings", None) for module in transformer.modules())
    padding = [getattr(table, "padding_idx", None) for table in tables]
    return limit - max((index + 1 for index in padding if index is not None), default=0)


def _fit_length(model: Any, asked: int | None) -> None:
    """Set the length asked for. Raises if it, or the model's own, is beyond the table of positions."""
    transformer, own = model.transformers_model, max_length(model)
    limit = position_limit(transformer) if transformer is not None and hasattr(transformer, "config") else None
    if asked is not None:
        if limit is not None and asked > limit:
            raise ValueError(
                f"model.max_length is {asked}, but the model has positions for {limit} tokens only; "
                f"set it to {limit} or less, or to null for the model's own"
            )
        try:
            model.max_seq_length = asked
        except AttributeError as error:
            name = type(model[0]).__name__
            raise ValueError(
                f"model.max_length is {asked}, but a model of {name} has no length to set; set null"
            ) from error
    elif limit is not None and own is not None and own > limit:
        # Only a table of positions ends: rotary ones go on.
        tables = (getattr(module, "position_embeddings", None) for module in transformer.modules())
        if any(hasattr(table, "num_embeddings") for table in tables):
            raise WrongModelError(
                f"the model says that it reads {own} tokens (max_seq_length in sentence_bert_config.json, or the "
                f"tokenizer's), but it has positions for {limit}: a longer text would fail, on a GPU by a device-side "
                f"assert. Set model.max_length to {limit}."
            )


def set_truncate_dim(model: Any, asked: int | None, saved: int | None) -> None:
    """Keep the first dimensions of each vector, as asked for or else as saved with the model; None = all.

    Raises ValueError if more are asked for than there are.
    """
    model.truncate_dim = None  # or the library would count those of before
    full = model.get_embedding_dimension()
    if asked is not None and full is not None and asked > full:
        raise ValueError(f"encode.truncate_dim is {asked}, but the model's vectors have {full} dimensions only")
    model.truncate_dim = saved if asked is None else asked
