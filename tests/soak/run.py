"""Runs tests of the soak, chosen at random, with a fresh seed each, until the time is over: `make soak`.

    python tests/soak/run.py [--seconds 600] [--seed N] [--only WORD] [--each] [--at-once 2]

It takes the tests of tests/soak and those marked `soak`; with --each every one of them once, and then it ends. Each
failure prints the line that plays it again; what still runs a while after the time is over is ended, and counts as
nothing. Exit code 0 only if nothing failed.
"""

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
GRACE_S = 60
"""So long may go on what has begun in time."""
MARK = "CHUNKVISOR_SOAK"
"""Whatever a soak starts bears it, so that it can be ended."""


def tests(only: str) -> dict[str, list[str]]:
    """Node ids by test function, so that one with many parameters is not chosen more often."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "soak"]
    environment = {**os.environ, "CHUNKVISOR_SOAK_SEED": "1"}  # some tables are longer in a soak
    listed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found: dict[str, list[str]] = {}
    for line in listed.stdout.splitlines():
        if "::" in line and only in line:
            found.setdefault(line.partition("[")[0], []).append(line)
    if not found:
        sys.exit(f"no test of the soak has {only!r} in its name:\n{listed.stdout[-2000:]}{listed.stderr[-2000:]}")
    return found


def end_all(mark: str) -> None:
    """Kill what bears the mark and lives."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                process.send_signal(signal.SIGKILL)
        except (psutil.Error, OSError):
            continue


class Soak:
    """Tests one after the other, in so many threads."""

    def __init__(self, seed: int, seconds: float, found: dict[str, list[str]], *, each: bool) -> None:
        self._chance, self._lock = random.Random(seed), threading.Lock()
        self._found = found
        self._queue = [(name, node) for name, nodes in found.items() for node in nodes] if each else None
        if self._queue:
            self._chance.shuffle(self._queue)
        self._deadline_s = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []

    def work(self, _number: int) -> None:
        """Until the time is over."""
        while (left_s := self._deadline_s - time.monotonic()) > 0 and (chosen := self._choose()) is not None:
            name, node, seed = chosen
            self._play(node, seed, left_s + GRACE_S)
            self.counts[name.rpartition("::")[2]] += 1

    @property
    def left(self) -> int:
        """Of those of which each was to be played, what there was no time for."""
        return len(self._queue or ())

    def _choose(self) -> tuple[str, str, int] | None:
        """(test, node, seed) of the next; None where each was played."""
        with self._lock:
            seed = self._chance.randrange(1 << 32)
            if self._queue is not None:
                return (*self._queue.pop(), seed) if self._queue else None
            name = self._chance.choice(sorted(self._found))
            return name, self._chance.choice(self._found[name]), seed

    def _play(self, node: str, seed: int, timeout_s: float) -> None:
        mark = secrets.token_hex(8)
        environment = {**os.environ, "CHUNKVISOR_SOAK_SEED": str(seed), MARK: mark}
        options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", f"--hypothesis-seed={seed}"]
        command = [sys.executable, "-m", "pytest", *options, node]
        try:
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            end_all(mark)
            print(f"not done in time: {node}", flush=True)
            return
        if ended.returncode:
            replay = f"CHUNKVISOR_SOAK_SEED={seed} .venv/bin/pytest --hypothesis-seed={seed} '{node}'"
            with self._lock:
                self.failed.append(replay)
                print(f"{ended.stdout[-6000:]}{ended.stderr[-2000:]}\nFAILED; again: {replay}\n", flush=True)


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None, help="chooses the tests and their seeds")
    parser.add_argument("--only", default="", help="tests with this in their name")
    parser.add_argument("--each", action="store_true", help="every test once, with each of its parameters")
    parser.add_argument("--at-once", type=int, default=max(1, min(4, os.cpu_count() or 1)))
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 32)
    found = tests(arguments.only)
    print(f"soak: seed {seed}, {len(found)} tests, {arguments.seconds:.0f} s, {arguments.at_once} at once", flush=True)
    soak = Soak(seed, arguments.seconds, found, each=arguments.each)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        list(pool.map(soak.work, range(arguments.at_once)))
    for name, count in soak.counts.most_common():
        print(f"{count:5} {name}")
    for replay in soak.failed:
        print(f"FAILED; again: {replay}")
    print(f"soak: {soak.counts.total()} tests, {len(soak.failed)} failed, {soak.left} of --each left; seed {seed}")
    return 1 if soak.failed else 0


if __name__ == "__main__":
    sys.exit(main())
