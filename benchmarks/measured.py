"""Runs a command and notes what it took.

Wall and processor time, and the most memory it and its children held.

It never takes part in the work, and looks at /proc ten times a second.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

CHUNKVISOR = [sys.executable, "-c", "from chunkvisor.cli import main; main()"]
_LOOK_S = 0.1


class FailedError(SystemExit):
    """A command that had to succeed; the message has the end of what it said."""


@dataclass
class Measured:
    """One command, over or under way."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    """Of the process itself, without its children."""
    peak_bytes: int = 0
    """The most resident memory of the process itself (VmHWM)."""
    children: dict[str, int] = field(default_factory=dict)
    """The same of its children, by the name of their module."""
    used_s: float = 0.0
    """Processor time of the process and of all children that it has waited for."""
    code: int | None = None

    def look(self, process: psutil.Process) -> None:
        """Take a reading."""
        try:
            times = process.cpu_times()
            self.cpu_s = times.user + times.system
            self.peak_bytes = max(self.peak_bytes, _peak(process.pid))
            for child in process.children():
                name = _module(child.cmdline())
                self.children[name] = max(self.children.get(name, 0), _peak(child.pid))
        except (psutil.Error, OSError):
            return


def measure(
    arguments: list[str],
    folder: Path,
    *,
    on_look: Callable[[subprocess.Popen[bytes], Measured], None] | None = None,
) -> Measured:
    """Run `chunkvisor` with the arguments; `on_look` may signal it.

    What it says goes to `last.log` in the folder.
    """
    found = Measured()
    start_s, before_s = time.perf_counter(), _children_s()
    with open(folder / "last.log", "wb") as log:
        process = subprocess.Popen([*CHUNKVISOR, *arguments], cwd=folder, stdout=log, stderr=log)
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            found.look(watched)
            if on_look is not None:
                on_look(process, found)
            try:
                process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                continue
    found.seconds, found.used_s = time.perf_counter() - start_s, _children_s() - before_s
    found.code = process.returncode
    return found


def succeed(arguments: list[str], folder: Path) -> Measured:
    """As `measure`, of a command that has to end with 0."""
    found = measure(arguments, folder)
    if found.code:
        raise SystemExit(
            f"chunkvisor {' '.join(arguments)} ended with "
            f"{found.code}:\n{_end(folder / 'last.log')}"
        )
    return found


def took(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Measured:
    """Wall and processor time of any command, which nobody looks at meanwhile.

    Raises FailedError where it fails.
    """
    start_s, before_s = time.perf_counter(), _children_s()
    env = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    found = Measured(
        time.perf_counter() - start_s, used_s=_children_s() - before_s, code=done.returncode
    )
    if done.returncode:
        raise FailedError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}"
        )
    return found


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _peak(pid: int) -> int:
    with open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def _module(command: list[str]) -> str:
    return command[command.index("-m") + 1] if "-m" in command[:-1] else "other"


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
