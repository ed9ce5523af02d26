"""What the job needs of an encoder."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chunkvisor_worker.contract.messages import EncodeSpec, Facts, Limits, Phase

Vectors = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


NONE_CUT: Indices = np.zeros((0, 2), dtype=np.int64)


class Progress(Protocol):
    """Where an encoder says what it is doing; each call is a sign of life."""

    @property
    def leaving(self) -> bool:
        """Whether no batch more is to be begun: the vectors of those that have begun are still wanted."""

    def phase(self, phase: Phase) -> None:
        """A new phase begins."""

    def tick(self) -> None:
        """Still at work within the phase."""

    def batch(self, indices: Indices, tokens: int, rows: int = 0) -> None:
        """The texts at these positions begin, at most `rows` (0 = all) at once; padded tokens, 0 = unknown."""

    def expect(self, tokens: int) -> None:
        """All texts together have so many tokens, without padding."""

    def advance(self, rows: int, tokens: int, padded_tokens: int) -> None:
        """The batch is done: rows, tokens without padding, tokens with padding."""


class Encoder(Protocol):
    """Turns the texts of one chunk into vectors; used once, in the order load, tokenize, start, encode, facts, release.

    In a template process: load; then, in each process forked from it: adopt, load, and so on.
    """

    def load(self, progress: Progress) -> None:
        """Import what is needed and load the weights to host memory, unless that is done; touches no CUDA."""

    def adopt(self, encode: EncodeSpec) -> None:
        """Make the vectors that one output wants, whatever the encoder was built for."""

    def tokenize(self, texts: list[str], progress: Progress) -> None:
        """Take the texts in and do all that needs no device; touches no CUDA."""

    def start(self, progress: Progress) -> None:
        """Move to the device."""

    def texts_cut(self) -> Indices:
        """Texts of more tokens than the model reads; int64 of shape (n, 2): position, and tokens before the cut.

        Known after `start`; empty if the encoder does not count tokens.
        """

    def encode(self, limits: Limits, progress: Progress) -> Iterator[tuple[Indices, Vectors]]:
        """Vectors of all texts, a batch at a time.

        Yields (indices, vectors): int64 of shape (n,), positions in the list given to `tokenize`, each exactly once
        over the whole iteration; float32 of shape (n, dimension). It ends before that where `progress.leaving` says so.
        """

    def facts(self) -> Facts:
        """What was found out about the model; complete after `encode`."""

    def release(self) -> bool:
        """Give the memory of the device back, as far as that can be done; the last call of all.

        Returns whether another process may have the device now, before this one has ended.
        """
