"""The command `chunkvisor`: parses arguments, calls a command, and ends with an exit code.

A command imports what it needs when it is called, so that `--help` is fast.
"""

import atexit
import contextlib
import io
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

import click

from chunkvisor.cli import before, run, workdir
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.printing import open_standard_streams, print_lines
from chunkvisor.version import __version__

_SECTIONS = {
    "Daily": (before.init, run.run, workdir.status, run.encode),
    "Before a job": (before.plan, before.doctor, before.tune, before.drill),
    "After it": (
        workdir.verify,
        workdir.audit,
        workdir.retry,
        workdir.report,
        workdir.clean,
        before.explain,
    ),
}


class _InSections(click.Group):
    """Lists the commands under headings: daily, before a job, after it."""

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click passes it
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the headings and the commands below them."""
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(str(each.name), each.get_short_help_str(70)) for each in commands]
                )


@click.group(cls=_InSections, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="chunkvisor")
def cli() -> None:
    """Embed the texts of large files, and survive CUDA faults, crashes and power cuts.

    The same command continues after any stop. Each command prints its options with --help.
    """


for _commands in _SECTIONS.values():
    for _command in _commands:
        cli.add_command(_command)


def main() -> None:
    """Run the command; a Halt becomes its message on stderr and its exit code.

    An unknown exception is a bug of ours, and keeps its traceback.
    """
    open_standard_streams()
    sys.excepthook = lambda _kind, error, _trace: print_lines(
        "".join(traceback.format_exception(error)).rstrip(), err=True
    )
    if sys.platform != "linux":
        what = f"chunkvisor needs Linux, and this is {sys.platform}"
        _end(Halt(ExitCode.MACHINE, what, "On Windows use WSL2, on a Mac a container."))
    # An idle thread of numpy's OpenBLAS spins before it sleeps, here and in workers: for 45 ms by
    # default, for 0.1 ms with this (2**18 cycles).
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")
    # While the interpreter exits, a signal must not replace the exit code.
    for number in (signal.SIGINT, signal.SIGTERM):
        atexit.register(signal.signal, number, signal.SIG_IGN)
    ends = list[int]()  # exit codes that signals have asked for

    def end(number: int, _frame: FrameType | None) -> None:
        ends.append(128 + number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(int(ExitCode.TERMINATED))

    with contextlib.suppress(ValueError):  # not the main thread
        # SIGTERM becomes an exception, so that children are ended and temporary folders removed.
        signal.signal(signal.SIGTERM, end)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
            signal.signal(signal.SIGINT, end)
    try:
        cli.main(prog_name="chunkvisor", standalone_mode=False)
    except Halt as error:
        _end(error)
    except click.ClickException as error:
        words = io.StringIO()
        error.show(words)
        # By `print_lines`, since it repeats what was typed, which may steer a terminal.
        print_lines(words.getvalue().rstrip("\n"), err=True)
        sys.exit(int(ExitCode.USAGE))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(int(ExitCode.INTERRUPTED))
    except (MemoryError, OSError, ImportError) as error:
        from chunkvisor.store.disk import halt_for, memory_halt

        halt = halt_for(error, Path()) if isinstance(error, OSError) else memory_halt()
        # An ImportError is a bug, unless a library found no memory for its code.
        is_bug = isinstance(error, ImportError) and "failed to map segment" not in str(error)
        if halt is None or is_bug:
            raise
        _end(halt)
    except Exception:
        # While it is imported, pydantic makes its own error of what a signal raises.
        if ends:
            sys.exit(ends[0])
        raise


def _end(halt: Halt) -> None:
    """Print the final message of a command on stderr, and exit with its code."""
    for line in halt.lines():
        headline = line == halt.what
        print_lines(f"chunkvisor: {line}" if headline else f"  {line}", err=True, red=headline)
    sys.exit(int(halt.code))
