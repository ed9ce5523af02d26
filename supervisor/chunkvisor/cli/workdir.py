"""The commands that take a WORKDIR: `status`, `report`, `verify`, `audit`, `retry`, `clean`."""

from pathlib import Path

import click

from chunkvisor.cli.parameters import (
    PATH,
    ROW_COUNT,
    command,
    config_argument,
    flag,
    json_option,
    part_option,
    workdir_argument,
)
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.printing import print_json, print_lines
from chunkvisor.units import counted


@command("audit", "embeddings.yaml --rows 500")
@config_argument
@click.option(
    "--rows",
    type=ROW_COUNT,
    metavar="N",
    default=200,
    show_default=True,
    help="Rows of each output.",
)
@click.option(
    "--device", metavar="DEVICE", default="cpu", show_default=True, help="cpu, cuda or cuda:N."
)
@click.option(
    "--write-expect",
    "expect",
    type=PATH,
    metavar="FILE",
    help="Also write up to 10 of the rows, text and vector, to a new FILE for model.expect.",
)
@json_option
def audit(config: Path, rows: int, device: str, expect: Path | None, as_json: bool) -> None:
    """Encode a sample of finished rows again, and compare.

    It finds vectors that are finite but wrong. Each row is encoded alone, in float32 and in a new
    process. The exit code is 3 if vectors differ by more than rounding. You may give the workdir
    instead of CONFIG, except with a plug-in encoder.
    """
    from chunkvisor.commands import audit as auditing
    from chunkvisor.config.load import load
    from chunkvisor.config.model import encode_spec
    from chunkvisor.devices.gpu import find_devices

    loaded = load(config) if config.is_file() else None
    found = []
    workdir = loaded.config.workdir if loaded else config
    for each in auditing.audit(workdir, rows, find_devices([device])[0], loaded):
        found.append(each)
        if not as_json:
            print_lines(*each.in_words())
    if as_json:
        print_json({"outputs": [each.details for each in found]})
    differs = list[bool]()
    for each in found:
        differs += [row["differs"] for row in each.details["rows"]]
    if any(differs):
        raise Halt(
            ExitCode.QUARANTINED,
            f"{sum(differs):,} of {len(differs):,} vectors differ from those computed now",
            "Encode the outputs again: chunkvisor run CONFIG --from-scratch. If they differ again, "
            "run `chunkvisor doctor CONFIG`, and compare with --device cpu and --device cuda.",
            why="the model, its padding or the hardware gave other values during the run",
        )
    if expect:
        encode = encode_spec(loaded.config.encode) if loaded else found[0].encode
        count = auditing.write_expect(expect.absolute(), found, encode)
        print_lines(
            f"{expect}: {counted(count, 'text')} with the vectors that the model gives now",
            err=as_json,
        )


@command("status", "cache/embeddings --watch")
@workdir_argument
@json_option
@flag("--watch", help="Follow the run until it ends; with --json, print a line for each change.")
@part_option
def status(workdir: Path, as_json: bool, watch: bool) -> None:
    """Show how far the run in WORKDIR is.

    It works during a run and after it. You may give the config instead of WORKDIR.
    """
    from chunkvisor.show.status import State, read_status
    from chunkvisor.store.layout import Layout

    if watch:
        from chunkvisor.show.terminal import watch_json, watch_view

        try:
            (watch_json if as_json else watch_view)(workdir)
        except KeyboardInterrupt:
            return  # you have seen enough; the run continues
        if as_json:
            return
    found, lines = read_status(workdir)
    if as_json:
        print_json(found.to_dict())
        return
    print_lines(lines[0], red=found.state is State.HALTED)
    print_lines(*lines[1:])
    if found.state is not State.RUNNING and Layout(workdir).report.is_file():
        print_lines(f"  how the run went: {Layout(workdir).report}")


@command("report", "cache/embeddings -o night.html")
@workdir_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Default: WORKDIR/report.html.",
)
def report(workdir: Path, output: Path | None) -> None:
    """Write a report about the run in WORKDIR, as one HTML page.

    The page has plots and needs no network. It works during a run and after it. You may give the
    config instead of WORKDIR.
    """
    from chunkvisor.show.report import write_report
    from chunkvisor.store.layout import Layout

    path = output or Layout(workdir).report
    try:
        write_report(workdir, path)
    except OSError as error:
        raise Halt(
            ExitCode.DISK,
            f"the report {path} cannot be written",
            "Name another place: chunkvisor report WORKDIR -o FILE.html",
            why=str(error),
        ) from None
    print_lines(path)


@command("verify", "cache/embeddings")
@workdir_argument
@part_option
@json_option
def verify(workdir: Path, as_json: bool) -> None:
    """Check every file in WORKDIR against its record.

    It checks shape, dtype and digest, and that all numbers are finite and no vector is zero. The
    exit code is 74 if a file is damaged; outputs that are not complete yet are only listed. You may
    give the config instead of WORKDIR, or a final file such as OUT.npy.
    """
    from chunkvisor.commands import housekeeping
    from chunkvisor.show.status import read_status
    from chunkvisor.store.layout import Layout, is_workdir

    findings = list(housekeeping.verify(workdir))
    damaged = [each for each in findings if each.problem]
    outputs = read_status(workdir)[0].outputs if is_workdir(Layout(workdir)) else {}
    missing = {name: each for name, each in outputs.items() if not each.complete}
    if as_json:
        unfinished = dict[str, dict[str, int]]()
        for name, each in missing.items():
            keys = ("rows", "rows_done", "chunks", "chunks_done")
            unfinished[name] = {key: getattr(each, key) for key in keys}
        print_json(
            {
                "ok": not damaged,
                "complete": not missing,
                "files": len(findings),
                "damaged": [{"path": str(each.path), "problem": each.problem} for each in damaged],
                "unfinished": unfinished,
            }
        )
    if damaged:
        print_lines(*(f"{each.path}: {each.problem}" for each in damaged), err=True)
        raise Halt(
            ExitCode.DISK,
            f"{len(damaged)} of {counted(len(findings), 'file')} damaged, changed or missing",
            "Run the same command again: it computes damaged parts again; of `encode`, add "
            "--from-scratch. "
            "`chunkvisor clean` removes chunk files of finished outputs, which are not needed.",
        )
    if not findings:
        raise config_error(
            f"nothing in {workdir} can be verified yet: no chunk is finished",
            f"`chunkvisor status {workdir}` shows how far it is.",
        )
    if not as_json:
        print_lines(
            f"{counted(len(findings), 'file')} checked: "
            f"{'it is' if len(findings) == 1 else 'all are'} intact"
        )
        for name, output in outputs.items():
            if output.quarantined:
                bad = counted(output.quarantined, "row")
                print_lines(f"{name}: {bad} without a vector, listed in {output.listed_in}")
            if not output.complete:
                print_lines(
                    f"{name} is not complete: {output.progress}; run the same command again to "
                    f"continue"
                )


@command("retry", "cache/embeddings && chunkvisor run embeddings.yaml")
@workdir_argument
def retry(workdir: Path) -> None:
    """Mark failed rows to be tried again by the next run.

    That run encodes only these rows. You may give the config instead of WORKDIR.
    """
    from chunkvisor.commands import housekeeping

    count = housekeeping.retry(workdir)
    if count:
        print_lines(
            f"{counted(count, 'text')} to try again: run the same command again; it encodes "
            f"nothing else"
        )
    else:
        print_lines("nothing to try again: every row that is done has its vector")


@command("clean", "cache/embeddings")
@workdir_argument
def clean(workdir: Path) -> None:
    """Remove files that finished outputs in WORKDIR do not need.

    Final files always stay. You may give the config instead of WORKDIR.
    """
    from chunkvisor.commands import housekeeping
    from chunkvisor.units import human_bytes

    removed, freed_bytes = housekeeping.clean(workdir)
    print_lines(f"{counted(removed, 'file')} removed, {human_bytes(freed_bytes)} freed")
