"""Which tokenizers are refused for which embedding tables."""

import os

import pytest

from chunkvisor_worker.loaded import TokenizerMismatchError, check_ids, check_tokenizer


class FakeTokenizer:
    """Says how many tokens it knows, and splits at spaces."""

    unk_token = "[UNK]"

    def __init__(self, size: int, words: tuple[str, ...] = ("quick", "brown", "fox", "dog.", "lazy")) -> None:
        self._size = size
        self._words = words
        self.parallelism: set[str | None] = set()

    def __len__(self) -> int:
        return self._size

    def tokenize(self, text: str) -> list[str]:
        """Known words, and [UNK] for the others."""
        self.parallelism.add(os.environ.get("TOKENIZERS_PARALLELISM"))
        return [word if word in self._words else self.unk_token for word in text.split()]


@pytest.mark.parametrize(
    ("size", "table_rows"),
    [
        (30522, 30522),
        (151_646, 151_936),  # Qwen2: a padded table
        (262_145, 262_144),  # EmbeddingGemma: an image token without a row
        (30522, None),
    ],
)
def test_a_fitting_tokenizer_passes(size: int, table_rows: int | None) -> None:
    """Padded tables, a few surplus tokens and unknown tables are no reason to refuse."""
    check_tokenizer(FakeTokenizer(size), table_rows)


@pytest.mark.parametrize(
    ("size", "table_rows", "words", "message"),
    [
        (5, 30522, ("quick",), "knows 5 tokens, .* 30522 rows: most words would be unknown"),
        (119_547, 30522, ("quick", "fox"), "30522 rows: the tokenizer files belong to another model"),
        (30522, 30522, (), "knows the words of no language"),
        (5, None, (), "knows the words of no language"),
    ],
)
def test_a_foreign_tokenizer_is_refused(
    size: int, table_rows: int | None, words: tuple[str, ...], message: str
) -> None:
    """The error says how many tokens meet how many rows, or that no word is known."""
    with pytest.raises(TokenizerMismatchError, match=message):
        check_tokenizer(FakeTokenizer(size, words), table_rows)


@pytest.mark.parametrize("before", [None, "true"])
def test_the_check_starts_no_threads(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that only loads stays fit for forking, and keeps its environment."""
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    if before is not None:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
    tokenizer = FakeTokenizer(10)

    check_tokenizer(tokenizer, 10)

    assert tokenizer.parallelism == {"false"}
    assert os.environ.get("TOKENIZERS_PARALLELISM") == before


def test_ids_outside_the_table_are_refused() -> None:
    """An id that the embedding table lacks is named before a GPU asserts on it."""
    check_ids(99, 100)
    check_ids(100, None)

    with pytest.raises(TokenizerMismatchError, match="token id 100"):
        check_ids(100, 100)
