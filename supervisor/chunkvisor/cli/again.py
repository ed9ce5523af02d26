"""The command that was typed, to be typed again by whoever reads of it somewhere else: in a log, a notice, a status."""

import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.show.lines import Afterwards

_DISCARDING = ("--from-scratch", "--yes")


def typed() -> str:
    """What was typed, and where: without secrets, and without what would discard all that is done."""
    from chunkvisor.config.givenvalues import without_secret

    words = list[str]()
    for word in sys.argv[1:]:
        if words and words[-1] == "--set":
            words.append(without_secret(word))
        elif word.startswith("--set="):
            words.append(f"--set={without_secret(word[6:])}")
        elif word not in _DISCARDING:
            words.append(word)
    command = command_line(*words)
    with contextlib.suppress(OSError):  # the folder is gone
        command = f"cd {shlex.quote(str(Path.cwd()))} && {command}"
    return command


def command_line(*arguments: str) -> str:
    """A command of chunkvisor, called as this one: outside of our virtual environment no shell may know the name."""
    called = Path(sys.argv[0])
    program: Sequence[str] = [sys.argv[0]]
    if called.name in ("__main__.py", "-c", ""):  # python -m chunkvisor
        program = [sys.executable, "-m", "chunkvisor"]
    elif os.sep in sys.argv[0]:
        program = [str(called.absolute())]
    return shlex.join([*program, *arguments])


def tell_how_to_go_on(afterwards: Afterwards, end: Halt, workdir: Path, *, of_config: bool) -> None:
    """The last lines of a run that has come to begin, and is not complete; `of_config`: it has a config in a file."""
    if not afterwards.began or end.code is ExitCode.BUG:
        return
    # Whoever was refused before a worker began has just typed it, and may have to type it otherwise.
    elsewhere = of_config and " --" not in end.remedy and not any(word.startswith("--set") for word in sys.argv)
    if end.code is ExitCode.CONFIG and not afterwards.worked and not elsewhere:
        return
    if afterwards.worked and end.code is not ExitCode.QUARANTINED:
        afterwards.tell(f"how far it is: {command_line('status', str(workdir))}")
    afterwards.tell(f"the command, to run it again: {typed()}")
