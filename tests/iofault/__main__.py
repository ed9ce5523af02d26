"""`python -m tests.iofault --scenario plain` fails every call of that run, one after the other: see README.md."""

import argparse
import faulthandler
import os
import re
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .shim import Position, build, number_of

if TYPE_CHECKING:
    from .sweep import Found, Trial

_PRELOADED = "IOFAULT_PRELOADED"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.iofault", description=__doc__)
    parser.add_argument("--scenario", default="plain", help="one of scenarios.py")
    parser.add_argument("--list", action="store_true", help="print the positions of an undisturbed run, and end")
    parser.add_argument("--part", default="1/1", help="K/N: the Kth of N parts of all trials")
    parser.add_argument("--seed", type=int, default=0, help="cuts other parts")
    parser.add_argument("--only", default="", help="trials with this in their words")
    parser.add_argument("--without", default="", help="a regular expression: no trials with it in their words")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no trial after so long")
    parser.add_argument("--position", help="replay this one, as it was printed")
    parser.add_argument("--error", default="EIO", help="of the position")
    parser.add_argument("--for-good", action="store_true", help="and of all calls of that kind after it")
    parser.add_argument("--verbose", action="store_true", help="print how each run ends")
    options = parser.parse_args()
    if _PRELOADED not in os.environ:
        environment = {**os.environ, "LD_PRELOAD": str(build()), _PRELOADED: "1"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.iofault", *sys.argv[1:]], environment)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).parents[1]))
    faulthandler.enable()
    from .scenarios import SCENARIOS
    from .sweep import Sweep, Trial

    # In memory, where that can be: thousands of folders are made, and a sync takes no time there.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="iofault-", dir=memory) as scratch:
        sweep = Sweep(SCENARIOS[options.scenario], Path(scratch))
        if options.list:
            for position, call in sweep.positions():
                print(position, call)
            return 0
        if options.position:
            trials = [Trial(Position.parse(options.position), number_of(options.error), options.for_good)]
        else:
            every = sweep.trials()
            kinds = Counter(f"{each.role} {each.kind}" for each in {trial.position for trial in every})
            print(
                f"{kinds.total()} positions: {', '.join(f'{kinds[each]} {each}' for each in sorted(kinds))}", flush=True
            )
            trials = part_of([each for each in every if chosen(str(each), options)], options.part, options.seed)
        return play(sweep.play(trials), len(trials), options)


def chosen(words: str, options: argparse.Namespace) -> bool:
    """Whether the options leave the trial in."""
    return options.only in words and not (options.without and re.search(options.without, words))


def part_of(trials: "Sequence[Trial]", part: str, seed: int) -> "list[Trial]":
    """Chosen by the words of each, so that one position more or less does not change the others' lots."""
    number, count = (int(word) for word in part.split("/"))
    lots = {trial: zlib.crc32(f"{seed} {trial}".encode(errors="surrogateescape")) for trial in trials}
    return sorted((trial for trial in trials if lots[trial] % count == number - 1), key=lambda trial: lots[trial])


def play(found: "Iterator[Found]", count: int, options: argparse.Namespace) -> int:
    """Print what came of each, and the sum."""
    began_s, codes, wrong, missed, played = time.monotonic(), Counter[int](), 0, 0, 0
    for each in found:
        played += 1
        codes[each.first.code] += 1
        missed += not each.failed
        if each.problem or options.verbose:
            came = each.problem or f"exit code {each.first.code}"
            print(f"{each.trial}: {came}; {each.failed} failed, {each.took_s:.1f} s", flush=True)
        if each.problem:
            wrong += 1
            print(f"    {last_words(each)}\n    again: {again(each, options.scenario)}", flush=True)
        if options.position:
            print(f"{each.first.words}\nthe second run: {each.second.code}\n{each.second.words}")
        if time.monotonic() - began_s > options.seconds:
            break
    ends = ", ".join(f"{number} x {code}" for code, number in sorted(codes.items()))
    took_s = time.monotonic() - began_s
    print(
        f"{options.scenario}: {played} of {count} trials in {took_s:.0f} s, {wrong} wrong; "
        f"exit codes {ends}; {missed} did not come by their call"
    )
    return 1 if wrong else 0


def again(found: "Found", scenario: str) -> str:
    """The command that plays it alone."""
    trial = found.trial
    end = " --for-good" if trial.for_good else ""
    words = f"--scenario {scenario} --position '{trial.position}' --error {trial.error_name}{end}"
    return f"python -m tests.iofault {words}"


def last_words(found: "Found") -> str:
    """In one line: the last place of ours in a traceback, and what was said last."""
    words = (found.second if "second" in found.problem else found.first).words
    places = re.findall(r'/(chunkvisor(?:_worker)?/[^"]+)", line (\d+), in (\w+)', words)
    said = [line.strip() for line in words.splitlines() if line.strip()][-3:]
    return " | ".join([" ".join(places[-1]) if places and "Traceback" in words else "", *said])


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # without the teardown, in which bindings complain about what a frozen heap still has
