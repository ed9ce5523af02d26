"""What a run's workers computed: tokens a second, padding, and the share of the products that the machine can do."""

import json
import time
from dataclasses import fields
from pathlib import Path

from chunkvisor.events.attempt import WorkerEnded
from chunkvisor.events.progress import DeviceTimes


def matrix_peak(device: str, dtype: str) -> float:
    """FLOP/s of large matrix products with torch's own threads, the best of ten: what the device can do at most."""
    import torch

    size = 8192 if device.startswith("cuda") else 512 if dtype == "bfloat16" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    best = 0.0
    for _ in range(10):
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        start = time.perf_counter()
        a @ b
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def computed(workdir: Path) -> str:
    """Of the last run in the workdir, while its workers computed: as its report has it."""
    events = [json.loads(line) for line in (workdir / "events.jsonl").read_text().splitlines()]
    times = DeviceTimes()
    for each in events:
        if each["event"] == "worker_ended" and each["run"] == events[-1]["run"]:
            times.add(WorkerEnded(**{field.name: each[field.name] for field in fields(WorkerEnded)}))
    if not times.tokens_per_s or times.padding_share is None:
        return "tokens are not known"
    counted = f"{times.tokens_per_s:,.0f} tokens/s beside {100 * times.padding_share:.1f} % of padding"
    if times.peak_share is None:
        return counted
    return f"{counted}, {100 * times.peak_share:.0f} % of {times.peak_flop / times.busy_s / 1e9:.0f} GFLOP/s"
