"""The table of docs/reference/metrics.md, from what a run writes for Prometheus."""

from pathlib import Path

from chunkvisor.events.progress import DeviceTimes, OutputProgress
from chunkvisor.events.run import Note
from chunkvisor.events.state import RunState
from chunkvisor.observe.metrics import Metrics
from md import code, table


def metrics() -> str:
    """Name, type, label and meaning of each metric. Needs prometheus_client; raises ImportError."""
    # With one of everything, so that each metric has a sample, which shows its label.
    state = RunState(started=True, attempts={"committed": 1}, device_times={"0": DeviceTimes()})
    state.outputs["titles"] = OutputProgress(distinct=1)
    exporter = Metrics(Path("none.prom"))
    exporter.event(Note(""), state)
    rows = []
    for metric in exporter.collect():
        name = metric.name + ("_total" if metric.type == "counter" else "")
        label = ", ".join(map(code, metric.samples[0].labels))
        rows.append((code(name), metric.type, label, metric.documentation))
    return table(("metric", "type", "label", "meaning"), rows)
