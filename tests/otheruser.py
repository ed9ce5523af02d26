"""Commands of a second user of the machine, where the tests run as root, who alone can be two.

Where the interpreter or the checkout lies in a folder of root's alone (/root, say), the other user
sees it all the same: his commands have mounts of their own, in which that folder is an empty one
with nothing but ours in it. Nothing is copied, and outside of those commands nothing changes.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from harness import ROOT, Ended, finish

OTHER = 65534
"""nobody, on every system."""

_NEEDED = (Path(sys.base_prefix), Path(sys.prefix), ROOT)
"""What he has to read to run us."""


def run_as_other(command: Sequence[str], scratch: Path) -> Ended:
    """A command of the other user, in a folder of nobody's; `scratch` is an empty folder of ours."""
    process = subprocess.Popen(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            _script(scratch),
            "sh",
            *command,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd="/",
        env={**os.environ, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return finish(process)


def why_not(scratch: Path) -> str:
    """Why no command of the other user can be run here; empty where one can."""
    if os.geteuid() != 0:
        return "only root can act for two users"
    try:
        ended = run_as_other(
            [sys.executable, "-c", "import chunkvisor.cli, duckdb, xxhash"], scratch
        )
    except OSError as error:
        return f"{error.filename} is not there: {error.strerror}"
    said = (ended.stderr.splitlines() or [""])[-1]
    return (
        f"another user cannot run this interpreter and this checkout: {said}"
        if ended.returncode
        else ""
    )


def _script(scratch: Path) -> str:
    """For a shell in a namespace of mounts of its own; its arguments are the command."""
    hidden = [path for path in dict.fromkeys(_NEEDED) if closed_above(path) is not None]
    lines = ["umask 022"]
    for number, path in enumerate(hidden):
        aside = quote(str(scratch / str(number)))
        lines += [f"mkdir -p {aside}", f"mount --bind {quote(str(path))} {aside}"]
    lines += [
        f"mount -t tmpfs -o mode=755 none {quote(str(each))}"
        for each in {*map(closed_above, hidden)}
    ]
    for number, path in enumerate(hidden):
        lines += [
            f"mkdir -p {quote(str(path))}",
            f"mount --bind {quote(str(scratch / str(number)))} {quote(str(path))}",
        ]
    return "\n".join([*lines, f'exec setpriv --reuid {OTHER} --regid {OTHER} --clear-groups "$@"'])


def closed_above(path: Path) -> Path | None:
    """The topmost folder above it that others may not enter."""
    return next(
        (folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None
    )
