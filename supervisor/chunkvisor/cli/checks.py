"""The commands for the time before a run: `plan`, `doctor`, `drill`."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from chunkvisor.cli.parameters import ROW_COUNT, config_argument, set_option
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.printing import columns_of, say
from chunkvisor.units import counted


def _complete_fault(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from chunkvisor.testing import FAULTS

    return [fault.name for fault in FAULTS if fault.name.startswith(incomplete)]


@click.command("plan")
@config_argument()
@set_option("Override a key, e.g. chunk.size=200.")
@click.option("--max-rows", type=ROW_COUNT, metavar="N", help="Take only the first N rows of every output.")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object, in bytes and seconds.")
def plan(config: Path, overrides: tuple[str, ...], max_rows: int | None, as_json: bool) -> None:
    r"""Dry run: show what a run of CONFIG would do and need.

    It counts rows and tokens, and estimates memory, disk, and time once a speed is known. It uses no GPU and writes
    nothing into the workdir.

    \b
    Example: chunkvisor plan embeddings.yaml --set encode.batch_tokens=8192
    """
    from chunkvisor.commands.planning import draw, survey
    from chunkvisor.config.load import load

    forecast = survey(load(config, overrides), max_rows, _say)
    if as_json:
        say(json.dumps(forecast.to_json(), indent=2))
    else:
        say("\n".join(draw(forecast, blocks=_can_draw(), columns=columns_of(sys.stdout))), indent=11)


@click.command("doctor")
@config_argument(required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs: JSON with `ok`, and an object for each check.")
def doctor(config: Path | None, as_json: bool) -> None:
    r"""Check whether this machine can do the job.

    It says how to repair what is wrong. Without CONFIG it looks at the machine alone; with it also at sources,
    device, folders and model, and a worker encodes a few words.

    \b
    Example: chunkvisor doctor embeddings.yaml
    """
    from chunkvisor.commands.doctor import examine, exit_code, gather, render, to_json

    findings = examine(gather(config, _say))
    if as_json:
        say(json.dumps(to_json(findings), indent=2))
    else:
        say("\n".join(render(findings)), indent=13)
    if code := exit_code(findings):
        sys.exit(int(code))


@click.command("drill")
@config_argument()
@click.option(
    "--fault",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this failure; may be given more than once. The page docs/reference/drill.md lists them.",
    shell_complete=_complete_fault,
)
@set_option("Override a key, e.g. device=cpu.")
@click.option("--keep", is_flag=True, help="Keep the scratch folder, and say where it is.")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object.")
def drill(config: Path, names: tuple[str, ...], overrides: tuple[str, ...], keep: bool, as_json: bool) -> None:
    r"""Fire drill: cause each kind of failure on purpose.

    It shows that a run recovers from each. It works in a scratch folder, with the model of CONFIG and the first rows of
    its first output. Failures that this machine cannot have are simulated, and the table says so. It takes some
    minutes.

    \b
    Example: chunkvisor drill embeddings.yaml --fault segfault --fault oom
    """
    from chunkvisor.commands import drill as drilling
    from chunkvisor.config.load import load

    faults, loaded = drilling.choose(names), load(config, overrides)
    parent = loaded.config.workdir.parent  # so that a drill meets the same disk; None = TMPDIR
    place = parent if os.access(parent, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=".chunkvisor-drill-", dir=place))
    try:
        say(f"one run without a fault, then {counted(len(faults), 'run')} with a fault, in {folder}", err=True)
        findings = drilling.drill(loaded, faults, folder, lambda line: say(line, err=as_json))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        say(json.dumps(drilling.to_json(findings), indent=2))
    failed = [each for each in findings if each.problem]
    say(f"the run recovered from {len(findings) - len(failed)} of {counted(len(findings), 'fault')}", err=as_json)
    if keep:
        say(f"kept: {folder}", err=True)
    if failed:
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"the run did not recover from: {', '.join(each.fault for each in failed)}",
            why=failed[0].problem,
            remedy=f"To see what happened: chunkvisor drill {config} --fault {failed[0].fault} --keep",
        )


def _say(step: str) -> None:
    say(f"{step} …", err=True)


def _can_draw() -> bool:
    try:
        "─█▏".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
