"""What it costs a worker to write each finished batch at once, and not all vectors at its end.

`python benchmarks/keeping.py [--commits FILE] [--texts 250] [--rounds 12]`: all-MiniLM-L6-v2 on the
CPU encodes the same texts, in turn with the file of the workers and with one that keeps all vectors
in memory until the end, in one process, so that a machine that gets slower does so for both. It
counts processor time: what else runs is not in it.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash
from corpus import ensure_model, read_texts

from chunkvisor_worker.batching import Indices, Vectors
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Limits, ModelSpec
from chunkvisor_worker.job import VectorFile
from chunkvisor_worker.liveness import BeatWriter
from chunkvisor_worker.sentence_transformer import SentenceTransformerEncoder

LIMITS = Limits(rows=1_000_000, tokens=2048, padding=64)
"""As on a CPU with `batch_tokens: auto`."""


class AtTheEnd:
    """What VectorFile was before it kept batches.

    All vectors in memory, written and digested at the end.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path, self._count = path, count
        self._vectors: Vectors | None = None

    def begin_batch(self, _indices: Indices) -> None:
        """Nothing."""

    def write_block(self, indices: Indices, block: Vectors) -> None:
        """Keep it."""
        if self._vectors is None:
            self._vectors = np.zeros((self._count, block.shape[1]), dtype=np.float32)
        self._vectors[indices] = block

    def complete(self) -> None:
        """Write all."""
        assert self._vectors is not None
        np.save(self._path, self._vectors)
        xxhash.xxh3_128_hexdigest(self._path.read_bytes())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=Path)
    parser.add_argument("--texts", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    texts = read_texts(options.commits, options.texts, distinct=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder = SentenceTransformerEncoder(ModelSpec(str(ensure_model())), "cpu")
        progress = BeatWriter(folder / "beat.json")
        encoder.load(progress)
        encoder.tokenize(texts, progress)
        took: dict[str, list[float]] = {"batch by batch": [], "at the end": []}
        own: list[float] = []
        for number in range(options.rounds + 1):
            # The order changes, so that neither is always the second.
            for kind in sorted(took, reverse=bool(number % 2)):
                spent = [0.0]
                file = _file(kind, folder, len(texts), encoder, spent)
                used_s = _encode(encoder, file, BeatWriter(folder / "beat.json"))
                if number:  # the first round warms up
                    took[kind].append(used_s)
                    own += spent if kind == "batch by batch" else []
    medians = {kind: statistics.median(found) for kind, found in took.items()}
    for kind, found in took.items():
        print(
            f"{kind:<15} median {medians[kind]:.3f} s of processor time, least {min(found):.3f}, "
            f"most {max(found):.3f}"
        )
    pairs = [
        one / other - 1
        for one, other in zip(took["batch by batch"], took["at the end"], strict=True)
    ]
    print(
        f"difference of the medians "
        f"{100 * (medians['batch by batch'] / medians['at the end'] - 1):+.2f} %"
    )
    print(f"median of the differences, pair by pair {100 * statistics.median(pairs):+.2f} %")
    share = statistics.median(own) / medians["batch by batch"]
    print(
        f"inside the file's own calls {1000 * statistics.median(own):.1f} ms, {100 * share:.2f} % "
        f"of the whole"
    )


def _file(
    kind: str, folder: Path, count: int, encoder: SentenceTransformerEncoder, spent: list[float]
) -> "VectorFile | AtTheEnd":
    if kind == "at the end":
        return AtTheEnd(folder / "all.npy", count)
    file = VectorFile(AttemptFiles(folder), count, (), encoder.facts)
    for call in ("begin_batch", "write_block", "complete"):
        setattr(file, call, _timed(getattr(file, call), spent))
    return file


def _timed(call: Callable[..., object], spent: list[float]) -> Callable[..., object]:
    def timed(*arguments: object) -> object:
        began_s = time.thread_time()
        try:
            return call(*arguments)
        finally:
            spent[0] += time.thread_time() - began_s

    return timed


def _encode(
    encoder: SentenceTransformerEncoder, file: "VectorFile | AtTheEnd", progress: BeatWriter
) -> float:
    began_s = time.process_time()
    progress.on_batch = file.begin_batch
    for indices, block in encoder.encode(LIMITS, progress):
        file.write_block(indices, block)
    file.complete()
    return time.process_time() - began_s


if __name__ == "__main__":
    main()
