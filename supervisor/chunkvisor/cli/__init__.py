"""The command `chunkvisor`: parses, calls, and turns the end into words and an exit code.

What a command needs is imported when it is called, so that `--help` is fast. May import every other room.
"""

import atexit
import contextlib
import importlib
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TypeVar

import click

from chunkvisor.errors import KEPT, ExitCode, Halt
from chunkvisor.printing import open_standard_streams, say, show_usage, unwritten
from chunkvisor.store.disk import DISK_ERRNOS, memory_halt, refusal
from chunkvisor.units import did_you_mean, human_bytes
from chunkvisor.version import __version__

_Command = TypeVar("_Command", bound=click.Command)

_MODULES = {
    **dict.fromkeys(("run", "encode"), "run"),
    **dict.fromkeys(("plan", "doctor", "drill"), "before"),
    **dict.fromkeys(("status", "report", "verify", "audit"), "workdir"),
    "tune": "before",
    **dict.fromkeys(("retry", "clean"), "workdir"),
    **dict.fromkeys(("init", "explain", "schema"), "before"),
}
"""Command -> the module of this package that has it, in the order of `--help`."""


_MEANT = {
    "--resume": "`chunkvisor run CONFIG` continues by itself where the last run ended.",
    "--continue": "`chunkvisor run CONFIG` continues by itself where the last run ended.",
    "--restart": "`chunkvisor run CONFIG` continues where the last run ended; --from-scratch starts over.",
    "--force": "`chunkvisor run CONFIG --from-scratch` starts over.",
    "--update": "`chunkvisor run CONFIG --update` encodes only texts that have no vector yet; it needs a config.",
    "--dry-run": "`chunkvisor plan CONFIG` shows what a run would do.",
    "--limit": "`chunkvisor run CONFIG --max-rows N` tries the first rows.",
    "--slice": "give each source file, or each `where: id % 8 = 3`, to a job with its own workdir.",
    "--batch-size": "`--set encode.batch_size=N` sets it for this run.",
    "--device": "`--set device=cuda:0` sets it for this run.",
}
"""Options that people type by habit, and what does the same here."""


_LEAST_ADDRESS_SPACE = 800 << 20
"""Below it libraries end the process in words of their own, or a run ends before its report is written."""

_COMPLETION = 'eval "$(_CHUNKVISOR_COMPLETE=bash_source chunkvisor)" does it (zsh_source, fish_source).'


class _LazyGroup(click.Group):
    """Imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in _MODULES:
            return None
        command = getattr(importlib.import_module(f"chunkvisor.cli.{_MODULES[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return _with_marks(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, which would only suggest commands that have been imported."""
        name = args[0]
        if name == "completion":
            raise click.UsageError(f"completion is gone: {_COMPLETION}", ctx)
        if name not in _MODULES and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"there is no command {name}; {did_you_mean(name, _MODULES)}", ctx)
        return super().resolve_command(ctx, args)


def _with_marks(command: _Command) -> _Command:
    r"""Turn the two characters \b of a raw docstring into the one that click takes for "do not rewrap"."""
    command.help = (command.help or "").replace("\\b", "\b")
    return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="chunkvisor")
def cli() -> None:
    r"""Embed the texts of large files, and finish the job, whatever happens on the way.

    \b
    chunkvisor init               write a starter config
    chunkvisor run config.yaml    do the job; run it again after any stop, and it continues
    chunkvisor status WORKDIR     how far it is
    """


_with_marks(cli)


def main() -> None:
    """The entry point: a Halt becomes its words on stderr and its exit code; a bug keeps its traceback."""
    open_standard_streams()
    # Nothing is multiplied here: numpy's idle threads are to sleep, as those of workers (`engine.environment`).
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")
    # The code is decided when the interpreter is torn down: a signal that comes then must not replace it.
    atexit.register(_ignore_signals)
    with contextlib.suppress(ValueError):  # not the main thread
        # As an exception, so that children are ended and temporary folders are removed.
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(int(ExitCode.TERMINATED)))
    try:
        # As with `python -c`: where that folder was removed, imports on Python 3.13 raise SystemError.
        if "" in sys.path:
            Path.cwd()
        _refuse_machine()
        cli.main(prog_name="chunkvisor", standalone_mode=False)
    except Halt as halt:
        show(halt)
        sys.exit(int(halt.code))
    except click.ClickException as error:
        show_usage(_with_what_was_meant(error))
        sys.exit(int(ExitCode.USAGE))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(int(ExitCode.INTERRUPTED))
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except MemoryError:
        short = memory_halt()
        short.remedy = short.remedy.replace(KEPT, "")
        show(short)
        sys.exit(int(short.code))
    except OSError as error:
        # click prints the help by itself: an error without a file is then one of standard output.
        unshown = error.filename is None and error.errno in DISK_ERRNOS
        words = unwritten(error) if unshown else refusal(error, Path())
        if words is None:
            raise
        show(words)
        sys.exit(int(words.code))


def _refuse_machine() -> None:
    """Raise Halt (69) where not even the command itself can work."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESS_SPACE:
        raise Halt(
            ExitCode.MACHINE,
            "there is not enough memory for the command itself",
            why=f"`ulimit -v` allows a process {human_bytes(limit)} of address space; the command needs "
            f"{human_bytes(_LEAST_ADDRESS_SPACE)}, and a worker with a model several times that",
            remedy="raise the limit (ulimit -v unlimited); then run the same command again",
        )
    if not Path("/proc/self/stat").exists():
        raise Halt(
            ExitCode.MACHINE,
            "/proc is not mounted",
            why="processes and memory are looked up there",
            remedy="mount it (mount -t proc proc /proc), or start the container with it; then run the same command "
            "again",
        )


def _with_what_was_meant(error: click.ClickException) -> click.ClickException:
    if isinstance(error, click.NoSuchOption) and (meant := _MEANT.get(error.option_name)):
        return click.UsageError(f"There is no option {error.option_name}: {meant}", error.ctx)
    if isinstance(error, click.MissingParameter):
        from chunkvisor.cli.parameters import with_what_is_here

        return with_what_is_here(error)
    return error


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def show(halt: Halt) -> None:
    """The final message of a command, on stderr."""
    for line in halt.lines():
        say(f"chunkvisor: {line}" if line == halt.what else f"  {line}", err=True, indent=7)
