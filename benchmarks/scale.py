"""Measures how chunkvisor grows.

Rows, files and chunks against time, memory and inodes, with the goals beside.

    python benchmarks/scale.py [--folder FOLDER] [NAME[=SIZE] …]

A name alone runs at its full size; `lines=1000000` runs a smaller one. The folder needs room for
three times the largest final file.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bigdata import commit_chunks, write_lines, write_parquet_files, write_short_lines
from machine import machine_line
from measured import Measured, succeed
from scratch import Commits, Scratch

_INGEST = "chunkvisor.sources.stage"
_WINDOW = 2000
_WARM_UP = 300
_KINDS = ("wall_ms", "cpu_ms")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    bench: str
    figure: str
    goal: str = ""


class Scale(Scratch):
    """The benches; each begins with an empty folder."""

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
        write_short_lines(source, rows, distinct=False)
        self.config(source, chunk=1_000_000, dimension=8, batch=10_000)
        found = succeed(["run", "config.yaml"], self.folder)
        yield Row(f"{rows:,} short rows, chunks of 1,000,000: whole run", f"{found.seconds:.0f} s")
        yield from _memory("the same", found)
        yield self.checked(rows, 8)

    def sql(self, rows: int) -> Iterator[Row]:
        """Plan of JSON lines with an expression, a condition, and columns that are carried along."""
        source = self.folder / "rows.jsonl"
        with open(source, "w", encoding="utf-8") as file:
            for row in range(rows):
                label = row % 3 if row % 5 else f'"{row % 3}"'
                file.write(f'{{"id": {row}, "text": "text {row} of {rows}", "label": {label}}}\n')
        self.config(source, chunk=1000)
        wanted = {"column": "null", "sql": "text || label", "where": "label = '1'"}
        wanted["columns"] = "[id, label]"
        changes = [f"--set=outputs.out.{key}={value}" for key, value in wanted.items()]
        found = succeed(["plan", "config.yaml", "--json", *changes], self.folder)
        what = f"{rows:,} JSON lines, {source.stat().st_size / 1e9:.2f} GB, sql, where, columns"
        yield Row(f"{what}: plan", f"{found.seconds:.0f} s")
        peak = found.children[_INGEST]
        yield Row("the same: peak of the ingest child", _megabytes(peak), "≤ 1,074 MB")

    def update(self, rows: int) -> Iterator[Row]:
        """`run --update` of a text file in which one line in a thousand is new."""
        source = self.folder / "lines.txt"
        write_lines(source, rows)
        self.config(source, chunk=1_000_000, batch=10_000)
        succeed(["run", "config.yaml"], self.folder)
        changed, new = self.folder / "changed.txt", 0
        with (
            open(source, encoding="utf-8") as before,
            open(changed, "w", encoding="utf-8") as after,
        ):
            for number, line in enumerate(before):
                new += not number % 1000
                after.write(line if number % 1000 else f"new {number} {line}")
        changed.replace(source)
        found = succeed(["run", "config.yaml", "--update"], self.folder)
        staging_s, what = (
            self.between("staging", "output_opened"),
            f"{rows:,} lines, {new:,} of them new",
        )
        events = [json.loads(line) for line in self.since(0)[0]]
        taken = next(each for each in reversed(events) if each["event"] == "work_planned")
        assert taken["texts_left"] <= new, taken
        yield Row(
            f"{what}: staging, `run --update` in all", f"{staging_s:.1f} s, {found.seconds:.1f} s"
        )
        yield Row("the same: ratio", f"{found.seconds / staging_s:.2f}", "≤ 1.2")
        yield Row(
            "the same: texts encoded, of distinct texts",
            f"{taken['texts_left']:,} of {taken['texts'] + taken['taken']:,}",
        )
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
        begin = self.commits(part + _WARM_UP)
        commit_chunks(self.workdir, count - part - _WARM_UP)
        inodes = sum(1 for _ in (self.workdir / ".chunkvisor" / "outputs" / "out").rglob("*"))
        yield Row(f"{count:,} chunks: files and folders of all that is committed", f"{inodes:,}")
        yield from self.looks(count)
        first_s, found = self.until("attempt_started")
        yield Row(
            f"{count:,} committed chunks: resume until the first worker starts",
            f"{first_s:.1f} s",
            "≤ 10 s",
        )
        before_bytes, end = self.journal_bytes(), self.commits()
        told = (self.journal_bytes() - before_bytes) / len(end.times_s)
        yield Row(f"{count:,} chunks: journal, a chunk", f"{told:,.0f} bytes")
        yield from _paces(
            f"{count:,} chunks",
            (begin, _WARM_UP, _WARM_UP + part - 1),
            (end, _WARM_UP, len(end.times_s) - 1),
        )
        peak_bytes = max(found.peak_bytes, begin.measured.peak_bytes, end.measured.peak_bytes)
        yield Row("the same: parent's peak", _megabytes(peak_bytes), "≤ 150 MB")
        yield self.checked(10 * count, 8)

    def whole(self, count: int) -> Iterator[Row]:
        """As `chunks`, with every chunk computed by one run: a quarter of an hour for 50,000."""
        source = self.folder / "chunks.txt"
        write_short_lines(source, 10 * count)
        self.config(source, chunk=10)
        found, part = self.commits(), min(_WINDOW, count // 3)
        last = len(found.times_s) - 1
        yield from _paces(
            f"{count:,} chunks in one run",
            (found, _WARM_UP, _WARM_UP + part),
            (found, last - part, last),
        )
        yield Row("the same: parent's peak", _megabytes(found.measured.peak_bytes), "≤ 150 MB")

    def vectors(self, count: int) -> Iterator[Row]:
        """What the parent takes for chunks of a usual size.

        It reads all vectors and hashes them.
        """
        rows, dimension = 1000, 1536
        source = self.folder / "rows.txt"
        # the last are not run, so that nothing is joined
        write_short_lines(source, rows * (count + 10))
        self.config(source, chunk=rows, dimension=dimension)
        found = self.commits(count)
        first, last = min(20, count // 4), len(found.times_s) - 1
        what = f"chunks of {rows:,} x {dimension:,}, {4e-6 * rows * dimension:.1f} MB"
        yield Row(
            f"{what}: wall, parent's processor time, a chunk",
            f"{found.wall_ms(first, last):.0f} ms, {found.cpu_ms(first, last):.1f} ms",
        )
        yield Row("the same: parent's peak", _megabytes(found.measured.peak_bytes), "≤ 150 MB")

    def assembly(self, gigabytes: int) -> Iterator[Row]:
        """Joining chunks into one final file, one row in twenty a repeat, against `cp` of that file."""
        dimension, chunk = 1024, 1000
        distinct = gigabytes * 10**9 // (4 * dimension * chunk) * chunk
        source = self.folder / "rows.txt"
        with open(source, "w", encoding="utf-8") as file:
            for number in range(distinct):
                file.write(
                    f"row {number}\nrow {number // 2}\n" if number % 20 == 19 else f"row {number}\n"
                )
        rows = distinct + distinct // 20
        self.config(source, chunk=chunk, dimension=dimension)
        self.commits(1)
        commit_chunks(self.workdir, distinct // chunk)
        os.sync()
        found = succeed(["run", "config.yaml"], self.folder)
        final = self.workdir / "out.npy"
        size_gb, ours_s = final.stat().st_size / 1e9, self.between("assembling", "output_complete")
        theirs_s = _seconds(["sh", "-c", f"cp {final} copy.npy && sync copy.npy"], self.folder)
        (self.folder / "copy.npy").unlink()
        what = f"assembling {size_gb:.1f} GB, {rows * dimension:,} numbers"
        yield Row(what, f"{ours_s:.0f} s, {size_gb * 1000 / ours_s:.0f} MB/s")
        yield Row(
            "the same: of the speed of `cp` and `sync`",
            f"{theirs_s / ours_s:.2f} ({theirs_s:.0f} s)",
            "≥ 0.6",
        )
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
            used_s, peak_bytes = (
                max(getattr(each, name) for each in found) for name in ("used_s", "peak_bytes")
            )
            words = f"{seconds:.2f} s, {used_s:.2f} s of processor time, {_megabytes(peak_bytes)}"
            yield Row(f"{count:,} chunks: {name}", words, goal)

    def checked(self, rows: int, dimension: int) -> Row:
        """The final file opened by numpy, memory-mapped, and a look at its ends."""
        final = np.load(self.workdir / "out.npy", mmap_mode="r", allow_pickle=False)
        assert final.shape == (rows, dimension), final.shape
        assert np.isfinite(final[[0, rows // 2, -1]]).all()
        return Row("the same: opened by numpy, memory-mapped", f"{rows:,} x {dimension}")


def _memory(what: str, found: Measured) -> Iterator[Row]:
    if _INGEST in found.children:
        yield Row(
            f"{what}: peak of the ingest child", _megabytes(found.children[_INGEST]), "≤ 1,500 MB"
        )
    yield Row(f"{what}: peak of the parent", _megabytes(found.peak_bytes), "≤ 150 MB")


def _paces(
    what: str, begin: tuple[Commits, int, int], end: tuple[Commits, int, int]
) -> Iterator[Row]:
    """Each as (commits, first, last)."""
    wall, cpu = (
        [getattr(commits, name)(*bounds) for commits, *bounds in (begin, end)] for name in _KINDS
    )
    for name, (start_ms, stop_ms), goal in (
        ("wall", wall, "≤ 1.1"),
        ("parent's processor time", cpu, ""),
    ):
        words = f"{start_ms:.1f} ms, {stop_ms:.1f} ms, {stop_ms / start_ms:.2f}"
        yield Row(f"{what}: {name} of a chunk at the start, at the end, ratio", words, goal)


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
    parser.add_argument(
        "--folder", type=Path, help="scratch space is made in here; else where TMPDIR says"
    )
    options = parser.parse_args()
    known: dict[str, tuple[int, Callable[[Scale, int], Iterator[Row]]]] = {
        "lines": (14_700_000, Scale.lines),
        "chunks": (50_000, Scale.chunks),
        "assembly": (20, Scale.assembly),
        "vectors": (300, Scale.vectors),
        "short": (50_000_000, Scale.short),
        "sql": (3_000_000, Scale.sql),
        "update": (14_700_000, Scale.update),
        "parquet": (5_000, Scale.parquet),
        "whole": (50_000, Scale.whole),
    }
    wanted = dict(name.partition("=")[::2] for name in options.names) or dict.fromkeys(
        list(known)[:3], ""
    )
    if unknown := wanted.keys() - known.keys():
        raise SystemExit(
            f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    print(machine_line(), flush=True)
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
