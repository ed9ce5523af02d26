"""`python -m chunkvisor_worker.windows FOLDER`: cuts long texts into windows that the model reads to their end.

A window begins and ends between words where that is possible, and its tokens, counted with the prompt and the special
ones, are not more than the model reads. Of a text a piece is tokenized at a time, however long it is.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.messages import Phase
from chunkvisor_worker.contract.windows import WindowsFiles, WindowsRequest
from chunkvisor_worker.contract.wire import read_message
from chunkvisor_worker.faults import recorded
from chunkvisor_worker.lengths import Counter, folder_of
from chunkvisor_worker.liveness import die_with_parent, leave, only_argument

CHARS_PER_TOKEN = 6
"""Characters that are tokenized for each token of a window; English has 4 to 5."""

_GROWTH = 2
"""Where they were too few, this many times more are taken."""

_WORD_TOKENS = 8
"""So many tokens of a word, at most, are repeated beyond the overlap so that a window begins with it."""

Span = tuple[int, int]
"""First character, and one past the last."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Those of a piece of text, without special ones."""

    spans: Sequence[Span]
    words: Sequence[int | None]
    """Number of the word that each is of."""


Split = Callable[[list[str]], list[Tokens]]
Count = Callable[[list[str]], Sequence[int]]
"""Tokens that the model would read of each text, prompt and special ones included."""


@dataclass(slots=True)
class _Open:
    """A text whose next window is looked for."""

    number: int
    chars: int
    """That are tokenized."""
    most: int
    """Tokens that the window may have."""
    start: int = 0
    end: int = 0
    """Of the window before."""


@dataclass(frozen=True, slots=True)
class _Window:
    """What may be the next one; positions are in the piece."""

    end: int
    tokens: int
    next_start: int | None
    """None = nothing follows."""


def cut_windows(texts: Sequence[str], limit: int, overlap: int, split: Split, count: Count) -> list[list[Span]]:
    """The windows of each text, at least one; of one of at most `limit` tokens it is the text itself."""
    room = limit - count([""])[0]
    found: list[list[Span]] = [[] for _ in texts]
    short = [number for number, text in enumerate(texts) if len(text) <= CHARS_PER_TOKEN * limit]
    sizes = dict(zip(short, count([texts[number] for number in short]) if short else (), strict=True))
    waiting = list[_Open]()
    for number, text in enumerate(texts):
        if sizes.get(number, limit + 1) <= limit:
            found[number].append((0, len(text)))
        else:
            waiting.append(_Open(number, CHARS_PER_TOKEN * limit, room))
    while waiting:
        pieces = [texts[each.number][each.start : each.start + each.chars] for each in waiting]
        ends = [each.start + each.chars >= len(texts[each.number]) for each in waiting]
        tried = [
            _window(piece, tokens, each.most, overlap, each.end - each.start, is_last=is_last)
            for each, piece, tokens, is_last in zip(waiting, pieces, split(pieces), ends, strict=True)
        ]
        read = count([piece[: window.end] if window else "" for piece, window in zip(pieces, tried, strict=True)])
        for each, window, size in zip(waiting, tried, read, strict=True):
            if window is None:
                each.chars *= _GROWTH
            elif size > limit and each.most > 1:  # cut off there, its last word has more tokens than before
                each.most = max(1, min(each.most, window.tokens) - (size - limit))
            else:
                each.end = each.start + window.end
                # As many as this one took will do for the next: a long blank is not tokenized with every window.
                each.chars = max(CHARS_PER_TOKEN * limit, min(each.chars, _GROWTH * window.end))
                if window.end:
                    found[each.number].append((each.start, each.end))
                each.start = -1 if window.next_start is None else each.start + window.next_start
                each.most = room
        waiting = [each for each in waiting if each.start >= 0]
    return found


def _window(piece: str, tokens: Tokens, most: int, overlap: int, after: int, *, is_last: bool) -> _Window | None:
    """The window at the beginning of the piece; None where more of the text must be seen to tell its end.

    It ends after that character, where the one before it ended.
    """
    spans, words = tokens.spans, tokens.words
    if len(spans) <= most:
        return _Window(len(piece) if spans else 0, len(spans), None) if is_last else None
    ends = (at for at in range(most, most // 2, -1) if _begins_word(words, at) and spans[at - 1][1] > after)
    stop = next(ends, most)
    while stop < len(spans) and not spans[stop - 1][1]:  # tokens that stand for no character
        stop += 1
    if stop == len(spans):
        return _Window(len(piece), stop, None) if is_last else None
    end = max(spans[stop - 1][1], 1)
    if is_last and not piece[end:].strip():
        return _Window(len(piece), stop, None)
    again = max(1, stop - overlap)
    least = max(0, again - _WORD_TOKENS, stop - most * 3 // 4)
    nearby = itertools.chain(range(again, least, -1), range(again + 1, stop))
    start = spans[next((at for at in nearby if _begins_word(words, at)), again)][0]
    return _Window(end, stop, start if 0 < start < end else end)


def _begins_word(words: Sequence[int | None], place: int) -> bool:
    return words[place] is None or words[place] != words[place - 1]


class Cutter:
    """Windows by the tokenizer of a model folder."""

    def __init__(self, counter: Counter, request: WindowsRequest) -> None:
        self._counter = counter
        self._limit = counter.max_length
        self._prompt = counter.prompt(request.encode)
        self.refused: str | None = None
        """Why no text can be cut."""
        if counter.tokenizer is None or not getattr(counter.tokenizer, "is_fast", False):
            self.refused = "this model has no fast tokenizer, which tells the characters of each token"
        elif self._limit is not None:
            room = self._limit - self._count([""])[0]
            self._overlap = room // 8 if request.overlap is None else request.overlap
            if not 0 <= self._overlap < room:
                self.refused = f"{self._overlap} tokens in common do not go into windows of {room} tokens"

    def windows(self, texts: Sequence[str]) -> list[list[Span]]:
        """See `cut_windows`; a model without a limit reads every text to its end."""
        if self._limit is None:
            return [[(0, len(text))] for text in texts]
        return cut_windows(texts, self._limit, self._overlap, self._split, self._count)

    def _count(self, texts: list[str]) -> list[int]:
        return self._counter.count([self._prompt + text for text in texts])

    def _split(self, texts: list[str]) -> list[Tokens]:
        lowered = [text.lower() for text in texts] if self._counter.lower else texts
        encoded = self._counter.tokenizer(
            lowered, add_special_tokens=False, truncation=False, padding=False, return_offsets_mapping=True
        )
        found = [Tokens(each.offsets, each.word_ids) for each in encoded.encodings]
        for number, (text, lower) in enumerate(zip(texts, lowered, strict=True)):
            if len(text) != len(lower):  # a few letters become two: "İ"
                places = [at for at, letter in enumerate(text) for _ in letter.lower()] + [len(text)]
                spans = [(places[start], places[end]) for start, end in found[number].spans]
                found[number] = Tokens(spans, found[number].words)
        return found


def main() -> None:
    """Answer until the other end closes; leave fault.json in the folder where that cannot be done."""
    files = WindowsFiles(only_argument("python -m chunkvisor_worker.windows FOLDER"))
    die_with_parent()
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    request = read_message(WindowsRequest, files.request)
    if request is None:
        leave(WorkerExit.USAGE, f"{files.request} is missing or is no request")
    with recorded(files.fault, Phase.TOKENIZE), open(answers, "w", encoding="ascii") as out:
        cutter = Cutter(Counter(request.model, folder_of(request.model)), request)
        for answer in itertools.chain(
            [cutter.refused], (cutter.windows(json.loads(line)) for line in sys.stdin.buffer)
        ):
            out.write(json.dumps(answer) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
