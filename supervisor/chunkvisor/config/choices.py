"""Values that a key of the config chooses from, and names of secrets; without pydantic."""

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

Dtype = StrEnum("Dtype", ["AUTO", "FLOAT32", "FLOAT16", "BFLOAT16"])
"""Of the model's weights on the device; AUTO is the checkpoint's own."""
EngineKind = StrEnum("EngineKind", ["LOCAL", "RAY"])
Start = StrEnum("Start", ["FRESH", "WARM", "AUTO"])
"""How a worker starts: in a new interpreter, or forked from a template process that has loaded the
model."""
OnBadRow = StrEnum("OnBadRow", ["QUARANTINE", "FAIL"])
FinalFormat = StrEnum("FinalFormat", ["NPY", "PARQUET"])
FinalDtype = StrEnum("FinalDtype", ["FLOAT32", "FLOAT16"])
"""Of the numbers in a final file."""

# As whole words: encode.batch_tokens is not a secret.
_SECRETS = re.compile(
    r"(?<![a-z0-9])(apikey|auth|cookie|credentials?|key|passwd|password|pat|pwd|secret|token)"
    r"(?![a-z0-9])"
)


def is_secret(name: str) -> bool:
    """Say whether the value of a key or a variable of this name is probably a secret."""
    return _SECRETS.search(name.lower()) is not None


def digested(value: Any, name: str = "") -> Any:
    """Copy plain values with a digest in place of each secret; `name` is the key of the value.

    Equal secrets have equal digests, so that a change is seen.
    """
    if isinstance(value, Mapping):
        return {key: digested(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [digested(item, name) for item in value]
    is_digest = re.fullmatch("sha256:[0-9a-f]{64}", str(value)) is not None
    if value is None or isinstance(value, bool) or is_digest or not is_secret(name):
        return value
    return f"sha256:{hashlib.sha256(json.dumps(value).encode()).hexdigest()}"
