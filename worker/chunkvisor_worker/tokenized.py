"""The texts of a chunk as a plain text model reads them: token ids without padding, made ahead of the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkvisor_worker.batching import Indices, estimated_tokens, slices
from chunkvisor_worker.loaded import check_ids
from chunkvisor_worker.model import max_length, table_rows
from chunkvisor_worker.progress import BeatWriter


def is_flattened(model: Any) -> bool:
    """Whether the model takes its batches so."""
    return bool(getattr(model[0], "can_flatten_inputs", False))


def flatten(model: Any, rows: Sequence[Mapping[str, Indices]]) -> dict[str, Any]:
    """The texts as one row: ids, positions and where each begins, as the model's `preprocess` would have it."""
    first = model[0]
    batch = dict(first.data_collator([{"input_ids": row["input_ids"]} for row in rows]))
    batch.pop("labels", None)
    # Positions of RoBERTa's family do not begin with 0.
    if offset := getattr(first, "_flatten_position_offset", 0):
        batch["position_ids"] = batch["position_ids"] + offset
    return batch


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """All texts of a chunk."""

    rows: list[dict[str, Indices]]
    """Of each text what the tokenizer gives, `input_ids` among it: int64 of shape (tokens,)."""
    extras: dict[str, Any]
    """What the model's preprocessing gives besides, for all texts alike."""
    flat: bool
    """Whether the model takes its batches without padding, see `flattened`."""
    cut: Indices | None
    """Texts that lost their end, or their beginning; int64 of shape (n, 2): position, and tokens before the cut. None =
    the tokenizer does not say."""

    @property
    def lengths(self) -> Indices:
        """Tokens of each text; int64 of shape (texts,)."""
        return np.array([len(row["input_ids"]) for row in self.rows], dtype=np.int64)

    def batch(self, model: Any, indices: Indices) -> Any:
        """Those texts as the model takes them."""
        rows = [self.rows[index] for index in indices]
        if self.flat:
            return flatten(model, rows)
        return model.tokenizer.pad({key: [row[key] for row in rows] for key in rows[0]}, return_tensors="pt")


def tokenize(
    model: Any, texts: list[str], prompt: str | None, progress: BeatWriter, task: str | None = None
) -> TokenizedTexts:
    """Turn the texts into token ids. Raises UnicodeEncodeError (a ValueError) for a lone surrogate."""
    sizes = [len(text.encode()) for text in texts]
    # The model's own preprocessing (prompt, lower case, truncation), asked for lists without padding.
    unpadded = {"text": {"padding": False}, "common": {"return_tensors": None}}
    asked = {"task": task} if task is not None else {}
    rows, extras = list[dict[str, Indices]](), dict[str, Any]()
    cut: list[tuple[int, int]] | None = []
    flat = is_flattened(model)
    for part in slices(sizes):
        progress.tick()
        if flat:
            model[0].can_flatten_inputs = False  # or it would not give the ids text by text
        try:
            features = model.preprocess(texts[part], prompt=prompt, processing_kwargs=unpadded, **asked)
        finally:
            if flat:
                model[0].can_flatten_inputs = True
        columns = {key: value for key, value in features.items() if isinstance(value, list)}
        extras = {key: value for key, value in features.items() if key not in columns}
        found = _cut_tokens(features)
        if cut is not None and found is not None:
            cut += [(part.start + at, tokens) for at, tokens in found]
        else:
            cut = None
        for row in zip(*columns.values(), strict=True):
            # 8 bytes for a token; a list of Python integers takes 36.
            rows.append(dict(zip(columns, (np.array(ids, dtype=np.int64) for ids in row), strict=True)))
    largest = max((int(row["input_ids"].max(initial=0)) for row in rows), default=0)
    check_ids(largest, table_rows(model.transformers_model))
    pairs = None if cut is None else np.array(cut, dtype=np.int64).reshape(-1, 2)
    return TokenizedTexts(rows, extras, flat, pairs)


def _cut_tokens(features: Any) -> list[tuple[int, int]] | None:
    """(position, tokens before the cut) of the texts that a tokenizer in Rust has cut; None if there is no such one.

    It keeps what it cuts off, so that nothing is tokenized twice.
    """
    encodings = getattr(features, "encodings", None)
    if encodings is None:
        return None
    longest, found = max((len(each) for each in encodings), default=0), []
    for at, each in enumerate(encodings):
        if len(each) == longest and (rest := each.overflowing):
            found.append((at, len(each) + sum(len(more) - sum(more.special_tokens_mask) for more in rest)))
    return found


def estimated_lengths(model: Any, texts: Sequence[str], prompt: str | None) -> Indices:
    """Tokens of each text of a model that brings no tokenizer, from its bytes; int64 of shape (texts,).

    Raises UnicodeEncodeError (a ValueError) for a lone surrogate.
    """
    sizes = [len(text.encode()) for text in texts]
    limit = max_length(model) or max(sizes, default=0)
    prompt_bytes = len((prompt or "").encode())
    return np.array([min(limit, estimated_tokens(prompt_bytes + size)) for size in sizes], dtype=np.int64)
