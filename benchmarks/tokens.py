"""What a run's workers computed: tokens a second, padding, and the share of the products that the machine can do."""

import json
import time
from math import prod
from pathlib import Path


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


def layer_parameters(model: Path) -> int:
    """Of the matrices that every token is multiplied with: those in model.safetensors, without the embeddings."""
    with open(model / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shapes = {name: each["shape"] for name, each in header.items() if name != "__metadata__"}
    kept = (name for name in shapes if "embeddings" not in name and "pooler" not in name)
    return sum(prod(shapes[name]) for name in kept if len(shapes[name]) == 2)


def computed(workdir: Path, model: Path, peak: float) -> str:
    """Of the last run in the workdir, while its workers computed.

    Two FLOP for each parameter and token, padding among them; attention's own products are not counted.
    """
    events = [json.loads(line) for line in (workdir / "events.jsonl").read_text().splitlines()]
    ended = [each for each in events if each["event"] == "worker_ended" and each["run"] == events[-1]["run"]]
    tokens, padded = (sum(each[key] for each in ended) for key in ("tokens", "padded_tokens"))
    busy_s = sum(each["busy_s"] for each in ended)
    share = 2 * layer_parameters(model) * padded / busy_s / peak
    return (
        f"{tokens / busy_s:,.0f} tokens/s beside {100 * (1 - tokens / padded):.1f} % of padding, "
        f"{100 * share:.0f} % of {peak / 1e9:.0f} GFLOP/s"
    )
