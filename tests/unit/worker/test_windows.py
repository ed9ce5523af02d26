"""Long texts are cut into windows that a model reads to their end: nothing is lost, nothing is longer than it reads."""

import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from chunkvisor_worker.contract.messages import EncodeSpec, ModelSpec
from chunkvisor_worker.contract.windows import WindowsRequest
from chunkvisor_worker.lengths import Counter
from chunkvisor_worker.windows import Cutter, Span, Tokens, cut_windows

SPECIAL = 2


def split(texts: Sequence[str]) -> list[Tokens]:
    """Tokens of up to three characters of a word; white space has none."""
    found = []
    for text in texts:
        words = [(number, word) for number, word in enumerate(re.finditer(r"\w+|[^\w\s]", text))]
        pieces = [(number, (at, min(at + 3, word.end()))) for number, word in words for at in range(*word.span(), 3)]
        found.append(Tokens([span for _, span in pieces], [number for number, _ in pieces]))
    return found


def count(texts: Sequence[str]) -> list[int]:
    """With two special ones."""
    return [len(each.spans) + SPECIAL for each in split(texts)]


def windows_of(text: str, limit: int, overlap: int) -> list[Span]:
    """Of one text, with what holds for all."""
    ((*found,),) = cut_windows([text], limit, overlap, split, count)
    assert all(size <= limit for size in count([text[start:end] for start, end in found]))
    assert found[0][0] == 0
    starts, ends = zip(*found, strict=True)
    assert sorted(set(starts)) == list(starts)
    assert sorted(set(ends)) == list(ends)
    covered = {at for start, end in found for at in range(start, end)}
    assert all(at in covered or letter.isspace() for at, letter in enumerate(text))
    return found


@pytest.mark.parametrize("text", ["", " ", "a", "one two three", "a b c d e f", "abcdefghijklmnopqr"])
def test_what_fits_is_one_window(text: str) -> None:
    """A text of as many tokens as are read, or fewer, is its own window."""
    assert windows_of(text, 6 + SPECIAL, 2) == [(0, len(text))]


def test_windows_and_what_they_have_in_common() -> None:
    """A window ends and begins between words, and the next one repeats about as many tokens as it is to."""
    text = "aaa bbb cccddd eee fffggg hhh"
    found = [text[start:end] for start, end in windows_of(text, 4 + SPECIAL, 1)]
    assert found == ["aaa bbb cccddd", "cccddd eee", "eee fffggg hhh"]


@pytest.mark.parametrize("overlap", [0, 1, 3, 7])
@pytest.mark.parametrize("text", ["x" * 1000, " ".join("ab" for _ in range(500)) + " \n ", "ab\n" * 40 + " " * 900])
def test_odd_texts(text: str, overlap: int) -> None:
    """One word without an end, words as short as their tokens, and an end that is blank."""
    found = windows_of(text, 8 + SPECIAL, overlap)
    assert len(found) <= 500


def test_random_texts() -> None:
    """Whatever the lengths of words and gaps are, all of a text is in some window; texts do not meet each other."""
    draw = random.Random(7)
    texts = [
        "".join("x" * draw.randint(1, 20) + " " * draw.randint(0, 30) for _ in range(draw.randint(0, 80)))
        for _ in range(60)
    ]
    for limit, overlap in ((9, 0), (9, 3), (40, 20), (3, 0)):
        together = cut_windows(texts, limit, overlap, split, count)
        assert together == [windows_of(text, limit, overlap) for text in texts]


def begun_by_an_empty_token(texts: Sequence[str]) -> list[Tokens]:
    """As `split`, behind a token that stands for no character; each letter is four tokens."""
    each = [[at for at, letter in enumerate(text) if not letter.isspace() for _ in range(4)] for text in texts]
    return [Tokens([(0, 0), *((at, at + 1) for at in places)], [None, *places]) for places in each]


@pytest.mark.parametrize("room", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("text", ["ab c", "ab" + " " * 400 + "cd e"])
def test_letters_of_more_tokens_than_there_is_room(text: str, room: int) -> None:
    """Each letter is in a window all the same, and that one is longer than it may be."""

    def count(texts: list[str]) -> list[int]:
        return [len(each.spans) for each in begun_by_an_empty_token(texts)]

    ((*found,),) = cut_windows([text], 1 + room, 0, begun_by_an_empty_token, count)

    covered = {at for start, end in found for at in range(start, end)}
    assert all(at in covered or letter.isspace() for at, letter in enumerate(text))


def test_a_long_blank_is_not_read_with_every_window_behind_it() -> None:
    """What was tokenized to find the end of one window does not stay as much for the next."""
    read = 0

    def counted(texts: Sequence[str]) -> list[Tokens]:
        nonlocal read
        read += sum(map(len, texts))
        return split(texts)

    text = "abc def " * 100 + " " * 20_000 + "abc def " * 300
    cut_windows([text], 32 + SPECIAL, 4, counted, count)

    assert read < 10 * len(text)


@pytest.mark.model
def test_by_the_tokenizer_of_a_model(minilm_path: Path) -> None:
    """Prompt and special tokens take room; letters that become two in lower case move nothing; too much is refused."""
    spec = ModelSpec(str(minilm_path), path=str(minilm_path), max_length=24)
    counter = Counter(spec, minilm_path)
    text = "İstanbul'da çok uzun bir İz 漢字とかなの混じった文 🙂 antidisestablishmentarianism " * 20
    for counter.lower in (False, True):
        cutter = Cutter(counter, WindowsRequest(spec, EncodeSpec(prompt="query: "), 4))
        short, found = cutter.windows(["short", text])
        assert short == [(0, 5)]
        sizes = counter.count(["query: " + text[start:end] for start, end in found])
        assert max(sizes) <= 24
        assert sum(sizes) / len(sizes) > 18
        covered = {at for start, end in found for at in range(start, end)}
        assert all(at in covered or letter.isspace() for at, letter in enumerate(text))
    refused = Cutter(counter, WindowsRequest(spec, EncodeSpec(), 22)).refused
    assert refused is not None
    assert "22 tokens" in refused
