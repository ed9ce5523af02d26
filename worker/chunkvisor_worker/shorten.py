"""Cuts long texts by characters before they are tokenized, where the tokens that the model reads stay the same.

A tokenizer reads all of a text, and then drops what is beyond the model's length: a second for each megabyte. One that
is not known to work word by word gets whole texts.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CHARS_PER_TOKEN = 16
"""Characters that are kept at first, for each token that the model reads; English has 4 to 5."""

_GROWTH = 4
"""Where they were too few, this many times more are kept."""

_LAST_WORD_BYTES = 64
"""The last word that is kept is no longer. What follows it may change its tokens (a run of line feeds joins the
punctuation before it in Qwen's pattern), and it has no more tokens than bytes."""

_WINDOW_CHARS = 4096
"""How far behind the characters that are kept a place to cut is looked for."""

_END_OF_WORD = re.compile(r"(?<=\S)[ \t\n\r]")

_WITHIN_WORDS = frozenset({"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled", "StripAccents"})
"""Normalizers that do not look across white space."""

Count = Callable[[list[str]], Sequence[int]]
"""Tokens of each text, nothing cut and no special tokens."""


def works_by_word(tokenizer: Any) -> bool:
    """Whether a transformers tokenizer keeps the first tokens of a text, and tokenizes word by word."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and tokenizer.truncation_side == "right" and parts_by_word(backend)


def parts_by_word(backend: Any) -> bool:
    """Whether a tokenizer of the package tokenizers tokenizes word by word."""
    try:
        parts = json.loads(backend.to_str())
    except Exception:  # noqa: BLE001 - a custom component written in Python cannot be serialized: a plain Exception
        return False
    steps = _steps(parts.get("pre_tokenizer"), "pretokenizers")
    normalizers = _steps(parts.get("normalizer"), "normalizers")
    return any(map(_parts_words, steps)) and all(step.get("type") in _WITHIN_WORDS for step in normalizers)


def shorten(texts: Sequence[str], max_length: int, count: Count) -> list[str]:
    """The texts, each without an end that the model never reads; `max_length` is in tokens.

    A text stays whole where its beginning has too few tokens to be sure of, however much of it is taken.
    """
    shortened = list(texts)
    chars = CHARS_PER_TOKEN * max_length
    open_positions = list(range(len(shortened)))
    while open_positions:
        heads = {place: head for place in open_positions if (head := _head(texts[place], chars))}
        tokens = count(list(heads.values())) if heads else []
        enough = {place for place, found in zip(heads, tokens, strict=True) if found >= max_length + _LAST_WORD_BYTES}
        for place in enough:
            shortened[place] = heads[place]
        chars *= _GROWTH
        open_positions = [place for place in open_positions if place not in enough and len(texts[place]) > chars]
    return shortened


def _head(text: str, chars: int) -> str:
    """The beginning, up to the end of a short word behind `chars` characters; empty where there is none."""
    for found in _END_OF_WORD.finditer(text, chars, chars + _WINDOW_CHARS):
        end = found.start()
        # One character more than fits: where that is no space either, the word is too long.
        words = text[end - _LAST_WORD_BYTES - 1 : end].split()
        if len(words) > 1 and len(words[-1].encode(errors="replace")) <= _LAST_WORD_BYTES:
            return text[:end]
    return ""


def _parts_words(step: Mapping[str, Any]) -> bool:
    """Whether a pre-tokenizer parts words at white space, so that no token depends on a word far behind it.

    One of several is enough: those beside it can only part what is left further.
    """
    match step.get("type"):
        case "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit":
            return True
        case "ByteLevel":
            return step.get("use_regex") is True
        case "Metaspace":
            return step.get("split") is True
        case "Split":  # the patterns of GPT-4, Llama 3, Qwen
            return r"\s+(?!\S)" in step["pattern"].get("Regex", "")
        case _:
            return False


def _steps(component: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    if component is None:
        return []
    if component.get("type") != "Sequence":
        return [component]
    return [step for part in component[key] for step in _steps(part, key)]
