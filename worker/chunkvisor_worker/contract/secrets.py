"""Keep secrets out of everything that a process prints or writes.

A secret is known by its name, which is the key or the variable that it is the value of; by its
form, such as that of a token; or by its value, once `hide` has been given it.
"""

import functools
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

SECRETS = "CHUNKVISOR_SECRETS"
"""Variable of a worker: the secrets behind the digests in its spec, as a JSON object."""

_MIN_CHARS = 8  # of a value that is masked wherever it stands; shorter ones are parts of words

# As whole words: batch_tokens is not a secret, and neither is pad_token.
_NAME = re.compile(
    r"(?<![a-z0-9])(apikey|auth|authorization|bearer|cookies?|credentials?|keys?|passphrase|passwd"
    r"|passwords?|pat|pwd|secrets?"
    r"|(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)token)(?![a-z0-9])"
)
_FORMS = (
    # Tokens of the hub, of services like OpenAI's, and of GitHub, wherever they stand.
    r"\b(hf_|api_org_|sk-(?:[a-z0-9]{2,6}-){0,2}|gh[oprsu]_|github_pat_)\w{16,}",
    r"(?i)\b(authorization['\"]?\s{0,5}[:=]\s{0,5}b?['\"]?(?:\w{1,30}\s{1,5})?)[^\s'\",;]+",
    r"(?i)\b(bearer\s{1,5})[\w.~+/=-]{6,}",
    r"(?i)\b((?:(?:hf|hub|access|auth|api)[_-]?token|api[_-]?key|password|secret)"
    r"['\"]?\s{0,5}[:=]\s{0,5}['\"]?)[^\s'\",;&)]+",
    # An address with a password.
    r"(://[^\s/:@]{0,200}:)[^\s/@]+(?=@)",
)
SIGNED = re.compile(
    r"([?&][^=&\s]{0,40}(?:signature|sig|token|key|secret|password|credential)[^=&\s]{0,20}=)"
    r"[^\s&'\"]+",
    re.IGNORECASE,
)
"""A signed or authorized address."""
_PASSWORD = re.compile(r"://[^\s/:@]{0,200}:([^\s/@]+)@")
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_PATTERNS = (*map(re.compile, _FORMS), SIGNED)
_hidden = set[str]()


@functools.cache
def is_secret(name: str) -> bool:
    """Say whether the value of a key or a variable of this name is probably a secret."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return _NAME.search(words) is not None


def _walk(value: Any, change: Callable[[Any, str], Any], name: str = "") -> Any:
    """Copy plain values, each changed by `change(value, name of its key)`."""
    if isinstance(value, Mapping):
        return {key: _walk(item, change, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_walk(item, change, name) for item in value)
    return change(value, name)


def hide(values: Mapping[str, Any]) -> None:
    """Mask from now on the values whose name says that they are secret, and passwords of addresses.

    The values may be mappings and lists.
    """
    _walk(values, _hide_value)


def _hide_value(value: Any, name: str) -> None:
    if not isinstance(value, str):
        return
    secrets = _PASSWORD.findall(value)
    if not secrets and is_secret(name):
        secrets = [re.sub(r"(?i)^(bearer|basic|token)\s+", "", value)]
    for secret in secrets:
        # A path such as that of a file of credentials is not a secret.
        is_path = secret.startswith("/") and os.path.exists(secret)  # noqa: PTH110 - a long name
        if len(secret) >= _MIN_CHARS and not is_path:  # also as in a repr or in JSON
            _hidden.update((secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]))


@functools.cache
def _hide_environment() -> None:
    hide(os.environ)
    hide({"secret": list(_secrets().values())})


def masked(text: str) -> str:
    """Return the text with *** in the place of passwords and tokens."""
    if len(text) < _MIN_CHARS:
        return text
    _hide_environment()
    for value in sorted(_hidden, key=len, reverse=True):
        text = text.replace(value, "***")
    for pattern in _PATTERNS:
        text = pattern.sub(r"\1***", text)
    return text


class _MaskedStream(io.TextIOWrapper):
    """A stream that masks each text that is written to it."""

    def write(self, text: str, /) -> int:
        return super().write(masked(text))


def mask_standard_streams() -> None:
    """Mask what this process prints."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        new = _MaskedStream(old.buffer, old.encoding, old.errors, line_buffering=True)
        setattr(sys, name, new)


def masked_values(values: Any) -> Any:
    """Copy plain values with every text masked."""

    def change(value: Any, _name: str) -> Any:
        # An enum that is a text stays one.
        text = masked(value) if isinstance(value, str) else value
        return value if text == value else text

    return _walk(values, change)


def digested(values: Any, secrets: dict[str, Any] | None = None) -> Any:
    """Copy plain values with a digest in the place of each secret.

    Equal secrets have equal digests, so that a change is seen. `secrets` gets the values by digest.
    """

    def change(value: Any, name: str) -> Any:
        if value is None or isinstance(value, bool) or _DIGEST.fullmatch(str(value)):
            return value
        if not is_secret(name) and masked(str(value)) == str(value):
            return value
        digest = f"sha256:{hashlib.sha256(json.dumps(value).encode()).hexdigest()}"
        if secrets is not None:
            secrets[digest] = value
        return digest

    return _walk(values, change)


@functools.cache
def _secrets() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(os.environ.get(SECRETS, "{}"))
    return found


def revealed(values: Any) -> Any:
    """Copy plain values with the secrets of this worker in the place of their digests."""
    secrets = _secrets()
    return _walk(values, lambda value, _: secrets.get(str(value), value)) if secrets else values
