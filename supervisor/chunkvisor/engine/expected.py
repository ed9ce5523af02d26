"""Reads a file of known vectors (`model.expect`), and compares a model's with them.

Each line is like `{"text": "some words", "vector": [0.25, -0.5]}`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chunkvisor.errors import Halt, config_error
from chunkvisor.store.artifact import Vectors
from chunkvisor_worker.contract.correctness import allowed_difference
from chunkvisor_worker.contract.messages import ModelSpec

_MOST_BYTES = 16 << 20


def difference_and_cosine(found: Vectors, right: Vectors) -> tuple[float, float]:
    """Return the length of the difference, relative to that of `right`, and the cosine.

    Two zero vectors are equal.
    """
    one = found.astype(np.float64)
    other = right.astype(np.float64)
    length = float(np.linalg.norm(one))
    right_length = float(np.linalg.norm(other))
    if not length and not right_length:
        return 0.0, 1.0
    difference = float(np.linalg.norm(one - other)) / max(right_length, 1e-30)
    return difference, float(one @ other) / max(length * right_length, 1e-30)


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """The texts and vectors of the file that `model.expect` names."""

    path: Path
    texts: tuple[str, ...]
    vectors: Vectors  # shape (texts, dimension)

    def refusal(self, found: Vectors, dtype: str, model: ModelSpec) -> Halt | None:
        """Return a Halt (78) if the vectors that the model gives are not those of the file.

        `found` has the shape of `vectors`, or another dimension; `dtype` is that of the weights
        that made it.
        """
        allowed = allowed_difference(dtype, model)
        if found.shape[1] != self.vectors.shape[1]:
            why = (
                f"the vectors in {self.path} have {self.vectors.shape[1]:,} dimensions, those of "
                f"the model {found.shape[1]:,}"
            )
        else:
            compared = [
                difference_and_cosine(*pair) for pair in zip(found, self.vectors, strict=True)
            ]
            wrong = [at for at, (difference, _) in enumerate(compared) if not difference <= allowed]
            if not wrong:
                return None
            worst = min(wrong, key=lambda at: compared[at][1])
            difference, cosine = compared[worst]
            why = (
                f"{len(wrong)} of {len(self.texts)} vectors in {self.path} are others; the worst "
                f"is line {worst + 1}, {self.texts[worst]!r:.80}: cosine {cosine:.4f}, difference "
                f"{difference:.2g} of its length ({allowed:g} is allowed with weights in "
                f"{dtype or 'an unknown dtype'})"
            )
        return config_error(
            f"the model {model.name} does not give the vectors that model.expect says",
            "Load it as its author does: compare model.trust_remote_code, model.kwargs, "
            "model.pooling, encode.prompt and encode.normalize with its page, and the versions of "
            "transformers and sentence-transformers. Or correct the file.",
            why=why,
        )


def read_expected(path: Path) -> Expected:
    """Read such a file. Raises Halt (78) that names the line that is wrong."""
    try:
        with open(path, "rb") as file:
            lines = file.read(_MOST_BYTES).splitlines() or [b""]
    except OSError as error:
        raise config_error(
            f"model.expect: {path} cannot be read: {error.strerror}",
            "Correct the path; `chunkvisor audit CONFIG --write-expect FILE` writes such a file.",
        ) from None
    texts = list[str]()
    vectors = list[Vectors]()
    for number, line in enumerate(lines, 1):
        try:
            found = json.loads(line)
            with np.errstate(over="ignore"):
                text = found["text"]
                vector = np.array(found["vector"], dtype=np.float32)
            right = (
                isinstance(text, str)
                and vector.ndim == 1
                and np.isfinite(vector).all()
                and vector.any()
            )
            if not right or (vectors and vector.size != vectors[0].size):
                raise ValueError(line)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise config_error(
                f"model.expect: line {number} of {path} is not what is expected",
                'Correct it: each line is like {"text": "some words", "vector": [0.25, -0.5]}.',
                why="it must have a text and a vector of finite numbers, not all of them 0, as "
                "many as the lines above",
            ) from None
        texts.append(text)
        vectors.append(vector)
    return Expected(path, tuple(texts), np.array(vectors, dtype=np.float32))


def write_line(text: str, vector: Vectors) -> bytes:
    """Write a line of such a file; each number has as many digits as float32 needs."""
    numbers = ", ".join(str(number) for number in vector.astype(np.float32))
    return f'{{"text": {json.dumps(text)}, "vector": [{numbers}]}}\n'.encode()
