"""`chunkvisor drill`: the fire drill."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import click

from chunkvisor.cli.parameters import config_argument, set_option
from chunkvisor.errors import ExitCode, Halt


def _complete_fault(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from chunkvisor.commands.drill.faults import FAULTS

    return [fault.name for fault in FAULTS if fault.name.startswith(incomplete)]


@click.command("drill")
@config_argument()
@click.option(
    "--fault",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this fault; may be given more than once.",
    shell_complete=_complete_fault,
)
@set_option("Override a key, e.g. device=cpu.")
@click.option("--keep", is_flag=True, help="Keep the scratch folder, and say where it is.")
@click.option("--json", "as_json", is_flag=True, help="For programs: plain numbers, seconds.")
def command(config: Path, names: tuple[str, ...], overrides: tuple[str, ...], keep: bool, as_json: bool) -> None:
    r"""Provoke each fault here, and show that the run recovers. It takes CONFIG's model and a few rows.

    \b
    Example: chunkvisor drill embeddings.yaml --fault segfault --fault oom
    """
    from chunkvisor.commands.drill import report
    from chunkvisor.commands.drill.drill import Drill
    from chunkvisor.commands.drill.faults import choose
    from chunkvisor.commands.drill.scratch import Scratch
    from chunkvisor.config.load import load

    faults, loaded = choose(names), load(config, overrides)
    folder = Path(tempfile.mkdtemp(prefix=".chunkvisor-drill-", dir=_beside(loaded.config.workdir)))
    findings = []
    try:
        drill = Drill(Scratch(loaded, folder))
        click.echo(f"one undisturbed run, then {len(faults)} with a fault each, in {folder}", err=True)
        drill.prepare()
        click.echo(report.header(), err=as_json)
        for fault in faults:
            findings.append(drill.provoke(fault))
            click.echo(report.row(findings[-1]), err=as_json)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        click.echo(json.dumps(report.to_json(findings), indent=2))
    click.echo(report.summary(findings), err=as_json)
    if keep:
        click.echo(f"kept: {folder}", err=True)
    failed = [each for each in findings if each.problem and each.provoked != "skipped"]
    if failed:
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"the run did not recover from: {', '.join(each.fault for each in failed)}",
            why=failed[0].problem,
            remedy=f"see what happened: chunkvisor drill {config} --fault {failed[0].fault} --keep",
        )


def _beside(workdir: Path) -> Path | None:
    """The folder of the workdir, so that a drill meets the same disk; None = TMPDIR."""
    return workdir.parent if os.access(workdir.parent, os.W_OK) else None
