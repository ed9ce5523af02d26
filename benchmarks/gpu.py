"""The rows that need a GPU: a 1.5B decoder with random weights against one plain `encode` at its best batch size.

python benchmarks/gpu.py [--commits commits.jsonl.gz] [--rows 4000] [--device cuda] [--tiny]

It never downloads a model: one of Qwen2's shape is made on the spot. `--tiny --device cpu` tries the script itself.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from corpus import ensure_model, read_texts
from measured import took

HERE = Path(__file__).parent
BATCH_SIZES = (32, 64, 128, 256)
QWEN2_1_5B = {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "intermediate_size": 8960}
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


@dataclass(frozen=True)
class Measured:
    """One text corpus, both ways."""

    ours_s: float
    theirs_s: dict[int, float]
    """Wall time of the whole process, by batch size."""
    idle_share: float
    """Of the time from the first worker's go to the last one's end: between one worker and the next."""
    opening_share: float
    """Of the same: workers make their context and copy the weights."""
    tokens_per_s: float
    """While batches were computed."""
    difference: float


def make_model(folder: Path, shape: dict[str, int]) -> int:
    """A sentence-transformers folder with random bf16 weights; returns how many parameters compute.

    Those of the embedding table do not: a row of it is looked up. The tokenizer is
    MiniLM's: which words there are changes nothing about the work for a token.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import AutoTokenizer, Qwen2Config, Qwen2Model

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(str(ensure_model()))
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=2048, **shape)
    base = Qwen2Model(config).to(torch.bfloat16)
    base.save_pretrained(folder / "base")
    tokenizer.model_max_length = 2048
    tokenizer.save_pretrained(folder / "base")
    transformer = Transformer(str(folder / "base"), max_seq_length=2048, model_kwargs={"dtype": "bfloat16"})
    pooling = Pooling(shape["hidden_size"], pooling_mode="lasttoken")
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(str(folder / "model"))
    parameters: int = sum(parameter.numel() for parameter in base.parameters())
    embeddings: int = base.get_input_embeddings().weight.numel()
    return parameters - embeddings


def long_texts(texts: list[str], words: int, rows: int) -> list[str]:
    """Texts of about 512 tokens each, cut from all of them."""
    stream = " ".join(texts).split()
    return [" ".join(stream[(row * words) % len(stream) :][:words]) + f" {row}" for row in range(rows)]


def measure(folder: Path, texts: list[str], device: str, chunk: int, repeat: int) -> Measured:
    """Runs both ways in turn; the medians, and the best batch size of the other side."""
    (folder / "texts.json").write_text(json.dumps(texts))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config: dict[str, Any] = {
        "workdir": "work",
        "model": {"name": str(folder / "model")},
        "device": device,
        "chunk": {"size": chunk},
        "outputs": {"out": {"source": "texts.jsonl", "column": "text"}},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    run = [
        sys.executable,
        "-c",
        "from chunkvisor.cli import main; main()",
        "run",
        "config.yaml",
        "--yes",
        "--from-scratch",
    ]
    ours: list[float] = []
    theirs: dict[int, list[float]] = {size: [] for size in BATCH_SIZES}
    for _ in range(repeat):
        ours.append(call(run, folder))
        for size in BATCH_SIZES:
            plain = [sys.executable, str(HERE / "plain.py"), "model", "texts.json", "plain.npy"]
            theirs[size].append(call([*plain, "--device", device, "--batch-size", str(size)], folder))
    lines = [json.loads(line) for line in (folder / "work/.chunkvisor/events.jsonl").read_text().splitlines() if line]
    events = [line for line in lines if line["run"] == lines[-1]["run"]]
    ended = [event for event in events if event["event"] == "worker_ended"]
    total_s = sum(event["busy_s"] + event["idle_s"] for event in ended)
    between_s = sum(event["idle_s"] - event.get("opening_s", 0.0) for event in ended)
    phases = [event["phase_s"] for event in events if event["event"] == "chunk_committed"]
    opening_s = sum(each.get(phase, 0.0) for each in phases for phase in ("cuda_init", "weights_copy"))
    forward_s = sum(each["forward"] for each in phases)
    ours_vectors, plain_vectors = np.load(folder / "work/out.npy"), np.load(folder / "plain.npy")
    scale = np.abs(plain_vectors).max()
    return Measured(
        float(np.median(ours)),
        {size: float(np.median(each)) for size, each in theirs.items()},
        between_s / total_s,
        opening_s / total_s,
        sum(event["tokens"] for event in ended) / forward_s,
        float(np.abs(ours_vectors - plain_vectors).max() / scale),
    )


def call(command: list[str], folder: Path) -> float:
    """Seconds of one command; it has to succeed."""
    return took(command, folder).seconds


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


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--commits", type=Path, help="JSON lines (.gz) with subject and body; else docstrings")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--chunk", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of two small layers, to try the script")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chunkvisor-gpu-") as name:
        folder = Path(name)
        parameters = make_model(folder, TINY if options.tiny else QWEN2_1_5B)
        peak = matrix_peak(options.device, "bfloat16")
        commits = read_texts(options.commits, options.rows, distinct=True)
        corpora = {"commit messages": commits, "512-token texts": long_texts(commits, 330, options.rows)}
        print(f"{parameters / 1e9:.2f}B parameters, {peak / 1e12:.0f} TFLOP/s of bf16 matrix products measured\n")
        print(
            "| texts | chunkvisor | plain, by batch size | ratio to its best | GPU waits between workers "
            "| contexts and weights | of the peak, in batches | difference |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for title, texts in corpora.items():
            found = measure(folder, texts, options.device, options.chunk, options.repeat)
            plain = ", ".join(f"{size}: {seconds:.1f} s" for size, seconds in found.theirs_s.items())
            # Two FLOP for each parameter and token (a multiplication and an addition).
            share = 2 * parameters * found.tokens_per_s / peak
            print(
                f"| {len(texts):,} {title} | {found.ours_s:.1f} s | {plain} "
                f"| {found.ours_s / min(found.theirs_s.values()):.2f} | {100 * found.idle_share:.1f} % "
                f"| {100 * found.opening_share:.1f} % | {100 * share:.0f} % | {found.difference:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
