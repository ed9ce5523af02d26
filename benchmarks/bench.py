"""Measures chunkvisor against its goals.

Every figure is a ratio of medians from one run on one machine.

    python benchmarks/bench.py [--commits commits.jsonl.gz] [--repeat 3] [NAME …]

Both sides of a ratio are run in turn, so that a slow minute of the machine slows both.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from corpus import ensure_model, read_texts
from machine import machine_line
from measured import took
from tokens import computed

HERE = Path(__file__).parent
FAKE_SMI = """#!/bin/sh
case "$*" in
  *--query-gpu=index*) for i in 0 1 2 3 4 5 6 7; do
    echo "$i, GPU-0000000$i-aaaa, NVIDIA Simulated, 81920, 00000000:0$i:00.0"; done ;;
  *--query-gpu=memory.used*) echo 3 ;;
  *) ;;
esac
"""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    ours: str
    theirs: str
    ratio: float
    goal: str


class Bench:
    """A scratch folder and what is measured in it."""

    def __init__(self, folder: Path, commits: Path | None, repeat: int) -> None:
        self.folder = folder
        self.commits = commits
        self.repeat = repeat

    def commits_row(
        self, name: str, chunk: int, goal: str, *, distinct: bool = True, pool: int = 0
    ) -> Row:
        """Whole-process wall time of a run against a plain script on the same texts."""
        model = ensure_model()
        texts = read_texts(self.commits, 4000, distinct=distinct)
        (self.folder / "texts.json").write_text(json.dumps(texts))
        source = self.folder / "texts.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        config: dict[str, Any] = {
            "model": {"name": str(model)},
            "chunk": {"size": chunk},
            "outputs": {"out": {"source": str(source), "column": "text"}},
        }
        plain = [
            sys.executable,
            str(HERE / "plain.py"),
            str(model),
            "texts.json",
            "plain.npy",
            *(["--pool", str(pool)] if pool else []),
        ]
        ours, theirs = self.alternate(lambda: self.run(config), lambda: self.call(plain))
        difference = float(
            np.abs(np.load(self.folder / "work/out.npy") - np.load(self.folder / "plain.npy")).max()
        )
        told = computed(self.folder / "work")
        sys.stderr.write(
            f"{name}: {len(texts)} texts, {told}, largest difference {difference:.1e}\n"
        )
        return Row(name, f"{ours:.1f} s", f"{theirs:.1f} s", ours / theirs, goal)

    def warm_row(self) -> Row:
        """Wall time a chunk of a trivial encoder, workers forked from a template."""
        config = self.trivial(chunks=500, start="warm")
        wall = statistics.median(
            self.run(config) - self.run(self.trivial(chunks=1, start="warm"))
            for _ in range(self.repeat)
        )
        return Row(
            "trivial encoder, 500 chunks, warm, a chunk",
            f"{1000 * wall / 499:.1f} ms",
            "30 ms",
            wall / 499 / 0.03,
            "≤ 1",
        )

    def fresh_row(self) -> Row:
        """Wall time a chunk of a trivial encoder, a new interpreter each, against the bare interpreter with numpy."""
        bare = [sys.executable, "-c", "import numpy"]

        def theirs() -> float:
            return sum(self.call(bare) for _ in range(50))

        ours_s, theirs_s = self.alternate(
            lambda: self.run(self.trivial(chunks=50, start="fresh")), theirs
        )
        return Row(
            "trivial encoder, 50 chunks, fresh",
            f"{ours_s:.1f} s",
            f"{theirs_s:.1f} s",
            ours_s / theirs_s,
            "≤ 2",
        )

    def assembly_row(self) -> Row:
        """Joining 2 GB of chunks against cp of the same bytes, both to the disk (cp with sync of the file)."""
        ours, theirs = [], []
        for _ in range(self.repeat):
            shutil.rmtree(self.folder / "work", ignore_errors=True)
            seconds, final = _assemble_2gb(self.folder / "work")
            ours.append(seconds)
            theirs.append(self.call(["sh", "-c", f"cp {final} copy.npy && sync copy.npy"]))
            (self.folder / "copy.npy").unlink()
        mine, other = statistics.median(ours), statistics.median(theirs)
        return Row(
            "assembling 2 GB against cp and sync",
            f"{mine:.1f} s",
            f"{other:.1f} s",
            mine / other,
            "≤ 1.5",
        )

    def devices_row(self) -> Row:
        """Eight simulated GPUs, each chunk waits 200 ms: how many of the eight are busy."""
        tools = self.folder / "bin"
        tools.mkdir(exist_ok=True)
        (tools / "nvidia-smi").write_text(FAKE_SMI)
        (tools / "nvidia-smi").chmod(0o755)
        chunks = 1200
        config = self.trivial(chunks=chunks, start="auto", wait_s=0.2, device="cuda")
        path = {"PATH": f"{tools}:{os.environ['PATH']}"}
        self.run(config, path)
        events = [
            json.loads(line)
            for line in (self.folder / "work/.chunkvisor/events.jsonl").read_text().splitlines()
            if line
        ]
        first = next(event["t"] for event in events if event["event"] == "go")
        last = [event["t"] for event in events if event["event"] == "chunk_committed"][-1]
        ideal = chunks * 0.2 / 8
        return Row(
            "8 simulated devices, 200 ms a chunk",
            f"{last - first:.1f} s",
            f"{ideal:.1f} s",
            ideal / (last - first),
            "≥ 0.95",
        )

    def parent_row(self) -> Row:
        """CPU time of the parent against that of the whole run, on the real model."""
        model = ensure_model()
        texts = read_texts(self.commits, 4000, distinct=True)
        source = self.folder / "texts.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        config: dict[str, Any] = {
            "model": {"name": str(model)},
            "outputs": {"out": {"source": str(source), "column": "text"}},
        }
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.run(config, wrap=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        own = float((self.folder / "own_cpu").read_text())
        return Row(
            "parent's CPU time of the whole run's",
            f"{own:.2f} s",
            f"{whole:.1f} s",
            own / whole,
            "≤ 0.02",
        )

    def trivial(
        self, *, chunks: int, start: str, wait_s: float = 0.0, device: str = "cpu"
    ) -> dict[str, Any]:
        """A config for a trivial encoder with ten texts a chunk."""
        source = self.folder / f"trivial_{chunks}.txt"
        source.write_text("".join(f"text {number}\n" for number in range(10 * chunks)))
        return {
            "model": {"name": "trivial", "encoder": "trivial:make", "kwargs": {"wait_s": wait_s}},
            "device": device,
            "chunk": {"size": 10},
            "workers": {"start": start},
            "env": {
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [str(HERE), os.environ.get("PYTHONPATH")])
                )
            },
            "outputs": {"out": {"source": str(source), "column": "text"}},
        }

    def run(
        self, config: dict[str, Any], env: dict[str, str] | None = None, *, wrap: bool = False
    ) -> float:
        """Seconds of one `chunkvisor run` into an empty workdir."""
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        (self.folder / "config.yaml").write_text(
            yaml.safe_dump({"workdir": "work", "device": "cpu", **config})
        )
        program = "import sys; from chunkvisor.cli import main; main()"
        if wrap:
            program = (
                "import atexit, resource, pathlib; from chunkvisor.cli import main\n"
                "def own():\n    used = resource.getrusage(resource.RUSAGE_SELF)\n"
                "    pathlib.Path('own_cpu').write_text(str(used.ru_utime + used.ru_stime))\n"
                "atexit.register(own); main()"
            )
        return self.call([sys.executable, "-c", program, "run", "config.yaml"], env)

    def call(self, command: list[str], env: dict[str, str] | None = None) -> float:
        """Seconds of one command; it has to succeed."""
        return took(command, self.folder, env).seconds

    def alternate(
        self, ours: Callable[[], float], theirs: Callable[[], float]
    ) -> tuple[float, float]:
        """Medians of both, measured in turn."""
        pairs = [(ours(), theirs()) for _ in range(self.repeat)]
        return statistics.median(pair[0] for pair in pairs), statistics.median(
            pair[1] for pair in pairs
        )


def _assemble_2gb(workdir: Path) -> tuple[float, Path]:
    from chunkvisor.outputs.forms import Form
    from chunkvisor.outputs.join import JoinInputs, assemble
    from chunkvisor.outputs.publish import describe_file, publish
    from chunkvisor.store.artifact import inspect
    from chunkvisor.store.identity import Plan
    from chunkvisor.store.layout import Layout
    from chunkvisor.store.ledger import Ledger
    from chunkvisor_worker.contract.messages import Facts

    rows, dimension = 500_000, 1024

    class Table:
        folder = workdir

        def __init__(self) -> None:
            self.rows = rows

        def row_text(self, start: int, stop: int) -> np.ndarray:
            return np.arange(start, stop)

        def first_row_at(self, texts: np.ndarray) -> np.ndarray:
            return texts

    layout = Layout(workdir).output("out")
    layout.state.mkdir(parents=True)
    ledger = Ledger(layout, Plan(rows, 1000), "bench")
    ledger.load()
    block = np.random.default_rng(0).standard_normal((1000, dimension), dtype=np.float32)
    for chunk in range(ledger.plan.count):
        block[0, 0] = chunk + 1
        np.save(workdir / "vectors.npy", block)
        ledger.commit(
            chunk,
            workdir / "vectors.npy",
            inspect(workdir / "vectors.npy").digest,
            Facts(dimension),
        )
    os.sync()
    start = time.perf_counter()
    inputs = JoinInputs(ledger, Table())  # type: ignore[arg-type]  # stands in for one without duplicates
    final = assemble(inputs, Form(), lambda: None)
    known = {
        "rows": rows,
        "dimension": dimension,
        "fingerprint": "f",
        "quarantined": [],
        "quarantined_rows": 0,
        "zero_rows": 0,
    }
    publish(layout, known | describe_file(layout, Form(), final.digest))
    return time.perf_counter() - start, layout.final


def main() -> None:
    """Run the benchmarks that are named, or all, and print a table in Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument(
        "--commits", type=Path, help="JSON lines (.gz) with subject and body; else docstrings"
    )
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chunkvisor-bench-") as folder:
        bench = Bench(Path(folder), options.commits, options.repeat)
        known: dict[str, Callable[[], Row]] = {
            "chunk-1000": lambda: bench.commits_row(
                "4,000 texts, chunk 1000, against one encode", 1000, "≤ 0.85"
            ),
            "chunk-250": lambda: bench.commits_row(
                "4,000 texts, chunk 250, against one encode", 250, "≤ 0.95"
            ),
            "duplicates": lambda: bench.commits_row(
                "with the corpus's own duplicates", 1000, "report", distinct=False
            ),
            "pool": lambda: bench.commits_row(
                "against a pool of 2 CPU workers", 1000, "≤ 0.85", pool=2
            ),
            "warm": bench.warm_row,
            "fresh": bench.fresh_row,
            "assembly": bench.assembly_row,
            "devices": bench.devices_row,
            "parent": bench.parent_row,
        }
        unknown = set(options.names) - known.keys()
        if unknown:
            raise SystemExit(
                f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(known)}"
            )
        print(machine_line(), flush=True)
        print(
            "\n| bench | chunkvisor | against | ratio | goal |\n| --- | --- | --- | --- | --- |",
            flush=True,
        )
        for name, measure in known.items():
            if not options.names or name in options.names:
                row = measure()
                print(
                    f"| {row.name} | {row.ours} | {row.theirs} | {row.ratio:.2f} | {row.goal} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
