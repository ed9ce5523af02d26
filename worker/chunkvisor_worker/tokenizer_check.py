"""Tells a tokenizer that does not belong to the weights before it spoils a night's vectors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SAMPLES = (
    "The quick brown fox jumps over the lazy dog.",
    "Москва является столицей России.",
    "床前明月光",
    "吾輩は猫である。",
    "모든 인간은 태어날 때부터 자유롭다.",
    "يولد جميع الناس أحرارا متساوين.",
)
"""A tokenizer of any language knows the words of one of these; one without its vocabulary knows none."""

SMALLEST_SHARE = 0.5
"""Of the embedding table that a tokenizer may name. Tables are padded by a few percent at most: Qwen2 has 151,646
tokens and 151,936 rows."""

LARGEST_SHARE = 1.01
"""A tokenizer may name a few tokens more than the table has, which no text yields (EmbeddingGemma's image token)."""


class TokenizerMismatchError(ValueError):
    """The tokenizer and the weights are not of the same model; the vectors would be finite and wrong."""


def check_tokenizer(tokenizer: Any, table_rows: int | None) -> None:
    """Refuse a tokenizer that cannot be the one the model was trained with.

    Where a model folder lacks tokenizer.json and vocab.txt, transformers (seen with 5.23) builds a tokenizer of the
    five special tokens and says nothing: all texts of n words then get the same vector.

    `tokenizer` is a transformers tokenizer, `table_rows` the rows of the input embedding table (None = unknown).
    Raises TokenizerMismatchError.
    """
    known = len(tokenizer)
    if table_rows and known < SMALLEST_SHARE * table_rows:
        raise TokenizerMismatchError(
            f"the tokenizer knows {known} tokens, but the model's embedding table has {table_rows} rows: most words "
            "would be unknown. Tokenizer files (tokenizer.json, vocab.txt, ...) are probably missing from its folder."
        )
    if table_rows and known > LARGEST_SHARE * table_rows:
        raise TokenizerMismatchError(
            f"the tokenizer knows {known} tokens, but the model's embedding table has only {table_rows} rows: "
            "the tokenizer files belong to another model."
        )
    with no_threads():
        knows_nothing = all(_mostly_unknown(tokenizer, sample) for sample in SAMPLES)
    if knows_nothing:
        raise TokenizerMismatchError(
            f"the tokenizer ({type(tokenizer).__name__}, {known} tokens) knows the words of no language: "
            f"{SAMPLES[0]!r} is unknown to it. Its vocabulary is damaged or missing."
        )


def check_ids(largest_id: int, table_rows: int | None) -> None:
    """Refuse a token id outside the embedding table; on a GPU it would be a device-side assert, which names no cause.

    Raises TokenizerMismatchError.
    """
    if table_rows and largest_id >= table_rows:
        raise TokenizerMismatchError(
            f"the tokenizer gave token id {largest_id}, but the model's embedding table has only {table_rows} rows: "
            "the tokenizer has tokens the model was not trained with."
        )


def _mostly_unknown(tokenizer: Any, sample: str) -> bool:
    tokens: list[str] = tokenizer.tokenize(sample)
    return 2 * tokens.count(tokenizer.unk_token) >= max(1, len(tokens))


@contextmanager
def no_threads() -> Iterator[None]:
    """Keep tokenizers from starting its thread pool, which would not survive a fork of the process that has loaded."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
