"""Plays lives: `python -m tests.simulator --seed N --size small` replays one, `--seconds S` plays
fresh ones, `--bug NAME` with a bug of planted.py.

Without an installed chunkvisor: PYTHONPATH=supervisor:worker.
"""

import argparse
import contextlib
import random
import sys
import time
import traceback
from collections import Counter

from .life import simulate
from .planted import BUGS_FOR_LIVES
from .watchdog import Broken
from .world import SIZES, draw


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this life and print its history")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seconds", type=float, default=20.0, help="play fresh lives for so long")
    parser.add_argument("--first", type=int, help="the first of the fresh seeds; the others follow")
    parser.add_argument("--bug", choices=BUGS_FOR_LIVES, help="play with this bug")
    options = parser.parse_args()
    bug = BUGS_FOR_LIVES[options.bug].planted() if options.bug else contextlib.nullcontext()
    with bug:
        if options.seed is not None:
            return replay(options.seed, options.size)
        first = options.first
        if first is None:
            first = random.SystemRandom().randrange(10**9)
        return play(first, options.size, options.seconds)


def replay(seed: int, size: str) -> int:
    """Play one life and print all that happened."""
    world = draw(seed, size)
    print(world if len(world.gpus) < 20 else f"{len(world.gpus)} devices")
    try:
        life = simulate(seed, size, world=world, trace=True)
    except Broken as broken:
        print("\n".join(broken.life.history))
        if broken.__cause__ is not None:
            traceback.print_exception(broken.__cause__)
        print(f"FAILED: {broken}")
        return 1
    print("\n".join(life.history or ()))
    return 0


def play(first: int, size: str, seconds: float) -> int:
    """Play the lives of the seeds from `first` on, for so many seconds of one core."""
    began = time.process_time()
    lives = 0
    codes = Counter[str]()
    while time.process_time() - began < seconds:
        seed = first + lives
        lives += 1
        try:
            codes[simulate(seed, size).codes[-1].name] += 1
        except Broken as broken:
            print(
                f"life {lives}: {broken}\n  python -m tests.simulator --seed {seed} --size {size}"
            )
            return 1
    print(f"{lives} lives in {time.process_time() - began:.1f} s of one core; ends: {dict(codes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
