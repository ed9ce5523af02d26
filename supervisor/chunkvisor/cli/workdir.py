"""The commands that take a WORKDIR: `status`, `report`, `verify`, `retry`, `clean`."""

import json
from pathlib import Path

import click

from chunkvisor.cli.parameters import workdir_argument
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.printing import say


@click.command("status")
@workdir_argument()
@click.option("--json", "as_json", is_flag=True, help="For programs: plain numbers, seconds and rows.")
@click.option("--watch", is_flag=True, help="Look on until the run ends; with --json, one line for each change.")
def status(workdir: Path, as_json: bool, watch: bool) -> None:
    r"""Show how far the run in WORKDIR is. It works beside a live run and after its end.

    \b
    Example: chunkvisor status --watch cache/embeddings
    """
    from chunkvisor.observe.follow import Follower
    from chunkvisor.observe.status import read_status
    from chunkvisor.observe.statusscreen import status_screen
    from chunkvisor.observe.watching import ctrl_c_in_pauses, watch_json, watch_view

    found = read_status(workdir)  # first: it refuses what is no workdir
    if as_json and not watch:
        say(json.dumps(found.to_json(), indent=2))
        return
    follower = Follower(workdir)
    try:
        if as_json:
            with ctrl_c_in_pauses():
                watch_json(workdir)
            return
        if watch:
            with ctrl_c_in_pauses():
                watch_view(follower)
            found = read_status(workdir)
    except KeyboardInterrupt:
        return  # the person has seen enough; the run goes on
    snapshot = follower.look()
    say("\n".join(status_screen(found, snapshot, follower.begun_anew(), follower.ending, workdir)))


@click.command("report")
@workdir_argument()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file; WORKDIR/report.html without."
)
def report(workdir: Path, output: Path | None) -> None:
    r"""Write the story of WORKDIR as one HTML page. It needs no network, and may be made beside a live run.

    \b
    Example: chunkvisor report cache/embeddings -o night.html
    """
    from chunkvisor.observe.report.page import write_report
    from chunkvisor.store.layout import Layout
    from chunkvisor_worker.contract.files import PRIVATE, RESULT

    path = output if output is not None else Layout(workdir).report
    try:
        write_report(workdir, path, PRIVATE if output is None else RESULT)
    except OSError as error:
        remedy = "name another place: chunkvisor report WORKDIR -o FILE.html"
        raise Halt(ExitCode.DISK, f"the report {path} cannot be written", why=str(error), remedy=remedy) from None
    say(path)


@click.command("verify")
@workdir_argument()
def verify(workdir: Path) -> None:
    r"""Check all vectors in WORKDIR against their records. Of every file: shape, dtype, digest, finite, not zero.

    \b
    Example: chunkvisor verify cache/embeddings
    """
    from chunkvisor.commands.verify import verify as findings_of

    good = bad = needless = 0
    for finding in findings_of(workdir):
        if finding.problem is None:
            good += 1
        else:
            bad += 1
            needless += finding.needless
            say(f"{finding.path}: {finding.problem}", err=True)
    if bad:
        what = f"{bad} of {good + bad} files are not as they were written"
        remedy = "run the same `chunkvisor run` again: it computes anew what is damaged"
        if needless:
            also = "; remove the chunk files that are: " if needless < bad else "remove them: "
            remedy = (remedy if needless < bad else "") + also
            remedy += "the final files are whole and do not need them, and `chunkvisor retry` has anew what it needs"
        raise Halt(ExitCode.DISK, what, remedy=remedy)
    if not good:
        raise config_error(f"nothing in {workdir} can be verified yet", remedy="let a run commit some chunks first")
    say(f"{good} files, all as they were written")


@click.command("retry")
@workdir_argument()
def retry(workdir: Path) -> None:
    r"""Make the quarantined rows in WORKDIR pending again. The next run tries them, and only them.

    \b
    Example: chunkvisor retry cache/embeddings && chunkvisor run embeddings.yaml
    """
    from chunkvisor.commands.housekeeping import retry as reopen

    if count := reopen(workdir):
        say(f"{count:,} texts are pending again; run the same `chunkvisor run` to try them")
    else:
        say("nothing is in quarantine")


@click.command("clean")
@workdir_argument()
def clean(workdir: Path) -> None:
    r"""Remove what finished outputs in WORKDIR no longer need. Chunk and attempt files go, never a final file.

    \b
    Example: chunkvisor clean cache/embeddings
    """
    from chunkvisor.commands.housekeeping import clean as remove
    from chunkvisor.units import human_bytes

    removed, freed_bytes = remove(workdir)
    say(f"{removed:,} files removed, {human_bytes(freed_bytes)} freed")
