"""Takes passwords and tokens out of text before it goes into a record, a report or a message."""

import re

_SECRETS = (
    # Tokens of the hub, of services like OpenAI's, and of GitHub, wherever they stand.
    r"\b(hf_|api_org_|sk-|gh[oprsu]_|github_pat_)[\w-]{6,}",
    r"(?i)\b(authorization['\"]?\s{0,5}[:=]\s{0,5}b?['\"]?(?:\w{1,30}\s{1,5})?)[^\s'\",;]+",
    r"(?i)\b(bearer\s{1,5})[\w.~+/=-]{6,}",
    r"(?i)\b((?:(?:hf|hub|access|auth|api)[_-]?token|api[_-]?key|password|secret)['\"]?\s{0,5}[:=]\s{0,5}['\"]?)"
    r"[^\s'\",;&)]+",
    # A signed or authorised URL, and one with a password.
    r"(?i)([?&](?:token|signature|x-amz-signature|sig|key)=)[^\s&'\"]+",
    r"(://[^\s/:@]{0,200}:)[^\s/@]+(?=@)",
)
_SECRET_PATTERNS = tuple(re.compile(pattern) for pattern in _SECRETS)


def masked(text: str) -> str:
    """The text without passwords and tokens."""
    for pattern in _SECRET_PATTERNS:
        text = pattern.sub(r"\1***", text)
    return text
