"""Rebuilds folders after power cuts and resumes in each: `python -m tests.lostwrites [SCENARIO…] [--folders 1000]`.

`--no-syncs` takes all syncs for not called, which has to be noticed.
Without an installed chunkvisor: PYTHONPATH=supervisor:worker.
"""

import argparse
import random
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `harness`, as pytest has it

from .crashes import Crashes
from .judge import Judge, scratch_folder
from .scenarios import SCENARIOS


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.lostwrites", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"some of: {', '.join(SCENARIOS)}; all of them by default")
    parser.add_argument("--folders", type=int, default=1000, help="at most so many of each scenario")
    parser.add_argument("--seed", type=int, help="chooses the folders; a fresh one by default")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--show", type=int, default=3, help="so many of the unsound are shown")
    parser.add_argument("--no-syncs", action="store_true", help="as if nothing had been synced")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    unsound = 0
    for name in options.scenarios or SCENARIOS:
        unsound += play(name, options.folders, seed, options.at_once, options.show, synced=not options.no_syncs)
    return 1 if unsound else 0


def play(name: str, count: int, seed: int, at_once: int, show: int, *, synced: bool) -> int:
    """One scenario; returns how many folders were unsound."""
    began_s, chance, scenario = time.monotonic(), random.Random(seed), SCENARIOS[name]
    folder = scratch_folder()
    try:
        recording = scenario.record(folder)
        possible = list(Crashes(recording, chance, synced=synced).legal())
        chosen = chance.sample(possible, count) if len(possible) > count else possible
        unsound = refused = 0
        with Judge(scenario, recording, at_once) as judge:
            for judgement in judge.each(chosen):
                refused += judgement.refused
                if judgement.problems:
                    unsound += 1
                    if unsound <= show:
                        crash = judgement.crash
                        print(f"--- {name}, after call {crash.at}, lost: {crash.what}")
                        for call in recording.calls[max(0, crash.at - 3) : crash.at]:
                            print(f"    {call.kind.name} {call.path} {call.other}")
                        print(*judgement.problems, sep="\n", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began_s
    print(
        f"{name}: {len(recording.calls)} calls, {len(chosen)} of {len(possible)} power cuts,"
        f" {len({crash.digest for crash in chosen})} distinct folders, {refused} refused by name, {unsound} unsound,"
        f" {seconds:.0f} s; seed {seed}",
        flush=True,
    )
    return unsound


if __name__ == "__main__":
    sys.exit(main())
