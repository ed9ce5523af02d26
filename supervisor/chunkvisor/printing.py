"""Print lines so that their text cannot steer a terminal, and a closed stream ends nothing.

All output of the parent goes through this module: a file name, a cell of a source or a message of a
library may hold escape sequences. What people or programs have asked for goes to standard output,
and it is an error if that cannot be written. Standard error only has news, so it may be closed.
"""

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable
from typing import TextIO

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.units import printable
from chunkvisor_worker.contract.secrets import masked

Say = Callable[[str], object]
"""Shows a line, such as the name of a slow step when that begins."""


def print_lines(*lines: object, err: bool = False, red: bool = False) -> bool:
    """Print lines; return False if the other end of the stream is closed.

    `red`: in that color, on a terminal without NO_COLOR (https://no-color.org).
    Raises Halt (74) if standard output cannot be written, such as on a full disk.
    """
    return _print(masked("\n".join(map(str, lines))), err=err, red=red)


def print_json(value: object) -> None:
    """Print a value as JSON, for programs."""
    _print(json.dumps(value, indent=2))


def _print(text: str, *, err: bool = False, red: bool = False) -> bool:
    """Print a text as `print_lines` does, which masks secrets before."""
    stream = sys.stderr if err else sys.stdout
    words = printable(text)
    if red and is_terminal(stream) and not os.environ.get("NO_COLOR"):
        words = f"\x1b[31m{words}\x1b[0m"
    try:
        write(stream, f"{words}\n")
    except OSError as error:
        # The interpreter flushes the stream once more at its end, and would complain.
        _send_to_devnull(stream)
        if err or isinstance(error, BrokenPipeError):
            return False
        raise Halt(
            ExitCode.DISK,
            "standard output cannot be written",
            "Free some space on its disk, or write to another.",
            why=str(error),
        ) from None
    return True


def is_terminal(stream: TextIO | None) -> bool:
    """Say whether the stream is a terminal, which a person may read."""
    return stream is not None and not stream.closed and stream.isatty()


def write(stream: TextIO | None, text: str) -> None:
    """Write text, with question marks for characters that the stream's encoding does not have.

    Raises OSError.
    """
    if stream is None or stream.closed:
        return
    if stream.encoding is not None and stream.errors in (None, "strict"):  # LC_ALL=C has no umlauts
        text = text.encode(stream.encoding, "replace").decode(stream.encoding)
    try:
        stream.write(text)
        stream.flush()
    except ValueError as error:  # of a stream that has been closed meanwhile
        raise OSError(errno.EBADF, str(error)) from None


def confirmed(question: str) -> bool:
    """Ask a question on standard error, and return whether the answer is yes.

    Raises click.Abort at the end of the input.
    """
    import click  # late: `import chunkvisor` is to be light

    return click.confirm(printable(question), err=True)


def open_standard_streams() -> None:
    """Put /dev/null in the place of each standard stream that is closed (`2>&-`).

    Else the next file that is opened, such as the journal, would become standard error, and
    libraries would print into it.
    """
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for all of the process


def _send_to_devnull(stream: TextIO) -> None:
    """Let /dev/null take whatever is still written to the stream."""
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, number)
        os.close(nothing)
