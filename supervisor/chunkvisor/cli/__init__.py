"""The command `chunkvisor`: parses arguments, calls a command, and ends with a message and an exit code.

What a command needs is imported when it is called, so that `--help` is fast.
"""

import atexit
import contextlib
import importlib
import io
import os
import resource
import signal
import sys
from pathlib import Path

import click

from chunkvisor.errors import KEPT, ExitCode, Halt
from chunkvisor.printing import open_standard_streams, say
from chunkvisor.version import __version__

# Commands and the modules of this package that have them, in the groups and the order of `--help`.
_GROUPS = {
    "Daily": {"init": "before", "run": "run", "status": "workdir", "encode": "run"},
    "Before a run": dict.fromkeys(("plan", "doctor", "tune", "drill"), "before"),
    "After a run": {**dict.fromkeys(("verify", "audit", "retry", "report", "clean"), "workdir"), "explain": "before"},
}
_MODULES = {name: module for group in _GROUPS.values() for name, module in group.items()}
# Below it libraries end the process in other words than ours, or a run ends before its report is written.
_LEAST_ADDRESS_SPACE_BYTES = 800 << 20
# Options that people type by habit, and what does the same here.
_INSTEAD = {
    "--resume": "`chunkvisor run CONFIG` continues where the last run ended.",
    "--force": "`chunkvisor run CONFIG --from-scratch` starts over.",
    "--update": "`chunkvisor run CONFIG --update` encodes only texts that have no vector yet; it needs a config.",
    "--dry-run": "`chunkvisor plan CONFIG` shows what a run would do.",
    "--limit": "`chunkvisor run CONFIG --max-rows N` tries the first rows.",
    "--slice": "give each source file, or each `where: id % 8 = 3`, to a job with its own workdir.",
    "--batch-size": "`--set encode.batch_size=N` sets it for this run.",
    "--device": "`--set device=cuda:0` sets it for this run.",
}


class _LazyGroup(click.Group):
    """Imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in _MODULES:
            return None
        command: click.Command = getattr(importlib.import_module(f"chunkvisor.cli.{_MODULES[cmd_name]}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their groups."""
        for head, names in _GROUPS.items():
            with formatter.section(head):
                found = [(name, command) for name in names if (command := self.get_command(ctx, name)) is not None]
                formatter.write_dl([(name, command.get_short_help_str(80)) for name, command in found])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, which would only suggest commands that have been imported."""
        name = args[0]
        if name == "completion":
            does_it = 'eval "$(_CHUNKVISOR_COMPLETE=bash_source chunkvisor)" does it (zsh_source, fish_source).'
            raise click.UsageError(f"completion is gone: {does_it}", ctx)
        if name not in _MODULES and not name.startswith("-") and not ctx.resilient_parsing:
            from chunkvisor.units import did_you_mean

            raise click.UsageError(f"there is no command {name}; {did_you_mean(name, _MODULES)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="chunkvisor")
def cli() -> None:
    """Embed the texts of large files, and survive CUDA faults, crashes and power cuts.

    The same command continues after any stop. Each command prints its options with --help.
    """


def main() -> None:
    """Run the command: a Halt becomes its words on stderr and its exit code; a bug keeps its traceback."""
    open_standard_streams()
    # Nothing is multiplied here: numpy's idle threads are to sleep, as those of workers (`engine.process`).
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")
    # The code is decided when the interpreter is torn down: a signal that comes then must not replace it.
    for number in (signal.SIGINT, signal.SIGTERM):
        atexit.register(signal.signal, number, signal.SIG_IGN)
    with contextlib.suppress(ValueError):  # not the main thread
        # As an exception, so that children are ended and temporary folders are removed.
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(int(ExitCode.TERMINATED)))
    try:
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
        if 0 < limit_bytes < _LEAST_ADDRESS_SPACE_BYTES:
            what = (
                f"`ulimit -v` allows a process {limit_bytes / (1 << 20):.1f} MiB of address space, which is too little"
            )
            raise Halt(ExitCode.MACHINE, what, remedy="Run `ulimit -v unlimited`, then the same command again.")
        if not Path("/proc/self/stat").exists():
            raise Halt(ExitCode.MACHINE, "/proc is not mounted", remedy="Mount it: mount -t proc proc /proc")
        cli.main(prog_name="chunkvisor", standalone_mode=False)
    except Halt as halt:
        _end(halt)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and (instead := _INSTEAD.get(error.option_name)):
            error = click.UsageError(f"there is no option {error.option_name}: {instead}", error.ctx)
        words = io.StringIO()
        error.show(words)
        say(words.getvalue().rstrip("\n"), err=True)  # it repeats what was typed, which may steer a terminal
        sys.exit(int(ExitCode.USAGE))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(int(ExitCode.INTERRUPTED))
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except MemoryError:
        from chunkvisor.store.disk import memory_halt

        short = memory_halt()
        short.remedy = short.remedy.replace(KEPT, "")
        _end(short)
    except OSError as error:
        from chunkvisor.printing import unwritten
        from chunkvisor.store.disk import DISK_ERRNOS, refusal

        # click prints the help by itself: an error without a file is then one of standard output.
        unshown = error.filename is None and error.errno in DISK_ERRNOS
        words_of = unwritten(error) if unshown else refusal(error, Path())
        if words_of is None:
            raise
        _end(words_of)


def _end(halt: Halt) -> None:
    """Say the final message of a command on stderr, and exit with its code."""
    for line in halt.lines():
        headline = line == halt.what
        say(f"chunkvisor: {line}" if headline else f"  {line}", err=True, indent=7, red=headline)
    sys.exit(int(halt.code))
