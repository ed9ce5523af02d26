"""Runs a command and kills it with SIGKILL at one call after another, without a hook in the
product.

    python -P -m drivers.kill_at each|chain before|after TEMPLATE SCRATCH TARGET...

A TARGET is a function as `module:name`. A copy of the folder TEMPLATE, with its config.yaml, is run
again and again; each run is killed at the first call of a target that no run before was killed at,
until one comes to its end. With `each`, a copy of what every killed run leaves is also run
undisturbed. One JSON line a run goes to standard output: `folder`, `call` (empty for the last), and
of the run that was not killed `returncode` and `stderr`.

Calls are told apart by their arguments; of keyword arguments only the values of those named in
KILL_AT_KEYS count. The command is that in KILL_AT_COMMAND, in the folder. With KILL_AT_SHARE=3:x
only about a third of the calls are deadly, by a lot that x decides; with KILL_AT_MOST, so many at
most.

Runs are forked from this process, which has imported everything already: hundreds of them take
seconds.
"""

import functools
import importlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import chunkvisor.core.loop
import chunkvisor.judge
import forking
from chunkvisor.cli import main as chunkvisor_main
from chunkvisor.events.event import Event
from drivers.zygote import prepare as prepare_zygote

prepare_zygote("command")
# Pauses that a person does not notice would be most of the time of hundreds of runs.
chunkvisor.judge.BACKOFF_S = 0.01
chunkvisor.core.loop._PAUSE_S = 0.02

SHARE, _, LOT = os.environ.get("KILL_AT_SHARE", "1:").partition(":")
MOST = int(os.environ.get("KILL_AT_MOST", "1000"))
KEYS = frozenset(os.environ.get("KILL_AT_KEYS", "output chunk attempt").split())

Choose = Callable[[str], bool]
"""Whether to die at the call, of which it is told in words."""

one_at_a_time = threading.RLock()
"""Held by the thread whose call was chosen, until it is dead: no other notes its own."""


def arm(targets: list[str], when: str, choose: Choose) -> None:
    """Make every target deadly."""
    for target in targets:
        module_name, _, path = target.partition(":")
        owner: Any = importlib.import_module(module_name)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, deadly(getattr(owner, name), name, when, choose))


def deadly(
    function: Callable[..., Any], name: str, when: str, choose: Choose
) -> Callable[..., Any]:
    """The function, but for the calls that are chosen."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        words = f"{name} {' '.join(map(in_words, (*arguments, *options.items())))}"
        with one_at_a_time:
            if choose(words):
                if when == "after":
                    function(*arguments, **options)
                os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return call


def in_words(argument: object) -> str:
    """The same for the same call of every run: a descriptor by its file, an object by its kind."""
    if isinstance(argument, int) and Path(f"/proc/self/fd/{argument}").exists():
        argument = Path(f"/proc/self/fd/{argument}").readlink()
    if isinstance(argument, tuple) and argument[0] not in KEYS:
        return str(argument[0])
    if isinstance(argument, Event):
        values = asdict(argument)
        return " ".join(
            [argument.name, *(f"{key}={values[key]}" for key in sorted(KEYS & values.keys()))]
        )
    return re.sub(r" object at 0x[0-9a-f]+|(?<=/runs/)\d[^/]+", "", str(argument))


def run(folder: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """The return code, negative for a signal; standard error is in the folder."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        log = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 2)
        os.dup2(log, 1)
        os.chdir(folder)
        sys.argv = ["chunkvisor", *os.environ["KILL_AT_COMMAND"].split()]
        forking.fork_children_of_this_process()
        prepare()
        chunkvisor_main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def sweep(mode: str, when: str, template: Path, scratch: Path, targets: list[str]) -> None:
    """See above."""
    folder = shutil.copytree(template, scratch / "chain", symlinks=True)
    note, seen = folder / "call", set[str]()

    def unseen(words: str) -> bool:
        lot = f"{LOT} {words.replace(str(scratch), '')}"  # the same wherever the folder lies
        if words in seen or len(seen) >= MOST or zlib.crc32(lot.encode()) % int(SHARE):
            return False
        note.write_text(words)
        return True

    while (code := run(folder, lambda: arm(targets, when, unseen))) == -signal.SIGKILL:
        call = note.read_text()
        seen.add(call)
        if mode == "each":
            left = shutil.copytree(folder, scratch / f"{len(seen):03d}", symlinks=True)
            tell(left, call, run(left))
        else:
            tell(folder, call, None)
    tell(folder, "", code)


def tell(folder: Path, call: str, returncode: int | None) -> None:
    """One JSON line."""
    stderr = (folder / "stderr").read_text()
    print(
        json.dumps(
            {"folder": str(folder), "call": call, "returncode": returncode, "stderr": stderr}
        ),
        flush=True,
    )


if __name__ == "__main__":
    mode, when, template, scratch, *targets = sys.argv[1:]
    sweep(mode, when, Path(template), Path(scratch), targets)
