"""Which keys and variables probably hold a secret, by their names, and how it is noted without being shown."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

_WORDS = frozenset(
    {"apikey", "auth", "cookie", "credential", "credentials", "key", "passwd", "password", "pat", "pwd", "secret"}
    | {"token"}  # not tokens: encode.batch_tokens
)

_DIGEST = re.compile("sha256:[0-9a-f]{64}")


def is_secret(name: str) -> bool:
    """Whether a key or a variable of this name probably holds a secret."""
    return not _WORDS.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


def digested(value: Any, name: str = "") -> Any:
    """Plain values once more, with a digest in place of each secret; `name` is the key that the value stands under.

    Equal secrets have equal digests, so that a change is seen: a name such as `num_key_value_heads` holds no secret.
    """
    if isinstance(value, Mapping):
        return {key: digested(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [digested(item, name) for item in value]
    if value is None or isinstance(value, bool) or not is_secret(name) or _DIGEST.fullmatch(str(value)):
        return value
    return f"sha256:{hashlib.sha256(json.dumps(value).encode()).hexdigest()}"
