"""What a worker's host does for each batch, next to plain `encode`, on a null GPU, whose kernels take no time.

    $(python tests/nullgpu/environment.py 2.13.0) benchmarks/hostwork.py [--texts 5000] [--commits commits.jsonl.gz]

For short texts with MiniLM in float16 it prints the CPU seconds of a thousand texts (all threads; tokenizing is told
apart), and how often a batch launches kernels, copies and waits for the device.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [
    str(ROOT / each) for each in ("tests", "tests/nullgpu", "supervisor", "worker", "benchmarks")
]
WAITS = ("cudaEventSynchronize", "cudaStreamSynchronize", "cudaDeviceSynchronize")


def plain(texts: list[str], model: Path, batch_size: int) -> dict[str, float]:
    """Encode by the library alone; CPU seconds after a first call."""
    from sentence_transformers import SentenceTransformer

    made = SentenceTransformer(str(model), device="cuda", model_kwargs={"dtype": "float16"})
    made.encode(texts[:64], show_progress_bar=False)
    begin = time.process_time()
    made.encode(texts, batch_size=batch_size, show_progress_bar=False)
    return {"cpu_s": time.process_time() - begin, "batches": -(-len(texts) // batch_size)}


def ours(texts: list[str], model: Path, tokens: int) -> dict[str, float]:
    """Encode as a worker does, in its order; CPU seconds after a first batch."""
    from chunkvisor.config.model import EncodeConfig, resolve_limits
    from chunkvisor_worker.contract.files import AttemptFiles
    from chunkvisor_worker.contract.messages import ModelSpec
    from chunkvisor_worker.liveness import BeatWriter
    from chunkvisor_worker.sentence_transformer import SentenceTransformerEncoder

    with tempfile.TemporaryDirectory() as folder:
        progress = BeatWriter(AttemptFiles(Path(folder)).beat)
        batches = 0

        def on_batch(_: Any) -> None:
            nonlocal batches
            batches += 1

        progress.on_batch = on_batch
        encoder = SentenceTransformerEncoder(ModelSpec("m", str(model), dtype="float16"), "cuda")
        encoder.load(progress)
        limits = resolve_limits(EncodeConfig(batch_tokens=tokens or "auto"), "cuda", plugin=False)
        encoder.tokenize(texts[:64], progress)
        encoder.start(progress)
        list(encoder.encode(limits, progress))
        batches, begin = 0, time.process_time()
        encoder.tokenize(texts, progress)
        tokenized_s = time.process_time() - begin
        list(encoder.encode(limits, progress))
        return {"cpu_s": time.process_time() - begin, "batches": batches, "tokenize_s": tokenized_s}


def child(options: argparse.Namespace) -> None:
    """Measure one side in this process, and print it."""
    from corpus import ensure_model, read_texts

    texts = read_texts(options.commits, options.texts, distinct=True)
    side, _, number = options.side.partition(":")
    found = (
        plain(texts, ensure_model(), int(number))
        if side == "plain"
        else ours(texts, ensure_model(), int(number))
    )
    print(json.dumps({**found, "texts": len(texts)}))


def main() -> None:
    """Measure each side in a process of its own: first the time, then its calls."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--commits", type=Path)
    parser.add_argument("--side", help="internal: measure this side in this process")
    options = parser.parse_args()
    if options.side:
        child(options)
        return
    from build import build

    built = build()
    sides = ["plain:32", "plain:128", "plain:512", "ours:0", "ours:65536"]
    for side in sides:
        found, calls = traced(built, side, options.texts, options.commits)
        _, before = traced(built, side, 64, options.commits)  # loading, and the first batch
        batches, each = found["batches"], 1000 / found["texts"]
        per_batch = {name: (count - before[name]) / (batches - 1) for name, count in calls.items()}
        launches, copies = (
            sum(per_batch[name] for name in per_batch if part in name)
            for part in ("aunch", "emcpy")
        )
        waits = sum(per_batch.get(name, 0) for name in WAITS)
        seconds, tokens_s = found["cpu_s"] * each, found.get("tokenize_s", 0.0) * each
        work = f"{launches:.0f} launches, {copies:.1f} copies, {waits:.1f} waits"
        told = f"{seconds:.3f} CPU s for 1,000 texts ({tokens_s:.3f} for their tokens)"
        print(f"{side:10} {told}, {batches} batches, each with {work}", flush=True)


def traced(
    built: Any, side: str, texts: int, commits: Path | None
) -> tuple[dict[str, Any], Counter[str]]:
    """Run one side twice, each time in a process of its own.

    For its figures, and with a trace, for its calls.
    """
    from nullgpu import GIB, NullGpu

    found: dict[str, Any] = {}
    calls: Counter[str] = Counter()
    for trace in (0, 1):
        with tempfile.TemporaryDirectory() as folder:
            gpu = NullGpu(Path(folder) / "gpu", built, [80 * GIB])
            # transformers asks whether a batch has no padding: most have some
            gpu.set(trace=trace, bool=0)
            command = [sys.executable, __file__, "--side", side, "--texts", str(texts)]
            command += ["--commits", str(commits)] if commits else []
            env = os.environ | gpu.environment()
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr[-3000:])
            if not trace:
                found = json.loads(done.stdout.splitlines()[-1])
            for lines in gpu.trace().values():
                calls.update(line.split()[0] for line in lines)
    return found, calls


if __name__ == "__main__":
    main()
