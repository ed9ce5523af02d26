"""The table of docs/reference/metrics.md, from what a run writes for Prometheus."""

from chunkvisor.show.outside import METRICS
from md import code, table


def metrics() -> str:
    """Name with its label, and meaning, of each metric."""
    rows = (line.partition(": ") for line in METRICS.splitlines())
    return table(("metric", "meaning"), [(code(f"chunkvisor_{head}"), meaning) for head, _, meaning in rows])
