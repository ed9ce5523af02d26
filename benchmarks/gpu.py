"""Figures for a lent GPU, the most wanted first.

A run against plain `encode` at its best batch size.

    python benchmarks/gpu.py --out rows.jsonl [--until-s 540] [--commits commits.jsonl.gz] [--small] [CASE …]

It downloads nothing: MiniLM's weights come as a package, the other models have the shape of a known
one and random weights. Each row is written as soon as it is measured. A case that would not end
before `--until-s` is left out, and a line says how long it needs. `--small` tries the script
itself, on a CPU or on the null GPU, where times mean nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from corpus import ensure_model, read_texts
from measured import FailedError, Measured, took

HERE = Path(__file__).resolve().parent
# On a lent machine the checkout is not installed.
PYTHONPATH = os.pathsep.join(
    [str(HERE.parent / "supervisor"), str(HERE.parent / "worker"), os.environ.get("PYTHONPATH", "")]
)
SAMPLE = 512
"""Texts whose vectors are compared, and by which plain `encode` finds its best batch size."""
ANY_LENGTH = "any length"
MEMORY_CHUNKS, MEMORY_CHUNK = 200, 256
PLAIN_S = 30
"""Seconds for which the rate of plain `encode` is measured, at most."""
SHORT_START_S = 60
"""What a case takes in addition to its run and to plain `encode`: a guess before anything is
measured."""


@dataclass(frozen=True)
class Case:
    """One model, one kind of text, one way to run."""

    name: str
    model: str
    run_s: float = 40
    """Seconds that the run should take at the rate of plain `encode`."""
    dtype: str = "bfloat16"
    attention: str = "sdpa"
    texts: str = "short"
    start: str = "auto"
    chunk: int | str = "auto"

    @property
    def needs_s(self) -> float:
        """Estimate the seconds of both sides."""
        return SHORT_START_S + 1.1 * self.run_s + min(self.run_s, PLAIN_S)


CASES = (
    Case("decoder-night", "decoder", run_s=300),
    Case("minilm-float16", "minilm", dtype="float16"),
    Case("decoder-512", "decoder", texts="512 tokens"),
    Case("modernbert-sdpa", "modernbert", run_s=20),
    Case("modernbert-flash", "modernbert", run_s=20, attention="flash_attention_2"),
    Case("memory-over-time", "minilm", run_s=100, start="warm", texts=ANY_LENGTH),
    Case("decoder-warm", "decoder", start="warm", chunk=1000),
    Case("decoder-fresh", "decoder", start="fresh", chunk=1000),
    Case("decoder-chunk-250", "decoder", chunk=250),
    Case("decoder-flash", "decoder", attention="flash_attention_2"),
    Case("minilm-float32", "minilm", run_s=20, dtype="float32"),
    Case("minilm-bfloat16", "minilm", run_s=20),
    Case("bert-float16", "bert", run_s=20, dtype="float16"),
    Case("minilm-512", "minilm", run_s=20, dtype="float16", texts="512 tokens"),
)


@dataclass
class Row:
    """What a case has shown. Rates are texts a second without the start of the process."""

    name: str
    case: dict[str, Any]
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    ours_s: float = 0.0
    plain_s: float = 0.0
    """Of a whole process at its best batch size: its start, and all rows at its measured rate."""
    plain_start_s: float = 0.0
    plain_rates: dict[str, float] = field(default_factory=dict)
    ours_rate: float = 0.0
    whole_ratio: float = 0.0
    rate_ratio: float = 0.0
    """Plain's rate as a share of ours: below 1 the run is faster."""
    idle_by_smi: float | None = None
    """Share of nvidia-smi's samples without a kernel, from the first go to the last worker's end."""
    idle_by_clocks: float = 0.0
    context_s: float = 0.0
    copy_s: float = 0.0
    compute_s: float = 0.0
    first_batch_s: float = 0.0
    """From the start of the command to the first worker's go."""
    padding: float = 0.0
    share_of_peak: float = 0.0
    least_cosine: float = 0.0

    def words(self) -> str:
        """Say the row in a line."""
        return (
            f"{self.rows:,} texts in {self.ours_s:.1f} s, plain {self.plain_s:.1f} s, "
            f"{self.whole_ratio:.2f} of it; {self.ours_rate:,.0f} texts/s, {self.rate_ratio:.2f} of "
            f"plain; idle {100 * self.idle_by_clocks:.1f} % by clocks; "
            f"{100 * self.share_of_peak:.0f} % of the peak; least cosine {self.least_cosine:.5f}"
        )


@dataclass
class MemoryRow:
    """Peaks of GPU memory by chunk, [reserved, allocated] bytes of torch's allocator."""

    name: str
    case: dict[str, Any]
    fresh: list[list[int]] = field(default_factory=list)
    """Of a run, with a process for each chunk."""
    long: list[list[int]] = field(default_factory=list)
    """Of one process that encodes the same chunks one after the other."""

    def words(self) -> str:
        """Say how much each side held at its most."""
        most = [
            max(held) >> 20 for side in (self.fresh, self.long) for held in zip(*side, strict=True)
        ]
        return (
            f"{len(self.long)} chunks; at most {most[0]:,} MiB reserved, {most[1]:,} allocated in "
            f"fresh processes, {most[2]:,} and {most[3]:,} in one"
        )


@dataclass(frozen=True)
class Shape:
    """A model that is made on the spot: a class of transformers and what its config says."""

    config: str
    pooling: str
    large: dict[str, Any]
    small: dict[str, Any]


_TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
SHAPES = {
    # Qwen2-1.5B, BERT-base and ModernBERT-base, as their config.json on the hub has them.
    "decoder": Shape(
        "Qwen2Config",
        "lasttoken",
        {
            "hidden_size": 1536,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "intermediate_size": 8960,
        },
        _TINY,
    ),
    "bert": Shape("BertConfig", "mean", {}, _TINY),
    "modernbert": Shape("ModernBertConfig", "mean", {}, _TINY),
}


class Bench:
    """The folder that everything is made in, and what all cases share."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.device: str = options.device
        self.small: bool = options.small
        self.peaks: dict[str, float] = {}
        self.commits = read_texts(options.commits, 20_000, distinct=True)
        self.parameters: dict[str, int] = {}

    def model(self, name: str) -> Path:
        """Make the model's folder, once; random weights in bfloat16, MiniLM's tokenizer."""
        if name == "minilm":
            return ensure_model()
        folder = self.folder / name
        if not folder.exists():
            make_model(folder, SHAPES[name], small=self.small)
        return folder

    def texts(self, kind: str, count: int) -> list[str]:
        """Return distinct texts.

        Commit messages with a number, or about 512 tokens, or up to 512, cut out of all of them.
        """
        if kind == "short":
            return [f"{self.commits[row % len(self.commits)]} {row}" for row in range(count)]
        stream = " ".join(self.commits).split()
        starts = ((row * 330) % max(1, len(stream) - 330) for row in range(count))
        lengths = np.full(count, 330)
        if kind == ANY_LENGTH:
            numbers = np.random.default_rng(1)
            longest = numbers.integers(10, 331, size=count // MEMORY_CHUNK + 1)  # in each chunk
            lengths = numbers.integers(1, longest.repeat(MEMORY_CHUNK)[:count], endpoint=True)
        return [
            " ".join(stream[start : start + length]) + f" {row}"
            for row, (start, length) in enumerate(zip(starts, lengths, strict=True))
        ]

    def measure(self, case: Case) -> Row:
        """Run both sides. Raises FailedError if one of them cannot do it here."""
        seconds = 1.0 if self.small else case.run_s
        model = self.model(case.model)
        plain = self.plain(
            case,
            model,
            self.texts(case.texts, 2000 if self.small else 20_000),
            min(seconds, PLAIN_S),
        )
        best = max(plain["rates"].values())
        rows = max(SAMPLE, min(int(best * seconds), 2000 if self.small else 400_000))
        row = Row(case.name, asdict(case), plain["device"], plain["versions"], rows)
        row.plain_rates, row.plain_start_s = plain["rates"], plain["start_s"]
        row.plain_s = plain["start_s"] + rows / plain["rate"]
        self.run(case, model, self.texts(case.texts, rows), row)
        row.whole_ratio, row.rate_ratio = row.ours_s / row.plain_s, plain["rate"] / row.ours_rate
        ours, theirs = (
            np.load(self.folder / "work/out.npy", mmap_mode="r"),
            np.load(self.folder / "plain.npy"),
        )
        a, b = (each[: len(theirs)].astype(np.float64) for each in (ours, theirs))
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        row.least_cosine = float(((a * b).sum(axis=1) / norms).min())
        return row

    def plain(self, case: Case, model: Path, texts: list[str], seconds: float) -> dict[str, Any]:
        """Measure plain `encode` in one process.

        Its start, its rate by batch size, and its rate over many texts.
        """
        self.call_plain(case, model, texts, "--seconds", str(seconds), "--sample", str(SAMPLE))
        found: dict[str, Any] = json.loads((self.folder / "plain.json").read_text())
        return found

    def call_plain(self, case: Case, model: Path, texts: list[str], *options: str) -> None:
        """Run gpuplain.py with the model and the texts."""
        (self.folder / "texts.json").write_text(json.dumps(texts))
        asked = {"dtype": case.dtype, "attn_implementation": case.attention}
        command = [sys.executable, str(HERE / "gpuplain.py"), str(model), "texts.json"]
        command += ["--device", self.device, "--kwargs", json.dumps(asked), *options]
        took(command, self.folder)

    def run(self, case: Case, model: Path, texts: list[str], row: Row) -> None:
        """Run chunkvisor from the start, and read its events."""
        kwargs = {"attn_implementation": case.attention}
        settings = {"name": str(model), "dtype": case.dtype, "kwargs": kwargs}
        began = time.time()
        with sampled() as samples:
            row.ours_s = self.call(case, texts, settings).seconds
        events = self.events_since(began)
        first, last = (
            next(event["t"] for event in order if event["event"] == name)
            for order, name in ((events, "go"), (events[::-1], "worker_ended"))
        )
        row.first_batch_s, row.ours_rate = first - began, len(texts) / (last - first)
        ended = [event for event in events if event["event"] == "worker_ended"]
        between_s = sum(event["idle_s"] - event.get("opening_s", 0.0) for event in ended)
        row.idle_by_clocks = max(0.0, between_s) / (last - first)
        phases = [event["phase_s"] for event in events if event["event"] == "chunk_committed"]
        row.context_s, row.copy_s, row.compute_s = (
            sum(each.get(name, 0.0) for each in phases)
            for name in ("cuda_init", "weights_copy", "forward")
        )
        tokens = sum(event["tokens"] for event in ended)
        row.padding = 1 - tokens / max(1, sum(event["padded_tokens"] for event in ended))
        # Two FLOP for each parameter and token (a multiplication and an addition); attention is not
        # counted.
        flops = 2 * self.computing(case.model, model) * tokens / max(row.compute_s, 1e-9)
        row.share_of_peak = flops / self.peak(case.dtype)
        seen = [busy for at, busy in samples if first <= at <= last]
        row.idle_by_smi = sum(not busy for busy in seen) / len(seen) if seen else None

    def call(self, case: Case, texts: list[str], model: dict[str, Any], **more: Any) -> Measured:
        """Write texts and config, and run chunkvisor from the start."""
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (self.folder / "texts.jsonl").write_text("".join(lines))
        config = {
            "workdir": "work",
            "model": model,
            "device": self.device,
            "chunk": {"size": case.chunk},
            "workers": {"start": case.start},
            "outputs": {"out": {"source": "texts.jsonl", "column": "text"}},
            **more,
        }
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))
        arguments = ["run", "config.yaml", "--yes", "--from-scratch"]
        command = [sys.executable, "-c", "from chunkvisor.cli import main; main()", *arguments]
        return took(command, self.folder, {"PYTHONPATH": PYTHONPATH})

    def events_since(self, began: float) -> list[dict[str, Any]]:
        """Read the journal from that moment on."""
        lines = (self.folder / "work/.chunkvisor/events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["t"] >= began]

    def memory(self, case: Case) -> MemoryRow:
        """Note the memory of a process for each chunk, then that of one process for all chunks."""
        chunks, size = (4, 16) if self.small else (MEMORY_CHUNKS, MEMORY_CHUNK)
        texts = self.texts(case.texts, chunks * size)
        model = self.model(case.model)
        batches = {"batch_size": 64, "batch_tokens": None}
        settings = {"name": str(model), "dtype": case.dtype}
        began = time.time()
        self.call(case, texts, settings, encode=batches, chunk={"size": size})
        ended = [each for each in self.events_since(began) if each["event"] == "worker_ended"]
        fresh = [
            [each["memory"].get(f"{kind}_bytes", 0) for kind in ("reserved", "allocated")]
            for each in ended
        ]
        self.call_plain(case, model, texts, "--memory", str(size))
        return MemoryRow(
            case.name, asdict(case), fresh, json.loads((self.folder / "memory.json").read_text())
        )

    def computing(self, name: str, model: Path) -> int:
        """Count the parameters that compute: a row of the embedding table is only looked up."""
        if name not in self.parameters:
            from transformers import AutoModel

            found = AutoModel.from_pretrained(
                str(model if (model / "config.json").exists() else model / "base")
            )
            self.parameters[name] = int(found.num_parameters(exclude_embeddings=True))
        return self.parameters[name]

    def peak(self, dtype: str) -> float:
        """Measure the device's FLOP/s in large matrix products, in a process that then gives the memory back."""
        if dtype not in self.peaks:
            command = [
                sys.executable,
                str(HERE / "gpuplain.py"),
                "--peak",
                dtype,
                "--device",
                self.device,
            ]
            took(command, self.folder)
            self.peaks[dtype] = float((self.folder / "peak.txt").read_text())
        return self.peaks[dtype]


def make_model(folder: Path, shape: Shape, *, small: bool) -> None:
    """Save a sentence-transformers folder with random bfloat16 weights and MiniLM's tokenizer."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(ensure_model()))
    tokenizer.model_max_length = 512
    said = dict(shape.small if small else shape.large)
    if shape.config == "Qwen2Config":
        said |= {"num_key_value_heads": 2, "max_position_embeddings": 2048}
    if shape.config == "ModernBertConfig":
        said |= {"pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": 2048}
    # A few rows more: the class of a decoder's tokenizer adds special tokens when it loads.
    rows = len(tokenizer) + 64
    config = getattr(transformers, shape.config)(vocab_size=rows, **said)
    transformers.AutoModel.from_config(config).to(torch.bfloat16).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    transformer = Transformer(
        str(folder / "base"), max_seq_length=512, model_kwargs={"dtype": "bfloat16"}
    )
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode=shape.pooling)
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(str(folder))


@contextmanager
def sampled() -> Iterator[list[tuple[float, bool]]]:
    """Ask nvidia-smi twice a second whether a kernel has run lately: (moment, busy) pairs.

    None without nvidia-smi.
    """
    samples: list[tuple[float, bool]] = []
    over = threading.Event()
    command = [
        "nvidia-smi",
        "--query-gpu=utilization.gpu",
        "--format=csv,noheader,nounits",
        "-i",
        "0",
    ]

    def look() -> None:
        while not over.wait(0.5):
            try:
                said = subprocess.run(
                    command, capture_output=True, text=True, check=True, timeout=5
                ).stdout.strip()
                samples.append((time.time(), int(said) > 0))
            except (OSError, ValueError, subprocess.SubprocessError):
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def compile_libraries() -> None:
    """Write the bytecode of what every process imports.

    On a fresh machine it would be compiled again and again.
    """
    from importlib.util import find_spec

    found = [
        spec.submodule_search_locations
        for name in ("torch", "transformers")
        if (spec := find_spec(name))
    ]
    folders = {str(Path(place).parent) for places in found if places for place in places}
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "-j", "0", *folders],
        check=False,
        capture_output=True,
    )


def main() -> None:
    """Measure until the time is over; print each row, and append it to the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--until-s", type=float, default=540)
    parser.add_argument(
        "--commits", type=Path, help="JSON lines (.gz) with subject and body; else docstrings"
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--small", action="store_true", help="models of two small layers, to try the script"
    )
    options = parser.parse_args()
    began = time.monotonic()
    say: Callable[..., None] = lambda *words: print(*words, flush=True)  # noqa: E731 - a name for one call
    unknown = set(options.cases) - {case.name for case in CASES}
    if unknown:
        raise SystemExit(
            f"unknown: {', '.join(sorted(unknown))}; there are "
            f"{', '.join(case.name for case in CASES)}"
        )
    if not options.small:
        compile_libraries()
    with tempfile.TemporaryDirectory(prefix="chunkvisor-gpu-") as name:
        bench = Bench(Path(name), options)
        for case in CASES:
            left_s = options.until_s - (time.monotonic() - began)
            if options.cases and case.name not in options.cases:
                continue
            if not options.small and case.needs_s > left_s:
                say(
                    f"{case.name}: not measured; it needs about {case.needs_s:.0f} s, "
                    f"{max(0, left_s):.0f} s are left"
                )
                continue
            try:
                row = bench.memory(case) if case.texts == ANY_LENGTH else bench.measure(case)
            except FailedError as error:
                say(f"{case.name}: failed: {str(error)[-1500:]}")
                continue
            with open(options.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
            say(f"{case.name}: {row.words()}")


if __name__ == "__main__":
    main()
