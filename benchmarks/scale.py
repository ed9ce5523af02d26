"""Measures how chunkvisor grows: rows, files and chunks against time, memory and inodes, with the goals beside.

    python benchmarks/scale.py [--folder FOLDER] [NAME[=SIZE] …]

A name alone runs at its full size; `lines=1000000` runs a smaller one. The folder needs room for three times the
largest final file.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from bigdata import commit_chunks, write_lines, write_parquet_files, write_short_lines
from measured import Measured, measure, succeed

HERE = Path(__file__).parent
_INGEST = "chunkvisor.ingest.stage"
_WINDOW = 2000
_WARM_UP = 300


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    bench: str
    figure: str
    goal: str = ""


class Scale:
    """A scratch folder and what is measured in it; every bench begins with an empty one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workdir = folder / "work"

    def lines(self, rows: int) -> Iterator[Row]:
        """Ingest and plan of one text file."""
        source = self.folder / "lines.txt"
        write_lines(source, rows)
        self.config(source, chunk=1000)
        what = f"{rows:,} lines, {source.stat().st_size / 1e9:.2f} GB"
        found = succeed(["plan", "config.yaml", "--json"], self.folder)
        yield Row(f"{what}: ingest and plan", f"{found.seconds:.0f} s", "≤ 180 s")
        yield from _memory(what, found)
        first_s, found = self.until("attempt_started")
        yield Row(f"{what}: `run` until its first worker starts", f"{first_s:.0f} s")
        yield from _memory(f"{what}, `run`", found)

    def short(self, rows: int) -> Iterator[Row]:
        """A whole run of very many rows in large chunks."""
        source = self.folder / "short.txt"
        write_short_lines(source, rows)
        self.config(source, chunk=1_000_000, dimension=8, batch=10_000)
        found = succeed(["run", "config.yaml"], self.folder)
        yield Row(f"{rows:,} short rows, chunks of 1,000,000: whole run", f"{found.seconds:.0f} s")
        yield from _memory("the same", found)
        yield self.checked(rows, 8)

    def parquet(self, files: int) -> Iterator[Row]:
        """A glob of very many parquet files."""
        write_parquet_files(self.folder / "parts", files, 1000)
        self.config(self.folder / "parts" / "*.parquet", chunk=100_000, batch=10_000)
        found = succeed(["run", "config.yaml"], self.folder)
        yield Row(f"{files:,} parquet files of 1,000 rows: whole run", f"{found.seconds:.0f} s")
        yield from _memory("the same", found)
        yield self.checked(1000 * files, 8)
        found = succeed(["run", "config.yaml"], self.folder)
        yield Row("the same, run again", f"{found.seconds:.1f} s")

    def chunks(self, count: int) -> Iterator[Row]:
        """Cost of a chunk at the start and at the end of a long run, what it is to resume one and to look at it.

        The chunks between are committed by a script, as a resume would find them.
        """
        source = self.folder / "chunks.txt"
        write_short_lines(source, 10 * count)
        self.config(source, chunk=10)
        part = min(_WINDOW, count // 3)
        first, found = self.windows(part + _WARM_UP)
        begin = first[_WARM_UP : _WARM_UP + part]
        peak_bytes = found.peak_bytes
        commit_chunks(self.workdir, count - part - _WARM_UP)
        done = sum(1 for path in self.workdir.glob("outputs/out/**/*") if path.is_file())
        yield Row(f"{count:,} chunks: inodes of a committed chunk", f"{done / count:.2f}")
        journal_bytes = (self.workdir / "events.jsonl").stat().st_size
        yield Row(f"{count:,} chunks: journal, a chunk", f"{journal_bytes / count:,.0f} bytes")
        yield from self.looks(count)
        first_s, found = self.until("attempt_started")
        yield Row(f"{count:,} committed chunks: resume until the first worker starts", f"{first_s:.1f} s", "≤ 10 s")
        peak_bytes = max(peak_bytes, found.peak_bytes)
        last, found = self.windows(None)
        end = last[-part:]
        peak_bytes = max(peak_bytes, found.peak_bytes)
        ratio = _pace(end) / _pace(begin)
        words = f"{1000 * _pace(begin):.1f} ms, {1000 * _pace(end):.1f} ms, {ratio:.2f}"
        yield Row(f"{count:,} chunks: a chunk at the start, at the end, ratio", words, "≤ 1.1")
        yield Row("the same: parent's processor time, a chunk", f"{1000 * found.cpu_s / max(1, len(last)):.1f} ms")
        yield Row("the same: parent's peak", _megabytes(peak_bytes), "≤ 150 MB")
        yield self.checked(10 * count, 8)

    def whole(self, count: int) -> Iterator[Row]:
        """As `chunks`, with every chunk computed by one run: a quarter of an hour for 50,000."""
        source = self.folder / "chunks.txt"
        write_short_lines(source, 10 * count)
        self.config(source, chunk=10)
        times, found = self.windows(None)
        part = min(_WINDOW, count // 3)
        begin, end = times[_WARM_UP : _WARM_UP + part], times[-part:]
        words = f"{1000 * _pace(begin):.1f} ms, {1000 * _pace(end):.1f} ms, {_pace(end) / _pace(begin):.2f}"
        yield Row(f"{count:,} chunks in one run: a chunk at the start, at the end, ratio", words, "≤ 1.1")
        yield Row("the same: parent's processor time, a chunk", f"{1000 * found.cpu_s / count:.1f} ms")
        yield Row("the same: parent's peak", _megabytes(found.peak_bytes), "≤ 150 MB")

    def assembly(self, gigabytes: int) -> Iterator[Row]:
        """Joining chunks into one final file, one row in twenty a repeat, against `cp` of that file."""
        dimension, chunk = 1024, 1000
        distinct = gigabytes * 10**9 // (4 * dimension * chunk) * chunk
        source = self.folder / "rows.txt"
        with open(source, "w", encoding="utf-8") as file:
            for number in range(distinct):
                file.write(f"row {number}\nrow {number // 2}\n" if number % 20 == 19 else f"row {number}\n")
        rows = distinct + distinct // 20
        self.config(source, chunk=chunk, dimension=dimension)
        self.windows(1)
        commit_chunks(self.workdir, distinct // chunk)
        os.sync()
        found = succeed(["run", "config.yaml"], self.folder)
        final = self.workdir / "out.npy"
        size_gb, ours_s = final.stat().st_size / 1e9, self.between("assembling", "output_complete")
        theirs_s = _seconds(["sh", "-c", f"cp {final} copy.npy && sync copy.npy"], self.folder)
        (self.folder / "copy.npy").unlink()
        what = f"assembling {size_gb:.1f} GB, {rows * dimension:,} numbers"
        yield Row(what, f"{ours_s:.0f} s, {size_gb * 1000 / ours_s:.0f} MB/s")
        yield Row("the same: of the speed of `cp` and `sync`", f"{theirs_s / ours_s:.2f} ({theirs_s:.0f} s)", "≥ 0.6")
        yield Row("the same: parent's peak", _megabytes(found.peak_bytes), "≤ 300 MB")
        found = succeed(["verify", "work"], self.folder)
        yield Row("the same: `verify`", f"{found.seconds:.0f} s, {_megabytes(found.peak_bytes)}")
        yield self.checked(rows, dimension)

    def looks(self, count: int) -> Iterator[Row]:
        """What it takes to look at a workdir."""
        for name, arguments, goal in (
            ("`status`", ["status", "work"], "≤ 1 s"),
            ("`status --json`", ["status", "work", "--json"], "≤ 1 s"),
            ("`report`", ["report", "work", "-o", "report.html"], ""),
        ):
            found = [succeed(arguments, self.folder) for _ in range(3)]
            seconds = statistics.median(each.seconds for each in found)
            peak_bytes = max(each.peak_bytes for each in found)
            yield Row(f"{count:,} chunks: {name}", f"{seconds:.2f} s, {_megabytes(peak_bytes)}", goal)

    def config(self, source: Path, *, chunk: int, dimension: int = 8, batch: int = 1000) -> None:
        """A config of the trivial encoder for one output `out`."""
        config: dict[str, Any] = {
            "workdir": "work",
            "device": "cpu",
            "model": {"name": "trivial", "encoder": "trivial:make", "kwargs": {"dimension": dimension}},
            "encode": {"batch_size": batch},
            "chunk": {"size": chunk},
            "workers": {"start": "warm"},
            "env": {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))},
            "outputs": {"out": {"source": str(source), "column": "text"}},
        }
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def windows(self, stop: int | None) -> tuple[list[float], Measured]:
        """Run, until so many chunks are committed or to the end; returns the times of the commits."""
        seen = self.journal_bytes()
        count = 0

        def on_look(process: subprocess.Popen[bytes], _: Measured) -> None:
            nonlocal seen, count
            lines, seen = self.since(seen)
            count += sum(b'"chunk_committed"' in line for line in lines)
            if stop is not None and count >= stop:
                process.send_signal(signal.SIGINT)

        before = self.journal_bytes()
        found = measure(["run", "config.yaml"], self.folder, on_look=on_look)
        lines, _ = self.since(before)
        return [json.loads(line)["t"] for line in lines if b'"chunk_committed"' in line], found

    def until(self, event: str) -> tuple[float, Measured]:
        """Run until an event, and stop; returns the seconds until then."""
        seen, started = self.journal_bytes(), time.time()
        found_at: list[float] = []

        def on_look(process: subprocess.Popen[bytes], _: Measured) -> None:
            nonlocal seen
            lines, seen = self.since(seen)
            found_at.extend(json.loads(line)["t"] for line in lines if f'"event": "{event}"'.encode() in line)
            if found_at:
                process.send_signal(signal.SIGINT)

        found = measure(["run", "config.yaml"], self.folder, on_look=on_look)
        return found_at[0] - started, found

    def journal_bytes(self) -> int:
        """Its size."""
        path = self.workdir / "events.jsonl"
        return path.stat().st_size if path.exists() else 0

    def since(self, offset: int) -> tuple[list[bytes], int]:
        """The whole lines of the journal from there on, and where they end."""
        path = self.workdir / "events.jsonl"
        if not path.exists():
            return [], offset
        with open(path, "rb") as file:
            file.seek(offset)
            lines = [line for line in file if line.endswith(b"\n")]
        return lines, offset + sum(map(len, lines))

    def between(self, first: str, last: str) -> float:
        """Seconds from one event of the journal to another, of the newest of each."""
        lines, _ = self.since(0)
        times = {json.loads(line)["event"]: json.loads(line)["t"] for line in lines[-1000:] if line.strip()}
        return float(times[last] - times[first])

    def checked(self, rows: int, dimension: int) -> Row:
        """The final file opened by numpy, memory-mapped, and a look at its ends."""
        final = np.load(self.workdir / "out.npy", mmap_mode="r", allow_pickle=False)
        assert final.shape == (rows, dimension), final.shape
        assert np.isfinite(final[[0, rows // 2, -1]]).all()
        return Row("the same: opened by numpy, memory-mapped", f"{rows:,} x {dimension}")


def _memory(what: str, found: Measured) -> Iterator[Row]:
    if _INGEST in found.children:
        yield Row(f"{what}: peak of the ingest child", _megabytes(found.children[_INGEST]), "≤ 1,500 MB")
    yield Row(f"{what}: peak of the parent", _megabytes(found.peak_bytes), "≤ 150 MB")


def _pace(times: list[float]) -> float:
    return (times[-1] - times[0]) / (len(times) - 1)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"


def _seconds(command: list[str], folder: Path) -> float:
    start_s = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True)
    return time.perf_counter() - start_s


def main() -> None:
    """Run the benches that are named, or those of the goals, and print a table in Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME[=SIZE]")
    parser.add_argument("--folder", type=Path, help="scratch space is made in here; else where TMPDIR says")
    options = parser.parse_args()
    known: dict[str, tuple[int, Callable[[Scale, int], Iterator[Row]]]] = {
        "lines": (14_700_000, Scale.lines),
        "chunks": (50_000, Scale.chunks),
        "assembly": (20, Scale.assembly),
        "short": (50_000_000, Scale.short),
        "parquet": (5_000, Scale.parquet),
        "whole": (50_000, Scale.whole),
    }
    wanted = dict(name.partition("=")[::2] for name in options.names) or dict.fromkeys(list(known)[:3], "")
    if unknown := wanted.keys() - known.keys():
        raise SystemExit(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    cores = len(os.sched_getaffinity(0))
    print(f"{time.strftime('%Y-%m-%d')}, {cores} cores, Python {platform.python_version()}", flush=True)
    print("\n| bench | command | figure | goal |\n| --- | --- | --- | --- |", flush=True)
    for name, size in wanted.items():
        default, bench = known[name]
        command = f"`scale.py {name}{'=' * bool(size)}{size}`"
        folder = Path(tempfile.mkdtemp(prefix="chunkvisor-scale-", dir=options.folder))
        start_s = time.perf_counter()
        try:
            for row in bench(Scale(folder), int(size or default)):
                print(f"| {row.bench} | {command} | {row.figure} | {row.goal} |", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        sys.stderr.write(f"{name}: {time.perf_counter() - start_s:.0f} s in all\n")


if __name__ == "__main__":
    main()
