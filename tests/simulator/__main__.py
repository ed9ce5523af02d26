"""Plays lives: `python -m tests.simulator --seed N --size small` replays one, `--seconds S` plays fresh ones.

Without an installed chunkvisor: PYTHONPATH=supervisor:worker.
"""

import argparse
import random
import sys
import time
import traceback

from .bugs import table
from .histories import HISTORIES
from .life import simulate
from .play import Play
from .shrink import shrink
from .watchdog import Broken
from .world import SIZES, draw


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this life and print its history")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seconds", type=float, default=20.0, help="play fresh lives for so long")
    parser.add_argument("--first", type=int, help="the first of the fresh seeds; the others follow")
    parser.add_argument("--go-on", action="store_true", help="do not end at the first failure; count them")
    parser.add_argument("--shrink", action="store_true", help="with --seed: leave out what is not needed to fail")
    parser.add_argument("--histories", action="store_true", help="print the histories with what is said now")
    parser.add_argument("--bugs", type=int, metavar="N", help="put mended bugs back, N times each, and count lives")
    options = parser.parse_args()
    if options.bugs:
        table(options.bugs, 5000)
        return 0
    if options.histories:
        return tell_histories()
    if options.seed is not None:
        return replay(options.seed, options.size, smaller=options.shrink)
    first = options.first if options.first is not None else random.SystemRandom().randrange(10**9)
    return play(first, options.size, options.seconds, go_on=options.go_on)


def tell_histories() -> int:
    """Print every history as it goes now, to be read and copied."""
    for name, given, history in HISTORIES:
        print(f"{name} {given}")
        player = Play(**given)
        for line in history.strip().splitlines():
            happens = line.partition("|")[0].strip()
            print(f"        {happens:<22} | {', '.join(player.line(happens))}".rstrip())
    return 0


def replay(seed: int, size: str, *, smaller: bool) -> int:
    """Play one life and print all that happened."""
    world = draw(seed, size)
    if smaller:
        world, left_out = shrink(seed, size)
        print("left out:", ", ".join(left_out) or "nothing")
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


def play(first: int, size: str, seconds: float, *, go_on: bool) -> int:
    """Play fresh lives, for so many seconds of one core."""
    began, lives, steps, failures = time.process_time(), 0, 0, dict[str, list[int]]()
    codes: dict[str, int] = {}
    while time.process_time() - began < seconds:
        seed = first + lives
        lives += 1
        try:
            life = simulate(seed, size)
        except Broken as broken:
            found = failures.setdefault(broken.invariant, [])
            found.append(seed)
            if len(found) <= 3:
                print(f"life {lives}: {broken}\n  python -m tests.simulator --seed {seed} --size {size}")
            if not go_on:
                return 1
        else:
            steps += life.steps
            codes[life.codes[-1].name] = codes.get(life.codes[-1].name, 0) + 1
    took_s = time.process_time() - began
    print(f"{lives} lives in {took_s:.1f} s of one core, {lives / took_s:.0f} a second; {steps} stimuli; ends: {codes}")
    for invariant, found in failures.items():
        print(f"{len(found)} times: {invariant}; first seeds {found[:5]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
