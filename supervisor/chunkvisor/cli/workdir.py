"""The commands that take a WORKDIR: `status`, `report`, `verify`, `audit`, `retry`, `clean`."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkvisor.cli.parameters import ROW_COUNT, config_argument, workdir_argument
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.printing import say
from chunkvisor.units import counted

if TYPE_CHECKING:
    from chunkvisor.commands.audit import Audit


_SHOWN = 20


@click.command("audit")
@config_argument()
@click.option(
    "--rows", type=ROW_COUNT, metavar="N", default=200, show_default=True, help="Rows of each output to encode again."
)
@click.option(
    "--device",
    metavar="DEVICE",
    default="cpu",
    show_default=True,
    help="Where to encode them: cpu, cuda or cuda:N.",
)
@click.option(
    "--write-expect",
    "expect",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write up to 10 of the rows, text and vector in float32, to a new FILE for model.expect.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs: JSON with every row that was looked at.")
def audit(config: Path, rows: int, device: str, expect: Path | None, as_json: bool) -> None:
    r"""Encode some finished rows of CONFIG again, and compare.

    It finds vectors that are wrong. Each row is encoded alone, in float32 and in a new process. Vectors that differ by
    more than rounding are named, and the exit code is 3. You may give the workdir instead of CONFIG, except
    with a plug-in encoder, which is looked for next to the config.

    \b
    Example: chunkvisor audit embeddings.yaml --rows 500
    """
    from chunkvisor.commands.audit import audit as audits_of
    from chunkvisor.commands.audit import write_expect
    from chunkvisor.config.load import load
    from chunkvisor.config.model import encode_spec
    from chunkvisor.devices.gpu import find_devices
    from chunkvisor.engine.trial import Conditions, environment_of

    loaded = load(config) if config.is_file() else None
    chosen = find_devices([device])[0]
    environment = environment_of(os.environ, [chosen], loaded.config.env if loaded else {})
    conditions = Conditions(chosen.kind, environment, (str(loaded.folder),) if loaded else ())
    workdir = loaded.config.workdir if loaded else config
    found = []
    for each in audits_of(workdir, rows, conditions, lambda: None):
        found.append(each)
        if not as_json:
            say("\n".join(_lines(each)))
    if as_json:
        say(json.dumps({"outputs": [each.to_json() for each in found]}, indent=2))
    differing = sum(len(each.differing) for each in found)
    if differing:
        raise Halt(
            ExitCode.QUARANTINED,
            f"{differing:,} of {sum(len(each.rows) for each in found):,} vectors differ from those computed now",
            why=_why(found),
            remedy="encode the outputs again: chunkvisor run CONFIG --from-scratch; if they differ again, run "
            "`chunkvisor doctor CONFIG` and compare with --device cpu and --device cuda",
        )
    if expect is not None:
        count = write_expect(expect.absolute(), found, encode_spec(loaded.config.encode) if loaded else None)
        say(f"{expect}: {counted(count, 'text')} with the vectors that the model gives now", err=as_json)


def _lines(audit: "Audit") -> list[str]:
    worst = max((row.difference for row in audit.rows), default=0.0)
    least = min((row.cosine for row in audit.rows), default=1.0)
    lines = [
        f"{audit.output}: {len(audit.rows):,} rows encoded again; {len(audit.differing):,} differ by more than "
        f"{audit.allowed:g} of their length (weights in {audit.dtype or 'an unknown dtype'}); "
        f"largest difference {worst:.2g}, least cosine {least:.5f}"
    ]
    if audit.note:
        lines.append(f"  note: {audit.note}")
    for row in audit.differing[:_SHOWN]:
        lines.append(f"  row {row.row:,} ({row.place}): difference {row.difference:.2g}, cosine {row.cosine:.5f}")
    if len(audit.differing) > _SHOWN:
        lines.append(f"  and {len(audit.differing) - _SHOWN:,} more; --json lists them all")
    return lines


def _why(found: "list[Audit]") -> str:
    notes = [audit.note for audit in found if audit.note]
    return "; ".join(notes) or "the model, its padding or the hardware gave other values during the run"


_FEW = 3
"""Files that are named where they are as they were written."""


@click.command("status")
@workdir_argument()
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object, in seconds and rows.")
@click.option(
    "--watch",
    is_flag=True,
    help="Follow the run until it ends, or wait for one to begin; with --json, a line for each change.",
)
def status(workdir: Path, as_json: bool, watch: bool) -> None:
    r"""Show how far the run in WORKDIR is.

    It works during a run and after it. You may give the config instead of WORKDIR.

    \b
    Example: chunkvisor status --watch cache/embeddings
    """
    from chunkvisor.show.status import State, screen_of
    from chunkvisor.store.layout import Layout

    if watch:
        from chunkvisor.show.terminal import watch_json, watch_view

        try:
            (watch_json if as_json else watch_view)(workdir)
        except KeyboardInterrupt:
            return  # the person has seen enough; the run goes on
        if as_json:
            return
    found, lines = screen_of(workdir)
    if as_json:
        say(json.dumps(found.to_json(), indent=2))
        return
    say("\n".join(lines), indent=4)
    if found.state is not State.RUNNING and Layout(workdir).report.is_file():
        say(f"  how the run went: {Layout(workdir).report}")


@click.command("report")
@workdir_argument()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file; WORKDIR/report.html without -o."
)
def report(workdir: Path, output: Path | None) -> None:
    r"""Write a report about the run in WORKDIR, as one HTML page.

    The page has plots and needs no network. It can be written during a run. You may give the config instead of
    WORKDIR.

    \b
    Example: chunkvisor report cache/embeddings -o night.html
    """
    from chunkvisor.show.report import write_report
    from chunkvisor.store.layout import Layout

    path = output if output is not None else Layout(workdir).report
    try:
        write_report(workdir, path)
    except OSError as error:
        remedy = "name another place: chunkvisor report WORKDIR -o FILE.html"
        raise Halt(ExitCode.DISK, f"the report {path} cannot be written", why=str(error), remedy=remedy) from None
    say(path)


@click.command("verify")
@workdir_argument()
@click.option(
    "--json", "as_json", is_flag=True, help="For programs: JSON with how many files, what is damaged, what is missing."
)
def verify(workdir: Path, as_json: bool) -> None:
    r"""Check that the files in WORKDIR are as they were written.

    It checks shape, dtype and digest, and that all numbers are finite and no vector is zero. It also says which outputs
    are not complete yet; that alone does not change the exit code, which is 0 where all files are as they were written,
    and 74 where one is not. You may give the config instead of WORKDIR, or a final file such as OUT.npy.

    \b
    Example: chunkvisor verify cache/embeddings
    """
    from chunkvisor.commands.verify import how_far
    from chunkvisor.commands.verify import verify as findings_of

    intact, damaged = [], []
    for finding in findings_of(workdir):
        if finding.problem is None:
            intact.append(finding.path.name)
        else:
            damaged.append(finding)
            if not as_json:
                say(f"{finding.path}: {finding.problem}", err=True)
    good = len(intact)
    outputs = {} if workdir.is_file() else how_far(workdir)
    missing = {name: each for name, each in outputs.items() if not each.complete}
    if as_json:
        problems = [{"path": str(each.path), "problem": each.problem} for each in damaged]
        keys = ("rows", "rows_done", "chunks", "chunks_done")
        far = {name: {key: getattr(each, key) for key in keys} for name, each in missing.items()}
        shown = {"files": good + len(damaged), "damaged": problems, "unfinished": far}
        say(json.dumps({"ok": not damaged, "complete": not missing, **shown}, indent=2))
    if damaged:
        what = f"{len(damaged)} of {counted(good + len(damaged), 'file')} damaged, changed or missing"
        needless = sum(each.needless for each in damaged)
        raise Halt(ExitCode.DISK, what, remedy=_how_to_repair(workdir, needless, len(damaged)))
    if not good:
        raise config_error(
            f"nothing in {workdir} can be verified yet: no chunk is finished",
            remedy=f"chunkvisor status {workdir} says how far it is, and how the last run ended",
        )
    if not as_json:
        which = f" ({', '.join(intact)})" if good <= _FEW and not missing else ""
        say(f"{counted(good, 'file')} checked{which}: {'it is' if good == 1 else 'all are'} intact", indent=2)
        for name, output in outputs.items():
            if output.quarantined:
                rows = f"{counted(output.quarantined, 'row')} {'has' if output.quarantined == 1 else 'have'}"
                say(f"{name}: {rows} no vector, as its record says; which: {output.listed_in}", indent=2)
        to_go_on = _to_go_on(workdir) if missing else ""
        for name, output in missing.items():
            say(f"{name} is not complete: {output.far}; {to_go_on}", indent=2)


def _to_go_on(workdir: Path) -> str:
    from chunkvisor.show.status import State, read_status

    live = read_status(workdir).state is State.RUNNING
    command = "encode" if workdir.suffix == ".chunkvisor" else "run"
    return "its run is still going on" if live else f"run the same `chunkvisor {command}` again to go on"


def _how_to_repair(workdir: Path, needless: int, bad: int) -> str:
    """`needless` of the bad files are chunk files that no run makes anew."""
    remedy = "run the same `chunkvisor run` again: it computes the damaged parts again"
    if workdir.is_file() or workdir.suffix == ".chunkvisor":
        remedy = "make the file again: the same `chunkvisor run`; of `chunkvisor encode`, add --from-scratch"
    if needless:
        also = "; remove the chunk files among them: " if needless < bad else "remove them: "
        remedy = (remedy if needless < bad else "") + also
        remedy += "the final files are good and do not need them, and `chunkvisor retry` makes what it needs"
    return remedy


@click.command("retry")
@workdir_argument()
def retry(workdir: Path) -> None:
    r"""Let the next run try rows without a vector again.

    That run encodes only these rows. You may give the config instead of WORKDIR.

    \b
    Example: chunkvisor retry cache/embeddings && chunkvisor run embeddings.yaml
    """
    from chunkvisor.commands.housekeeping import retry as reopen

    if count := reopen(workdir):
        only = "it" if count == 1 else "them"
        say(f"{counted(count, 'text')} to try again: run the same command again; it encodes only {only}", indent=2)
    else:
        say("nothing to try again: every row that is done has its vector")


@click.command("clean")
@workdir_argument()
def clean(workdir: Path) -> None:
    r"""Remove files that finished outputs in WORKDIR do not need.

    Final files always stay. You may give the config instead of WORKDIR.

    \b
    Example: chunkvisor clean cache/embeddings
    """
    from chunkvisor.commands.housekeeping import clean as remove
    from chunkvisor.units import human_bytes

    removed, freed_bytes = remove(workdir)
    say(f"{counted(removed, 'file')} removed, {human_bytes(freed_bytes)} freed")
