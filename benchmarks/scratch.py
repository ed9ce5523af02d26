"""A scratch folder in which `chunkvisor` runs a trivial encoder, and what its journal tells of that.

It never judges a figure: `scale` does.
"""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from measured import Measured, measure

HERE = Path(__file__).parent


@dataclass
class Commits:
    """When a run committed its chunks, and what its parent took."""

    times_s: list[float] = field(default_factory=list)
    cpu: list[tuple[int, float]] = field(default_factory=list)
    """Chunks committed and processor time of the parent, at each look."""
    measured: Measured = field(default_factory=Measured)
    stopped: bool = False

    def wall_ms(self, first: int, last: int) -> float:
        """Of a chunk, between two commits."""
        return 1000 * (self.times_s[last] - self.times_s[first]) / (last - first)

    def cpu_ms(self, first: int, last: int) -> float:
        """The parent's, of a chunk, between the looks that are nearest to two commits."""
        (low, before_s), (high, after_s) = (
            min(self.cpu, key=lambda look: abs(look[0] - at)) for at in (first, last)
        )
        return 1000 * (after_s - before_s) / max(1, high - low)


class Scratch:
    """The folder, with a config and the workdir `work`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workdir = folder / "work"
        self.journal = self.workdir / ".chunkvisor" / "events.jsonl"

    def config(self, source: Path, *, chunk: int, dimension: int = 8, batch: int = 1000) -> None:
        """A config of the trivial encoder for one output `out`."""
        config: dict[str, Any] = {
            "workdir": "work",
            "device": "cpu",
            "model": {
                "name": "trivial",
                "encoder": "trivial:make",
                "kwargs": {"dimension": dimension},
            },
            "encode": {"batch_size": batch},
            "chunk": {"size": chunk},
            "workers": {"start": "warm"},
            "env": {
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [str(HERE), os.environ.get("PYTHONPATH")])
                )
            },
            "outputs": {"out": {"source": str(source), "column": "text"}},
        }
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def commits(self, stop: int | None = None) -> Commits:
        """Run, until so many chunks are committed or to the end."""
        seen = self.journal_bytes()
        found = Commits()

        def on_look(process: subprocess.Popen[bytes], now: Measured) -> None:
            nonlocal seen
            lines, seen = self.since(seen)
            found.times_s += [
                json.loads(line)["t"] for line in lines if b'"chunk_committed"' in line
            ]
            found.cpu.append((len(found.times_s), now.cpu_s))
            if stop is not None and len(found.times_s) >= stop and not found.stopped:
                found.stopped = True
                process.send_signal(signal.SIGINT)

        found.measured = measure(["run", "config.yaml"], self.folder, on_look=on_look)
        lines, _ = self.since(seen)
        found.times_s += [json.loads(line)["t"] for line in lines if b'"chunk_committed"' in line]
        return found

    def until(self, event: str) -> tuple[float, Measured]:
        """Run until an event, and stop; returns the seconds until then."""
        seen, started = self.journal_bytes(), time.time()
        found_at: list[float] = []

        def on_look(process: subprocess.Popen[bytes], _: Measured) -> None:
            nonlocal seen
            lines, seen = self.since(seen)
            found_at.extend(
                json.loads(line)["t"] for line in lines if f'"event": "{event}"'.encode() in line
            )
            if found_at:
                process.send_signal(signal.SIGINT)

        found = measure(["run", "config.yaml"], self.folder, on_look=on_look)
        return found_at[0] - started, found

    def journal_bytes(self) -> int:
        """Its size."""
        return self.journal.stat().st_size if self.journal.exists() else 0

    def since(self, offset: int) -> tuple[list[bytes], int]:
        """The whole lines of the journal from there on, and where they end."""
        if not self.journal.exists():
            return [], offset
        with open(self.journal, "rb") as file:
            file.seek(offset)
            lines = [line for line in file if line.endswith(b"\n")]
        return lines, offset + sum(map(len, lines))

    def between(self, first: str, last: str) -> float:
        """Seconds from one event of the journal to another, of the newest of each."""
        lines, _ = self.since(0)
        times = {
            json.loads(line)["event"]: json.loads(line)["t"]
            for line in lines[-1000:]
            if line.strip()
        }
        return float(times[last] - times[first])
