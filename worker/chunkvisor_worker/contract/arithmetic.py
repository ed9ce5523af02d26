"""What is told of a model's arithmetic beside its vectors: the kernel of its layers."""

import re
from dataclasses import dataclass

_BATCHES_A_LANE = 4
"""At least: the last batches of a chunk leave cores without work."""


def most_lanes(threads: int, batches: int, wanted: str) -> int:
    """For so many threads, and batches in a chunk; `wanted` is what the variable BATCHES_AT_ONCE says, or empty."""
    most = min(threads, int(wanted)) if wanted.isdigit() else threads
    return max(1, min(most, batches // _BATCHES_A_LANE))


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


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """What computes the linear layers of a model on a CPU; the vectors are equal to 1e-6 (see `linear`)."""

    name: str
    """"torch" (its own products) or "onednn" (with packed weights)."""
    time_ratio: float = 0.0
    """Time that oneDNN takes, by that of torch's own, as the worker has measured; 0 = not measured."""
