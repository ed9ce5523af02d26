"""Takes secrets out of what is written down for people: tokens by their names, credentials out of addresses.

Pure; it never takes out what the vectors depend on, but for what bears a secret's name.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

LEFT_OUT = "(left out)"

_SECRET_WORDS = frozenset(
    {"apikey", "auth", "cookie", "credential", "credentials", "key", "passwd", "password", "pat", "pwd", "secret"}
    | {"token"}  # not tokens: encode.batch_tokens
)
_ADDRESS_KEYS = frozenset({"notify"})
"""Their values are addresses with the secret somewhere in the path; only the scheme is harmless."""

_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@]+@")


def is_secret(name: str) -> bool:
    """Whether a key or a variable of this name probably holds a secret."""
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


def without_secrets(value: Any, name: str = "") -> Any:
    """Plain values once more, with the secrets replaced; `name` is the key that the value stands under."""
    if isinstance(value, Mapping):
        return {key: without_secrets(item, str(key)) for key, item in value.items()}
    if value is None or isinstance(value, bool | float):
        return value
    if is_secret(name):
        return LEFT_OUT
    if isinstance(value, int):
        return value
    if isinstance(value, list | tuple):
        return [without_secrets(item, name) for item in value]
    if name in _ADDRESS_KEYS:
        scheme = urlsplit(str(value)).scheme  # none where pydantic has hidden the whole of it
        return f"{scheme}://{LEFT_OUT}" if scheme else LEFT_OUT
    return _CREDENTIALS.sub(rf"\1{LEFT_OUT}@", str(value))
