"""The table of docs/reference/metrics.md, from what a run writes for Prometheus."""

from pathlib import Path

from chunkvisor.events.state import RunState
from chunkvisor.show.metrics import COUNTER, Metrics
from md import code, table


def metrics() -> str:
    """Name with its label, and meaning, of each metric."""
    rows = []
    for name, kind, label, what, _ in Metrics(Path("none.prom")).figures(RunState()):
        full = f"chunkvisor_{name}{'_total' * (kind == COUNTER)}"
        rows.append((code(full + (f"{{{label}}}" if label else "")), what))
    return table(("metric", "meaning"), rows)
