"""Long texts are cut before they are tokenized, and no token that the model reads changes by it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from chunkvisor_worker.shorten import shorten, works_by_word

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
SPLIT = {"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": False}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}


class Backend:
    """As much of a tokenizer as tells how it works."""

    truncation_side = "right"

    def __init__(self, pre_tokenizer: Any, normalizer: Any = None) -> None:
        self._parts = {"pre_tokenizer": pre_tokenizer, "normalizer": normalizer}

    @property
    def backend_tokenizer(self) -> "Backend":
        """Itself."""
        return self

    def to_str(self) -> str:
        """The JSON of tokenizers."""
        return json.dumps(self._parts)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (Backend({"type": "BertPreTokenizer"}, {"type": "BertNormalizer"}), True),
        (Backend(BYTES | {"use_regex": True}), True),
        (Backend({"type": "Sequence", "pretokenizers": [SPLIT, BYTES | {"use_regex": False}]}, {"type": "NFC"}), True),
        (
            Backend({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE | {"split": False}]}),
            True,
        ),
        (Backend(METASPACE | {"split": True}, {"type": "Precompiled"}), True),
        (Backend(METASPACE | {"split": False}), False),
        (Backend(BYTES | {"use_regex": False}), False),
        (Backend({"type": "Split", "pattern": {"String": "x"}}), False),
        (Backend({"type": "Digits"}), False),
        (Backend(None, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}), False),
        (Backend({"type": "WhitespaceSplit"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}), False),
        (object(), False),
    ],
)
def test_only_known_tokenizers_are_trusted(tokenizer: Any, expected: bool) -> None:
    """A tokenizer that may look across words, or that nobody knows, gets whole texts."""
    assert works_by_word(tokenizer) is expected


def test_a_tokenizer_that_cuts_at_the_left_is_not_trusted() -> None:
    """It reads the end of a text."""
    tokenizer = Backend({"type": "BertPreTokenizer"})
    tokenizer.truncation_side = "left"

    assert not works_by_word(tokenizer)


def words_of(texts: list[str]) -> list[int]:
    """A tokenizer with one token a word."""
    return [len(text.split()) for text in texts]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", 0),
        ("ab " * 20, 60),
        ("ab " * 2000, 641),  # 160 characters have too few tokens to be sure of 10, 640 have enough
        (("a" * 50 + " ") * 400, 10_250),
        ("x" * 10_000, 10_000),
        (("y" * 76 + "\n") * 300, 300 * 77),  # no word is short enough to cut behind it
    ],
)
def test_how_much_is_kept(text: str, kept: int) -> None:
    """Enough for the tokens that are read and a margin; all of a text that cannot be cut in good order."""
    (short,) = shorten([text], 10, words_of)

    assert (len(short), text.startswith(short)) == (kept, True)


def random_text(generator: random.Random) -> str:
    """Words, runs of spaces, punctuation, long lines and other scripts, up to 20,000 characters."""
    parts = [
        "commit ",
        "fix: ",
        "\n\n",
        "   ",
        "a" * 200,
        "!?...\n\n\n",
        "Straße ",
        "漢字",
        "don't ",
        "\t",
        "🙂 ",
        "x" * 70 + "\n",
    ]
    return "".join(generator.choice(parts) for _ in range(generator.randrange(20_000 // 5)))


def _qwen_like() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.normalizer = tokenizers.normalizers.NFC()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([random_text(random.Random(0))], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.model
@pytest.mark.parametrize("kind", ["bert", "qwen"])
def test_the_tokens_that_are_read_stay_the_same(kind: str, minilm_path: Path) -> None:
    """Forty random texts give the same ids cut and whole, by WordPiece and by byte-level BPE."""
    generator, limit = random.Random(20261121), 24
    if kind == "bert":
        tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(str(minilm_path))
    else:
        tokenizer = _qwen_like()
    texts = [random_text(generator) for _ in range(40)]
    assert works_by_word(tokenizer)

    def count(heads: list[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(heads, truncation=False, add_special_tokens=False)["input_ids"]]

    short = shorten(texts, limit, count)

    assert sum(map(len, short)) < 0.5 * sum(map(len, texts))
    ids = [tokenizer(each, truncation=True, max_length=limit)["input_ids"] for each in (texts, short)]
    assert ids[0] == ids[1]
