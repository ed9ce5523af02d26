"""Turns texts into token ids with a converted model's tokenizer, and these into padded batches."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor_worker.contract.converted import Converted
from chunkvisor_worker.contract.messages import EncodeSpec
from chunkvisor_worker.encoder import Indices
from chunkvisor_worker.model import chosen_prompt
from chunkvisor_worker.shorten import CHARS_PER_TOKEN, parts_by_word, shorten

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
"""Inputs of a network."""

Row = dict[str, Indices]
"""What a network gets of one text: each int64 of shape (tokens,)."""


class ConvertedTokenizer:
    """A tokenizer of the package tokenizers that cuts after `limit` tokens (None = nowhere)."""

    def __init__(self, known: Converted, path: Path, limit: int | None) -> None:
        """Load it; no thread is started by that. Raises what tokenizers raises for a damaged file."""
        from tokenizers import Tokenizer

        self._whole: Any = Tokenizer.from_file(str(path))
        self._cutting: Any = Tokenizer.from_file(str(path))
        self._limit, self._inputs = limit, known.inputs
        self._shortens = limit is not None and not known.truncates_left and parts_by_word(self._whole)
        if limit is not None:
            side = "left" if known.truncates_left else "right"
            self._cutting.enable_truncation(limit, strategy="longest_first", direction=side)

    def encode(self, texts: Sequence[str]) -> list[Row]:
        """The inputs of each text, without padding. Raises UnicodeEncodeError (a ValueError) for a lone surrogate."""
        found = self._cutting.encode_batch_fast(list(texts))
        return [{name: np.array(_values(each, name), dtype=np.int64) for name in self._inputs} for each in found]

    def shortened(self, texts: list[str]) -> list[str]:
        """The texts without ends that the model never reads, see `shorten`."""
        limit = self._limit
        if limit is None or not self._shortens or not any(len(text) > CHARS_PER_TOKEN * limit for text in texts):
            return texts

        def count(heads: list[str]) -> list[int]:
            return [len(each.ids) for each in self._whole.encode_batch_fast(heads, add_special_tokens=False)]

        return shorten(texts, limit, count)


def prompted(known: Converted, encode: EncodeSpec, texts: Sequence[str]) -> list[str]:
    """The texts with the prompt before each. Raises ValueError for one that the model has not, or leaves out."""
    prompt = chosen_prompt(encode, known.prompts, known.default_prompt_name)
    if prompt and not known.pools_prompt:
        raise ValueError("model.backend is openvino, but this model leaves a prompt out of its pooling; set torch")
    return [prompt + text for text in texts] if prompt else list(texts)


def collate(known: Converted, rows: Sequence[Mapping[str, Indices]]) -> dict[str, Indices]:
    """One batch: each input of shape (rows, tokens of the longest), padded on the model's side."""
    width = max(1, *(len(row[IDS]) for row in rows))
    filling = {IDS: known.pad_id, MASK: 0, TYPES: known.pad_type_id}
    batch = {name: np.full((len(rows), width), filling[name], dtype=np.int64) for name in known.inputs}
    for number, row in enumerate(rows):
        for name, values in row.items():
            if known.pads_left:
                batch[name][number, width - len(values) :] = values
            else:
                batch[name][number, : len(values)] = values
    return batch


def _values(encoding: Any, name: str) -> list[int]:
    values: list[int] = {IDS: encoding.ids, MASK: encoding.attention_mask, TYPES: encoding.type_ids}[name]
    return values
