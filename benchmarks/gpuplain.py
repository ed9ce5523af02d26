"""The other side of benchmarks/gpu.py: one process of plain `encode`, its start and its rates.

Or the GPU memory of one process chunk by chunk, or the device's peak.

    python benchmarks/gpuplain.py MODEL TEXTS.json --kwargs JSON --seconds S [--device cuda:0]
        writes plain.json and plain.npy
    python benchmarks/gpuplain.py MODEL TEXTS.json --kwargs JSON --memory TEXTS_IN_A_CHUNK
        writes memory.json
    python benchmarks/gpuplain.py --peak bfloat16
        writes peak.txt
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

BATCH_SIZES = (32, 64, 128, 256, 512)


def rates(options: argparse.Namespace) -> dict[str, Any]:
    """Load the model, find the best batch size on a sample, and encode as many texts as take `--seconds`."""
    import sentence_transformers
    import torch
    import transformers

    texts: list[str] = json.loads(options.texts.read_text())
    kwargs = json.loads(options.kwargs)
    model = sentence_transformers.SentenceTransformer(
        str(options.model), device=options.device, model_kwargs=kwargs
    )
    model.encode(texts[:8], show_progress_bar=False)  # the context, and what libraries do once
    start_s = time.time() - psutil.Process(os.getpid()).create_time()

    def rate(part: list[str], size: int) -> float:
        begin = time.perf_counter()
        vectors = model.encode(part, batch_size=size, show_progress_bar=False)
        if size == 32:  # the smallest, which every device can do
            np.save("plain.npy", vectors)
        return len(part) / (time.perf_counter() - begin)

    found: dict[int, float] = {}
    for size in BATCH_SIZES:
        try:
            found[size] = rate(texts[: options.sample], size)
        except torch.OutOfMemoryError:
            break
    best = max(found, key=lambda size: found[size])
    many = texts[: max(options.sample, int(found[best] * options.seconds))]
    begin = time.perf_counter()
    model.encode(many, batch_size=best, show_progress_bar=False)
    libraries = (torch, transformers, sentence_transformers)
    return {
        "start_s": start_s,
        "rates": {str(size): each for size, each in found.items()},
        "rate": len(many) / (time.perf_counter() - begin),
        "best": best,
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU",
        "versions": {library.__name__: str(library.__version__) for library in libraries},
    }


def memory(options: argparse.Namespace) -> list[list[int]]:
    """Encode chunk after chunk; return the peaks of each, [reserved, allocated] bytes."""
    import sentence_transformers
    import torch

    texts: list[str] = json.loads(options.texts.read_text())
    model = sentence_transformers.SentenceTransformer(
        str(options.model), device=options.device, model_kwargs=json.loads(options.kwargs)
    )
    peaks = []
    for start in range(0, len(texts), options.memory):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        model.encode(texts[start : start + options.memory], batch_size=64, show_progress_bar=False)
        peaks.append([torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()])
    return peaks


def peak(device: str, dtype: str) -> float:
    """Return the FLOP/s of large matrix products, the best of ten."""
    import torch

    on_gpu = device.startswith("cuda")
    size = 8192 if on_gpu else 512
    a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    best = 0.0
    for _ in range(10):
        if on_gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        a @ b
        if on_gpu:
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - begin))
    return best


def main() -> None:
    """Leave the answer in the current folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("texts", type=Path, nargs="?")
    parser.add_argument("--kwargs", default="{}")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--sample", type=int, default=512)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--memory", type=int)
    parser.add_argument("--peak")
    options = parser.parse_args()
    if options.peak:
        Path("peak.txt").write_text(str(peak(options.device, options.peak)))
    elif options.memory:
        Path("memory.json").write_text(json.dumps(memory(options)))
    else:
        Path("plain.json").write_text(json.dumps(rates(options)))


if __name__ == "__main__":
    main()
