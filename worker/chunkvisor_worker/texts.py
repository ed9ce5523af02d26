"""The texts of an attempt: one JSON string a line, under a digest.

It never returns a part of them: damaged texts would give vectors of something else.
"""

import hashlib
import json
from pathlib import Path


class TextsDamagedError(Exception):
    """The file is not the one that the spec speaks of."""


def read_texts(path: Path, digest: str, count: int) -> list[str]:
    """The texts, in order. Raises TextsDamagedError, OSError."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise TextsDamagedError(f"{path.name} does not have the digest that its spec names")
    texts = [json.loads(line) for line in data.splitlines()]
    if len(texts) != count or not all(isinstance(text, str) for text in texts):
        raise TextsDamagedError(f"{path.name} does not hold {count} strings")
    return texts
