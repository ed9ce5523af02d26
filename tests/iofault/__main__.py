"""`python -m tests.iofault --scenario plain` fails every call of that run, one after the other: see README.md."""

import argparse
import faulthandler
import json
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
    options = parsed()
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
        trials = chosen(sweep, options)
        return play(sweep, trials, options)


def play_parts(scenario: str, count: int) -> int:
    """Play one scenario with the same options, in so many processes; the worst exit code."""
    parts = [["--scenario", scenario, "--part", f"{number}/{count}"] for number in range(1, count + 1)]
    begun = [subprocess.Popen([*COMMAND, *sys.argv[1:], *part]) for part in parts]
    return max(each.wait() for each in begun)


def parsed() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(prog="python -m tests.iofault", description=__doc__)
    parser.add_argument("--scenario", default="plain", help="one of scenarios.py, or `all`, one after the other")
    parser.add_argument("--at-once", type=int, default=1, help="of `all`: processes at a time")
    parser.add_argument("--list", action="store_true", help="print the calls of an undisturbed run, and end")
    parser.add_argument("--part", default="1/1", help="K/N: the Kth of N parts of all trials")
    parser.add_argument("--seed", type=int, default=0, help="cuts other parts")
    parser.add_argument("--only", default="", help="trials with this in their words")
    parser.add_argument("--without", default="", help="a regular expression: no trials with it in their words")
    parser.add_argument("--kin", type=int, default=0, help="of the calls of one place in the code so many; 0: all")
    parser.add_argument("--errors", type=int, default=0, help="of the errors of each call so many, by lot; 0: all")
    parser.add_argument("--log", type=Path, help="add a line for each trial, and play none that has one")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no trial after so long")
    parser.add_argument("--position", help="replay this one, as it was printed")
    parser.add_argument("--error", default="EIO", help="of the position")
    parser.add_argument("--for-good", action="store_true", help="and of all calls of that kind after it")
    parser.add_argument("--verbose", action="store_true", help="print how each run ends")
    return parser.parse_args()


def chosen(sweep: "Sweep", options: argparse.Namespace) -> list[Trial]:
    """The trials that the options leave."""
    if options.position:
        return [Trial(Position.parse(options.position), number_of(options.error), options.for_good)]
    lines = options.log.read_text().splitlines() if options.log and options.log.exists() else ()
    logged = [json.loads(line) for line in lines]
    kin: dict[str, set[Position]] = {}
    for each in logged:
        if each["scenario"] != options.scenario:
            kin.setdefault(each["kin"], set()).add(Position.parse(each["position"]))
    every = sweep.trials(options.kin, kin)
    positions = {trial.position for trial in every}
    kinds = Counter(f"{each.role} {each.kind}" for each in positions)
    print(f"{kinds.total()} positions: {', '.join(f'{kinds[each]} {each}' for each in sorted(kinds))}", flush=True)
    known = {each["trial"] for each in logged if each["scenario"] == options.scenario}
    without = re.compile(options.without or "(?!)")
    wanted = [trial for trial in every if options.only in str(trial) and not without.search(str(trial))]
    found = part_of(wanted, options.part, options.seed)
    if options.errors:
        errors: dict[Position, list[int]] = {}
        for trial in found:  # in the order of their lots
            errors.setdefault(trial.position, []).append(trial.error)
        found = [each for each in found if each.error in [*dict.fromkeys(errors[each.position])][: options.errors]]
    return [trial for trial in found if str(trial) not in known]


def part_of(trials: Sequence[Trial], part: str, seed: int) -> list[Trial]:
    """Chosen by the words of each, so that one position more or less does not change the others' lots."""
    number, count = (int(word) for word in part.split("/"))
    lots = {trial: _lot(seed, str(trial.position), trial.error_name) for trial in trials}
    places = {trial: _lot(seed, str(trial.position)) % count for trial in trials}
    return sorted((trial for trial in trials if places[trial] == number - 1), key=lambda trial: lots[trial])


def _lot(*words: object) -> int:
    return zlib.crc32(" ".join(map(str, words)).encode(errors="surrogateescape"))


def play(sweep: "Sweep", trials: Sequence[Trial], options: argparse.Namespace) -> int:
    """Print what came of each, and the sum."""
    began_s, codes, wrong, missed, played, same = time.monotonic(), Counter[int](), 0, 0, 0, 0
    for each in sweep.play(trials):
        played += bool(each.took_s)
        same += not each.took_s
        log(each, sweep.kin.get(each.trial.position, ""), options)
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
        f"{options.scenario}: {played} trials in {took_s:.0f} s, "
        f"{same} more are the same as one of them, {wrong} wrong; of {len(trials)}; "
        f"exit codes {ends}; {missed} did not come by their call"
    )
    return 1 if wrong else 0


def log(found: "Found", kin: str, options: argparse.Namespace) -> None:
    """A line for the trial, where a log is wanted."""
    if not options.log:
        return
    trial = found.trial
    line = {"scenario": options.scenario, "trial": str(trial), "position": str(trial.position), "kin": kin}
    line |= {"code": found.first.code, "failed": found.failed, "problem": found.problem, "took_s": found.took_s}
    with open(options.log, "a") as file:
        file.write(json.dumps(line) + "\n")


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
