"""What a run's workers computed: tokens a second and padding."""

import json
from dataclasses import fields
from pathlib import Path

from chunkvisor.events.event import WorkerEnded
from chunkvisor.events.state import DeviceTimes


def computed(workdir: Path) -> str:
    """Of the last run in the workdir, while its workers computed: as its report has it."""
    events = [
        json.loads(line)
        for line in (workdir / ".chunkvisor" / "events.jsonl").read_text().splitlines()
    ]
    times = DeviceTimes()
    for each in events:
        if each["event"] == "worker_ended" and each["run"] == events[-1]["run"]:
            times.add_worker(
                WorkerEnded(**{field.name: each[field.name] for field in fields(WorkerEnded)})
            )
    if not times.tokens or not times.busy_s or not times.padded_tokens:
        return "tokens are not known"
    padding = 100 * (1 - times.tokens / times.padded_tokens)
    return f"{times.tokens / times.busy_s:,.0f} tokens/s and {padding:.1f} % of padding"
