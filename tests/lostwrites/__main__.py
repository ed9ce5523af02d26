"""Rebuilds folders after power cuts and resumes in each: `python -m tests.lostwrites [SCENARIO…]
[--folders 1000]`.

`--no-syncs` takes all syncs for not called, which has to be noticed. `--seed` plays a choice of
folders again.
"""

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `harness`, as pytest has it

from .crashes import Crashes
from .disk import Disk
from .judge import Judge, be_ready
from .recording import Kind
from .scenarios import SCENARIOS


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.lostwrites", description=__doc__)
    parser.add_argument(
        "scenarios", nargs="*", help=f"some of: {', '.join(SCENARIOS)}; all of them by default"
    )
    parser.add_argument(
        "--folders", type=int, default=1000, help="at most so many of each scenario"
    )
    parser.add_argument("--seed", type=int, help="chooses the folders; a fresh one by default")
    parser.add_argument("--no-syncs", action="store_true", help="as if nothing had been synced")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    be_ready()
    # In memory, where that can be: thousands of folders are made and removed.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="chunkvisor-lostwrites-", dir=memory) as scratch:
        unsound = 0
        for name in options.scenarios or SCENARIOS:
            unsound += play(name, options.folders, seed, Path(scratch), synced=not options.no_syncs)
    return 1 if unsound else 0


def play(name: str, count: int, seed: int, scratch: Path, *, synced: bool) -> int:
    """One scenario; returns how many folders were unsound."""
    chance, scenario, disk = random.Random(seed), SCENARIOS[name], Disk()
    recording = scenario.record(scratch / name)
    for call in recording.calls:
        disk.do(call)
    for path, file in disk.tree(disk.steps).items():
        if file.kind is Kind.CREATE:
            assert disk.content(file, "all") == (recording.folder / path).read_bytes(), path
    possible = list(Crashes(recording, chance, synced=synced).legal())
    chosen = chance.sample(possible, count) if len(possible) > count else possible
    unsound, judge = 0, Judge(scenario, recording, scratch)
    for crash in chosen:
        if problems := judge.problems(crash):
            unsound += 1
            print(f"--- {name}, after call {crash.at}, lost: {crash.what}")
            for call in recording.calls[max(0, crash.at - 3) : crash.at]:
                print(f"    {call.kind.name} {call.path} {call.other}")
            print(*problems, sep="\n", flush=True)
    said = (
        f"{len(chosen)} of {len(possible)} power cuts, {judge.refused} refused by name, {unsound} "
        f"unsound"
    )
    print(f"{name}: {len(recording.calls)} calls, {said}; seed {seed}", flush=True)
    return unsound


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # without the teardown, in which bindings complain about what a frozen heap still has
    os._exit(code)
