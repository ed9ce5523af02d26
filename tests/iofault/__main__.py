"""Fails every call of a run that touches a file, one after the other: `python -m tests.iofault
--scenario plain`.

Each fails with each error that it can return, once or for good by lot (`--seed`), and it is looked
at what the run makes of it: see sweep.py. `--part 3/100` plays a hundredth of that, `--errors 1`
one error of each call; `--position '…' --error EIO --for-good` one trial, with all that is said.

shim.c, a library for LD_PRELOAD, stands in the place of the calls of libc, so that Python, numpy
and DuckDB are seen alike. A position is the role of a process, the kind of the call, its path below
the folder of the run (`*` for what differs from run to run) and which time it is: so it is found
again though processes run at the same time. forked.py forks children from a process that has
imported everything; so imports are the one thing that never fails here.
"""

import argparse
import faulthandler
import os
import sys
import tempfile
import zlib
from collections import Counter
from pathlib import Path

from .shim import CAN_FAIL_WITH, Position, Trial, build

_PRELOADED = "IOFAULT_PRELOADED"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.iofault", description=__doc__)
    parser.add_argument("--scenario", default="plain", help="one of scenarios.py")
    parser.add_argument("--part", default="1/1", help="K/N: the Kth of N parts of all trials")
    parser.add_argument(
        "--errors", type=int, help="of the errors of each call so many, by lot; all by default"
    )
    parser.add_argument("--seed", default="", help="of the lots")
    parser.add_argument("--position", help="replay this one, as it was printed")
    parser.add_argument("--error", default="EIO", help="of the position")
    parser.add_argument(
        "--for-good", action="store_true", help="and of all calls of that kind after it"
    )
    options = parser.parse_args()
    if _PRELOADED not in os.environ:
        environment = {**os.environ, "LD_PRELOAD": str(build()), _PRELOADED: "1"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.iofault", *sys.argv[1:]], environment
        )
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from .scenarios import SCENARIOS
    from .sweep import Sweep

    faulthandler.enable()
    codes, wrong, missed = Counter[int](), 0, 0
    # In memory, where that can be: thousands of folders are made, and a sync takes no time there.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="iofault-", dir=memory) as scratch:
        sweep = Sweep(SCENARIOS[options.scenario], Path(scratch))
        for trial in chosen(sweep.positions, options):
            found = sweep.play(trial)
            codes[found.first[0]] += 1
            missed += not found.failed
            if found.problem or options.position:
                wrong += bool(found.problem)
                print(
                    f"{found.problem}: --scenario {options.scenario} {trial}",
                    found.first,
                    found.second,
                    flush=True,
                )
    ends = ", ".join(f"{number} x {code}" for code, number in sorted(codes.items()))
    said = (
        f"{codes.total()} trials, {wrong} wrong; exit codes {ends}; {missed} did not come by their "
        f"call"
    )
    print(f"{options.scenario}: {said}", flush=True)
    return 1 if wrong else 0


def chosen(positions: list[Position], options: argparse.Namespace) -> list[Trial]:
    """The trials that the options leave, by lots that one position more or less does not change."""
    if options.position:
        return [Trial(Position.parse(options.position), options.error, options.for_good)]
    kinds = Counter(f"{each.role} {each.kind}" for each in positions)
    print(
        f"{kinds.total()} positions: "
        f"{', '.join(f'{kinds[each]} {each}' for each in sorted(kinds))}",
        flush=True,
    )
    number, count = (int(word) for word in options.part.split("/"))

    def lot(*words: object) -> int:
        return zlib.crc32(
            " ".join(map(str, (options.seed, *words))).encode(errors="surrogateescape")
        )

    found = []
    for position in positions:
        lots = {lot(position, error): error for error in CAN_FAIL_WITH[position.kind]}
        errors = [lots[each] for each in sorted(lots)]
        for error in errors[: options.errors] if lot(position) % count == number - 1 else ():
            found.append(Trial(position, error, bool(lot(position, error) // 7 % 2)))
    return found


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # without the teardown, in which bindings complain about what a frozen heap still has
    os._exit(code)
