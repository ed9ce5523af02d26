"""Batches of models that compute their texts one behind the other, without padding (flash attention, `unpad_inputs`).

sentence-transformers 6.2 makes such a batch anew from its texts (base/modules/transformer.py, `preprocess`); here it is
made of token ids that were counted before, so that batches can be cut by the sum of their tokens. This leans on the
attribute `can_flatten_inputs` of its Transformer. Where that is missing, no batch is flattened.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from chunkvisor_worker.encoder import Indices


def is_flattened(model: Any) -> bool:
    """Whether the model takes its batches so."""
    return bool(getattr(model[0], "can_flatten_inputs", False))


@contextmanager
def unflattened(model: Any) -> Iterator[None]:
    """Within it, the model's `preprocess` gives the token ids text by text."""
    if not is_flattened(model):
        yield
        return
    model[0].can_flatten_inputs = False
    try:
        yield
    finally:
        model[0].can_flatten_inputs = True


def flatten(model: Any, rows: Sequence[Mapping[str, Indices]]) -> dict[str, Any]:
    """The texts as one row: ids, positions and where each begins, as the model's `preprocess` would have it."""
    first = model[0]
    batch = dict(first.data_collator([{"input_ids": row["input_ids"]} for row in rows]))
    batch.pop("labels", None)
    # Positions of RoBERTa's family do not begin with 0.
    if offset := getattr(first, "_flatten_position_offset", 0):
        batch["position_ids"] = batch["position_ids"] + offset
    return batch
