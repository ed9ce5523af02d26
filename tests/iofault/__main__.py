"""Fails every call of a run that touches a file, one after the other: `python -m tests.iofault --scenario plain`.

Each fails with each error that it can return, once and for good, and it is looked at what the run makes of it: see
sweep.py. `--part 3/100` plays a hundredth of that, `--list` prints the calls of an undisturbed run, `--scenario all
--at-once 2` plays everything, `--position '…' --error EIO --for-good` one trial, with all that is said.

shim.c, a library for LD_PRELOAD, stands in the place of the calls of libc, so that Python, numpy and DuckDB are seen
alike. A position is the role of a process, the kind of the call, its path below the folder of the run (`*` for what
differs from run to run) and which time it is: so it is found again though processes run at the same time. forked.py
forks children from a process that has imported everything; so imports are the one thing that never fails here.
"""

import argparse
import faulthandler
import os
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .shim import Position, Trial, build, number_of

if TYPE_CHECKING:
    from .sweep import Found, Sweep

_PRELOADED = "IOFAULT_PRELOADED"
COMMAND = (sys.executable, "-m", "tests.iofault")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.iofault", description=__doc__)
    parser.add_argument("--scenario", default="plain", help="one of scenarios.py, or `all`, one after the other")
    parser.add_argument("--at-once", type=int, default=1, help="of `all`: processes at a time")
    parser.add_argument("--list", action="store_true", help="print the calls of an undisturbed run, and end")
    parser.add_argument("--part", default="1/1", help="K/N: the Kth of N parts of all trials")
    parser.add_argument("--errors", type=int, default=0, help="of the errors of each call so many, by lot; 0: all")
    parser.add_argument("--position", help="replay this one, as it was printed")
    parser.add_argument("--error", default="EIO", help="of the position")
    parser.add_argument("--for-good", action="store_true", help="and of all calls of that kind after it")
    options = parser.parse_args()
    if options.scenario != "all" and _PRELOADED not in os.environ:
        environment = {**os.environ, "LD_PRELOAD": str(build()), _PRELOADED: "1"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [*COMMAND, *sys.argv[1:]], environment)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from .scenarios import SCENARIOS

    if options.scenario == "all":
        return max(play_parts(name, options.at_once) for name in SCENARIOS)
    faulthandler.enable()
    from .sweep import Sweep

    # In memory, where that can be: thousands of folders are made, and a sync takes no time there.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="iofault-", dir=memory) as scratch:
        sweep = Sweep(SCENARIOS[options.scenario], Path(scratch))
        if options.list:
            for seen in sweep.calls():
                print(seen.position, seen.call, seen.place)
            return 0
        return play(sweep, chosen(sweep, options), options)


def play_parts(scenario: str, count: int) -> int:
    """Play one scenario with the same options, in so many processes; the worst exit code."""
    parts = [["--scenario", scenario, "--part", f"{number}/{count}"] for number in range(1, count + 1)]
    begun = [subprocess.Popen([*COMMAND, *sys.argv[1:], *part]) for part in parts]
    return max(each.wait() for each in begun)


def chosen(sweep: "Sweep", options: argparse.Namespace) -> list[Trial]:
    """The trials that the options leave, in the order of lots that one position more or less does not change."""
    if options.position:
        return [Trial(Position.parse(options.position), number_of(options.error), options.for_good)]
    trials = sweep.trials()
    kinds = Counter(f"{each.role} {each.kind}" for each in {trial.position for trial in trials})
    print(f"{kinds.total()} positions: {', '.join(f'{kinds[each]} {each}' for each in sorted(kinds))}", flush=True)
    number, count = (int(word) for word in options.part.split("/"))
    found = [trial for trial in trials if _lot(trial.position) % count == number - 1]
    found.sort(key=lambda trial: _lot(trial.position, trial.error_name))
    errors: dict[Position, list[int]] = {}
    for trial in found:
        errors.setdefault(trial.position, []).append(trial.error)
    most = options.errors or None
    return [each for each in found if each.error in [*dict.fromkeys(errors[each.position])][:most]]


def _lot(*words: object) -> int:
    return zlib.crc32(" ".join(map(str, words)).encode(errors="surrogateescape"))


def play(sweep: "Sweep", trials: Sequence[Trial], options: argparse.Namespace) -> int:
    """Print what came of each that is not as it should be, and the sum."""
    began_s, codes, wrong, missed, same = time.monotonic(), Counter[int](), 0, 0, 0
    for each in sweep.play(trials):
        same += not each.took_s
        codes[each.first.code] += 1
        missed += not each.failed
        if each.problem:
            wrong += 1
            print(f"{each.trial}: {each.problem}; {each.failed} failed, {each.took_s:.1f} s", flush=True)
            print(f"    {last_words(each)}\n    again: {again(each, options.scenario)}", flush=True)
        if options.position:
            print(f"{each.first.words}\nthe second run: {each.second.code}\n{each.second.words}")
    ends = ", ".join(f"{number} x {code}" for code, number in sorted(codes.items()))
    took_s = time.monotonic() - began_s
    print(
        f"{options.scenario}: {len(trials) - same} trials in {took_s:.0f} s, {same} more are the same as one of them, "
        f"{wrong} wrong; exit codes {ends}; {missed} did not come by their call"
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
