"""The commands that encode: `run` and `encode`, and what to type to continue."""

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkvisor.cli.parameters import (
    PATH,
    command,
    config_argument,
    flag,
    log_format,
    part_option,
    quiet,
    rows_option,
    set_option,
    stop_after,
    text_option,
)
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.printing import confirmed, is_terminal
from chunkvisor_worker.contract.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkvisor.config.load import RowChoice
    from chunkvisor.show.lines import Observer


def typed_command() -> str:
    """Return the command as it was typed, and `cd` to the folder in which it was.

    Secrets are left out, and the options that would discard finished work.
    """
    from chunkvisor.config.load import without_secret

    words = list[str]()
    for word in sys.argv[1:]:
        if words and words[-1] == "--set":
            words.append(without_secret(word))
        elif word.startswith("--set="):
            words.append(f"--set={without_secret(word[6:])}")
        elif word not in ("--from-scratch", "--yes"):
            words.append(word)
    command = command_line(*words)
    with contextlib.suppress(OSError):  # the folder is gone
        command = f"cd {shlex.quote(str(Path.cwd()))} && {command}"
    return masked(command)


def command_line(*arguments: str) -> str:
    """Return a command of chunkvisor that works in this shell.

    It starts with the path of this program, which may not be on PATH.
    """
    program = [sys.argv[0]]
    if Path(sys.argv[0]).name != "chunkvisor":
        program = [sys.executable, "-m", "chunkvisor"]
    return shlex.join([*program, *arguments])


def _say_how_to_continue(observer: "Observer", workdir: Path) -> None:
    """Print the last lines of a run that has encoded something and is not complete."""
    observer.say(f"how far it is: {command_line('status', str(workdir))}")
    observer.say(f"the command, to run it again: {typed_command()}")


@command(
    "encode",
    "articles.csv --column title --model sentence-transformers/all-MiniLM-L6-v2 -o titles.npy",
)
@click.argument("source", type=click.Path())
@click.option(
    "--model",
    required=True,
    metavar="NAME",
    help="Hub id of the model (downloaded once), or local folder.",
)
@click.option("-o", "--out", required=True, type=PATH, help="The file to make, OUT.npy.")
@text_option("--column", "NAME", "Column whose text is encoded; not needed for .txt.")
@text_option("--template", "TEXT", 'Text with columns in braces, such as "{title}: {body}".')
@text_option("--sql", "EXPRESSION", "SQL expression over the columns, in DuckDB's dialect.")
@click.option(
    "--device",
    metavar="DEVICE",
    default="cuda",
    help="cuda (default), cuda:N, cpu, or cuda:0,cuda:1.",
)
@text_option("--dtype", "NAME", "Type of the model's weights: auto, float32, float16 or bfloat16.")
@text_option("--revision", "NAME", "Branch, tag or commit of the model on the hub.")
@text_option("--max-length", "TOKENS", "Cut longer texts; by default at the model's own limit.")
@text_option("--batch-size", "N", "Texts in a batch, at most; by default it is automatic.")
@text_option("--batch-tokens", "N", "Tokens in a batch, padding included, at most.")
@text_option("--chunk-size", "N", "Texts that one worker process encodes; equal texts count once.")
@flag("--normalize", help="Scale every vector to length 1.")
@text_option("--prompt", "TEXT", "Text to put before every text.")
@text_option("--prompt-name", "NAME", "One of the model's own prompts.")
@text_option("--encoder", "MODULE:FACTORY", "A plug-in encoder instead of sentence-transformers.")
@set_option
@click.option(
    "--workdir",
    type=PATH,
    help="For work in progress; default: OUT.npy.chunkvisor.",
)
@flag("--keep", help="Keep the workdir at the end, which is removed by default.")
@flag("--from-scratch", help="Discard work in progress, and replace OUT.npy.")
@stop_after
@quiet
@log_format
def encode(
    source: str, out: Path, workdir: Path | None, overrides: tuple[str, ...], **options: Any
) -> None:
    """Embed the texts of one file, SOURCE, into OUT.npy.

    Run the same command again to continue after any stop. OUT.json, next to OUT.npy, names the
    model, its revision, the versions, and the rows that have no vector.
    """
    from chunkvisor.commands import onefile
    from chunkvisor.config.load import in_sections
    from chunkvisor.supervise.resources import Request

    if out.suffix != ".npy":
        raise click.UsageError(f"-o {out}: the name must end in .npy")
    # Only what was given: the config knows the defaults, and says what is wrong.
    given = {name: value for name, value in options.items() if value is not None}
    text = {name: given[name] for name in ("column", "template", "sql") if name in given}
    out = out.absolute()
    keep = given["keep"]
    place = workdir.absolute() if workdir else out.with_name(f"{out.name}.chunkvisor")
    values: dict[str, Any] = {
        **in_sections({**given, "name": given["model"]}),
        "workdir": str(place),
        "chunk": {"keep": keep},
        "device": given["device"].split(",") if "," in given["device"] else given["device"],
        "outputs": {onefile.OUTPUT: {"source": source, **text}},
    }
    if "chunk_size" in given:
        values["chunk"]["size"] = given["chunk_size"]
    with _view_of_run(given["quiet"], given["log_format"]) as observer:
        loaded = onefile.config_of_call(values, overrides)
        request = Request(
            loaded,
            from_scratch=given["from_scratch"],
            stop_after_s=options["stop_after_s"],
            typed=typed_command(),
        )
        try:
            code = onefile.encode_file(request, out, observer, keep=keep)
        except Halt:
            if given["log_format"] == "text" and observer.state.attempts:
                _say_how_to_continue(observer, place)
            raise
    sys.exit(int(code))


@command("run", "embeddings.yaml --set device=cuda:1")
@config_argument
@set_option
@rows_option(help="Try N rows of every output, in WORKDIR-first-N.")
@part_option
@flag("--update", help="Accept changed sources, and encode only texts that have no vector yet.")
@flag("--from-scratch", help="Start over; complete new results replace the earlier ones.")
@flag("--yes", help="With --from-scratch: do not ask first.")
@stop_after
@quiet
@log_format
def run(config: Path, overrides: tuple[str, ...], rows: "RowChoice", **given: Any) -> None:
    """Embed the texts described by CONFIG.

    Run the same command again to continue after a stop, a crash, a kill or a power cut. Ctrl-C
    finishes the chunks in progress, a second Ctrl-C stops at once. The exit code is 0 if all is
    complete, 3 if some rows have no vector, and 75 if running it again will help.
    """
    from chunkvisor.config.load import load
    from chunkvisor.show.lines import next_steps
    from chunkvisor.supervise.resources import Request
    from chunkvisor.supervise.session import run as run_session

    update = given["update"]
    from_scratch = given["from_scratch"]
    if update and from_scratch:
        raise click.UsageError(
            "--update cannot be combined with --from-scratch, which discards what --update keeps."
        )
    with _view_of_run(given["quiet"], given["log_format"]) as observer:
        loaded = load(config, overrides).of_rows(rows)
        workdir = loaded.config.workdir
        question = (
            f"Discard everything done so far for {', '.join(loaded.config.outputs)} in {workdir}?"
        )
        if from_scratch and not given["yes"] and is_terminal(sys.stdin) and not confirmed(question):
            raise click.Abort
        request = Request(
            loaded,
            rows,
            from_scratch,
            update,
            stop_after_s=given["stop_after_s"],
            typed=typed_command(),
        )
        code = ExitCode.BUG
        try:
            code = run_session(request, observer)
        except Halt as halt:
            code = halt.code
            raise
        finally:
            if given["log_format"] == "text":
                for line in next_steps(loaded, rows, observer.state, code):
                    observer.say(line)
                if observer.state.attempts and code not in (ExitCode.COMPLETE, ExitCode.BUG):
                    _say_how_to_continue(observer, workdir)
    sys.exit(int(code))


@contextlib.contextmanager
def _view_of_run(quiet: bool, log_format: str) -> "Iterator[Observer]":
    """Yield what shows a run: the live view, lines, or JSON.

    With JSON, a Halt is printed as an object here, and ends the program.
    """
    from chunkvisor.events.event import Halted, Weight
    from chunkvisor.show.lines import Console, JsonLines, Observers, can_draw

    least = Weight.LOSS if quiet else Weight.NEWS
    if log_format == "json":
        lines = JsonLines(least)
        try:
            yield lines
        except Halt as halt:
            if lines.state.ending is None:  # a run that has begun reports its end itself
                lines.event(Halted(**halt.details()))
            sys.exit(int(halt.code))
    elif least is Weight.NEWS and can_draw(sys.stderr):
        from chunkvisor.show.terminal import Live  # late: it imports rich

        yield Observers(guarded=[Live(sys.stderr)])
    else:
        yield Console(least=least)
