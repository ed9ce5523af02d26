"""Runs tests of the soak, chosen at random, with a fresh seed each, until the time is over: `make
soak`.

    python tests/soak/run.py [--seconds 600] [--seed N] [--only WORD] [--each] [--at-once 2]

It takes the tests of tests/soak and those marked `soak`; with --each every one of them once, and
then it ends. Each failure prints the line that plays it again. Exit code 0 only if nothing failed.
"""

import argparse
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
GRACE_S = 300
"""A test that has begun in time may take so long after it; one that takes longer has failed."""
CROSSINGS = "tests/soak/test_crossings.py::test_crossing"
"""Small jobs, of which each soak plays all."""


def tests(only: str) -> dict[str, list[str]]:
    """Node ids by test function, so that one with many parameters is not chosen more often."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "soak"]
    environment = {**os.environ, "CHUNKVISOR_SOAK_SEED": "1"}  # some tables are longer in a soak
    listed = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    found: dict[str, list[str]] = {}
    for line in listed.stdout.splitlines():
        if "::" in line and only in line:
            found.setdefault(line.partition("[")[0], []).append(line)
    if listed.returncode:
        sys.exit(f"the tests of the soak cannot be listed:\n{listed.stdout[-2000:]}")
    if not found:
        sys.exit(f"no test of the soak has {only!r} in its name:\n{listed.stdout[-2000:]}")
    return found


def chosen(
    found: dict[str, list[str]], chance: random.Random, *, each: bool
) -> Iterator[tuple[str, int]]:
    """Yield (node, seed): all crossings, and every other node once, or one at random without end."""
    if found.pop(CROSSINGS, None):
        yield CROSSINGS, chance.randrange(1 << 32)
    nodes = [node for listed in found.values() for node in listed]
    chance.shuffle(nodes)
    while found:
        for node in nodes if each else [chance.choice(found[chance.choice(sorted(found))])]:
            yield node, chance.randrange(1 << 32)
        if each:
            return


def play(node: str, seed: int, timeout_s: float) -> str:
    """Run one test; returns the line that plays it again if it fails, else an empty string."""
    environment = {**os.environ, "CHUNKVISOR_SOAK_SEED": str(seed)}
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", f"--hypothesis-seed={seed}"]
    if node == CROSSINGS:
        options += ["-n", "2"]
    command = [sys.executable, "-m", "pytest", *options, node]
    try:
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done in time: {node}, seed {seed}"
    if not ended.returncode:
        return ""
    print(f"{ended.stdout[-6000:]}{ended.stderr[-2000:]}", flush=True)
    return (
        f"FAILED; again: CHUNKVISOR_SOAK_SEED={seed} .venv/bin/pytest --hypothesis-seed={seed} "
        f"'{node}'"
    )


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument(
        "--seed",
        type=int,
        default=secrets.randbelow(1 << 32),
        help="chooses the tests and their seeds",
    )
    parser.add_argument("--only", default="", help="tests with this in their name")
    parser.add_argument(
        "--each", action="store_true", help="every test once, with each of its parameters"
    )
    parser.add_argument("--at-once", type=int, default=max(1, min(4, os.cpu_count() or 1)))
    arguments = parser.parse_args()
    found, deadline_s = tests(arguments.only), time.monotonic() + arguments.seconds
    print(f"soak: seed {arguments.seed}, {len(found)} tests, {arguments.seconds:.0f} s", flush=True)
    played, failed = 0, list[str]()
    queue = chosen(found, random.Random(arguments.seed), each=arguments.each)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        while batch := [each for each, _ in zip(queue, range(arguments.at_once), strict=False)]:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            limit_s = left_s + GRACE_S
            played_now = pool.map(lambda pair, s=limit_s: play(pair[0], pair[1], s), batch)
            failed += filter(None, played_now)
            played += len(batch)
    print(
        "\n".join([*failed, f"soak: {played} tests, {len(failed)} failed; seed {arguments.seed}"])
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
