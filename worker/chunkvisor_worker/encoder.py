"""What the job needs of an encoder."""

from collections.abc import Iterator
from typing import Protocol

from chunkvisor_worker.batching import Indices, Vectors
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, Limits
from chunkvisor_worker.progress import BeatWriter


class Encoder(Protocol):
    """Turns the texts of one chunk into vectors; used once, in the order load, tokenize, start, encode, facts, release.

    In a template process: load; then, in each process forked from it: adopt, load, and so on.
    """

    def load(self, progress: BeatWriter) -> None:
        """Import what is needed and load the weights to host memory, unless that is done; touches no CUDA."""

    def adopt(self, encode: EncodeSpec) -> None:
        """Make the vectors that one output wants, whatever the encoder was built for."""

    def tokenize(self, texts: list[str], progress: BeatWriter) -> None:
        """Take the texts in and do all that needs no device; touches no CUDA."""

    def start(self, progress: BeatWriter) -> None:
        """Move to the device."""

    def texts_cut(self) -> Indices:
        """Texts of more tokens than the model reads; int64 of shape (n, 2): position, and tokens before the cut.

        Known after `start`; empty if the encoder does not count tokens.
        """

    def encode(self, limits: Limits, progress: BeatWriter) -> Iterator[tuple[Indices, Vectors]]:
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
