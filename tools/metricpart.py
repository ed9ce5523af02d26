"""The list in docs/reference/machine-readable.md, from what a run writes for Prometheus."""

from chunkvisor.show.metrics import METRICS
from md import code, listing


def metrics() -> str:
    """Name with its label, and meaning, of each metric."""
    return listing((code(f"chunkvisor_{head}"), said) for head, (said, _) in METRICS.items())
