"""Everything that is printed goes through here.

Nothing in it steers a terminal, and one that is closed ends nothing.

A file name, a cell of a source or a message of a library may hold escape sequences. What people or
programs have asked for goes to standard output; if that cannot take it, it is an error. Standard
error is only news: it may be gone.
"""

import contextlib
import errno
import json
import os
import sys
from typing import TextIO

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.units import printable


def print_lines(*lines: object, err: bool = False, red: bool = False) -> bool:
    """Print lines; return False if their reader is gone.

    `red`: in that color, on a terminal without NO_COLOR (https://no-color.org).
    Raises Halt (74) if standard output cannot take it, such as on a full disk.
    """
    stream = sys.stderr if err else sys.stdout
    words = printable("\n".join(map(str, lines)))
    if red and is_terminal(stream) and not os.environ.get("NO_COLOR"):
        words = f"\x1b[31m{words}\x1b[0m"
    try:
        write(stream, f"{words}\n")
    except OSError as error:
        if not err and not isinstance(error, BrokenPipeError):
            raise _unwritable_output(error) from None
        _send_to_devnull(
            stream
        )  # the interpreter would flush it once more at its end, and complain
        return False
    return True


def print_json(value: object) -> None:
    """Print a value for programs."""
    print_lines(json.dumps(value, indent=2))


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person may be at the other end."""
    return stream is not None and not stream.closed and stream.isatty()


def _unwritable_output(error: OSError) -> Halt:
    """Return the end of a command whose output cannot be written; it is not tried again."""
    _send_to_devnull(sys.stdout)
    return Halt(
        ExitCode.DISK,
        "standard output cannot be written",
        "free some space on the target disk",
        why=str(error),
    )


def write(stream: TextIO | None, text: str) -> None:
    """Write harmless text, with question marks for what the stream cannot take.

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
    """Ask a person for a yes or a no on standard error.

    Raises click.Abort for an end of the input.
    """
    import click  # late: `import chunkvisor` is to be light

    return click.confirm(printable(question), err=True)


def open_standard_streams() -> None:
    """Put /dev/null in the place of a standard stream that is closed (`2>&-`).

    Else the next file that is opened, a journal say, would be standard error, and get what
    libraries print.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for all of the process


def _send_to_devnull(stream: TextIO | None) -> None:
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, number)
        os.close(nothing)
