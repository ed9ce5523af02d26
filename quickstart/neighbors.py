"""Show what the quickstart's vectors are good for.

The nearest neighbors of a few well-known functions.

It never embeds anything: row i of the .npy file belongs to row i of the .jsonl file, and that is
all it relies on.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
NAMES = ("json.dumps", "posixpath.join", "heapq.heappush", "gzip.compress", "textwrap.wrap")
"""Rows to show; one that this Python's library does not have gives way to another row."""

Vectors = npt.NDArray[np.float32]


def main() -> None:
    """Load both files, print the neighbors of a few rows and one line that judges all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vectors", type=Path, nargs="?", default=HERE / "cache" / "docstrings.npy")
    parser.add_argument("rows", type=Path, nargs="?", default=HERE / "data" / "docstrings.jsonl")
    arguments = parser.parse_args()

    vectors: npt.NDArray[Any] = np.load(arguments.vectors, mmap_mode="r", allow_pickle=False)
    names = [
        json.loads(line)["name"] for line in arguments.rows.read_text(encoding="utf-8").splitlines()
    ]
    if len(vectors) != len(names):
        sys.exit(
            f"{arguments.vectors} has {len(vectors)} rows, {arguments.rows} has {len(names)}: not "
            f"of one run"
        )
    print(
        f"{arguments.vectors.name}: {vectors.shape[0]} rows x {vectors.shape[1]} dimensions, "
        f"{vectors.dtype}"
    )

    similarity = cosine(np.asarray(vectors, dtype=np.float32))
    for row in chosen(names):
        print(f"\n{names[row]}")
        for neighbor in np.argsort(-similarity[row], kind="stable")[:3]:
            print(f"  {similarity[row, neighbor]:.2f}  {names[neighbor]}")

    share, chance = same_module(names, similarity.argmax(axis=1))
    print(
        f"\nnearest neighbor in the same top-level module: {share:.0%} of rows; by chance it "
        f"would be {chance:.1%}"
    )


def cosine(vectors: Vectors) -> Vectors:
    """Cosine similarity of all pairs, shape (rows, rows).

    -inf on the diagonal and against quarantined (NaN) rows.
    """
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity: Vectors = np.nan_to_num(unit @ unit.T, nan=-np.inf)
    np.fill_diagonal(similarity, -np.inf)
    return similarity


def chosen(names: list[str]) -> list[int]:
    """Positions of NAMES in `names`, or of rows at even distances for those that are not there."""
    position = {name: row for row, name in enumerate(names)}
    spare = [index * len(names) // len(NAMES) for index in range(len(NAMES))]
    return [position.get(name, row) for name, row in zip(NAMES, spare, strict=True)]


def same_module(names: list[str], nearest: npt.NDArray[np.intp]) -> tuple[float, float]:
    """Share of rows whose nearest neighbor has the same first name part, and the share that a random one would."""
    _, module, sizes = np.unique(
        [name.partition(".")[0] for name in names], return_inverse=True, return_counts=True
    )
    share = float(np.mean(module == module[nearest]))
    chance = float(np.sum(sizes * (sizes - 1)) / (len(names) * (len(names) - 1)))
    return share, chance


if __name__ == "__main__":
    main()
