"""Tells which models need nothing but padded token ids, so that they can be tokenized ahead of the device.

It never runs a model.
"""

import inspect
from typing import Any

TEXT_MODULES = frozenset({"Transformer", "Pooling", "Normalize", "Dense", "Dropout", "LayerNorm"})
"""Modules of sentence-transformers that need nothing but the padded token ids."""


def is_plain_text_model(model: Any) -> bool:
    """Whether token ids, padded, are all that the modules need; only then may tokenizing and forwarding be parted."""
    first = model[0]
    return (
        model.get_backend() == "torch"
        and type(first).__name__ == "Transformer"
        and all(type(module).__module__.startswith("sentence_transformers.") for module in model)
        and all(type(module).__name__ in TEXT_MODULES for module in model)
        and "processing_kwargs" in inspect.signature(first.preprocess).parameters
        and list(first.modality_config) == ["text"]
        and not first.processing_kwargs  # its own padding or length would be overridden
        and not first.can_flatten_inputs  # flash attention without padding batches by itself
    )
