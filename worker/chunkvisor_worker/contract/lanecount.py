"""How many batches a worker on the CPU computes side by side, at most; `plan` counts their memory by it."""

_BATCHES_A_LANE = 4
"""At least: the last batches of a chunk leave cores without work."""


def most_lanes(threads: int, batches: int, wanted: str) -> int:
    """For so many threads, and batches in a chunk; `wanted` is what the variable BATCHES_AT_ONCE says, or empty."""
    most = min(threads, int(wanted)) if wanted.isdigit() else threads
    return max(1, min(most, batches // _BATCHES_A_LANE))
