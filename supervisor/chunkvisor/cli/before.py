"""The commands to use before a run, `init`, `plan`, `doctor`, `drill` and `tune`; and `explain`."""

import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkvisor.cli.parameters import (
    PATH,
    command,
    config_argument,
    flag,
    json_option,
    part_option,
    rows_option,
    set_option,
)
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.printing import print_json, print_lines

if TYPE_CHECKING:
    from chunkvisor.config.load import RowChoice


def _print_step(step: str) -> None:
    """Name a slow step on standard error when it begins."""
    print_lines(f"{step} …", err=True)


@command("plan", "embeddings.yaml --set encode.batch_tokens=8192")
@config_argument
@set_option
@rows_option(help="Take only the first N rows of every output.")
@part_option
@json_option
def plan(config: Path, overrides: tuple[str, ...], rows: "RowChoice", as_json: bool) -> None:
    """Show what a run of CONFIG would do and need.

    It counts rows and tokens, and estimates memory and disk, and the time once a run has shown its
    speed. It uses no GPU and writes nothing into the workdir.
    """
    from chunkvisor.commands.plan import forecast, plan_lines
    from chunkvisor.config.load import load

    found = forecast(load(config, overrides), rows, _print_step)
    if as_json:
        print_json(found)
    else:
        print_lines(*plan_lines(found))


@command("doctor", "embeddings.yaml")
@click.argument("config", type=PATH, required=False)
@json_option
def doctor(config: Path | None, as_json: bool) -> None:
    """Check whether this machine can run the job.

    It prints what is wrong and how to repair it. With CONFIG it also checks sources, devices, disk
    and model, and a worker encodes a few words.
    """
    from chunkvisor.commands.doctor import (
        doctor_lines,
        examine,
        exit_code,
        findings_to_json,
        read_case,
    )

    findings = examine(read_case(config, _print_step))
    if as_json:
        print_json(findings_to_json(findings))
    else:
        print_lines(*doctor_lines(findings))
    sys.exit(int(exit_code(findings)))


@command("drill", "embeddings.yaml --fault segfault --fault oom")
@config_argument
@click.option(
    "--fault",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this fault; may be given more than once.",
)
@set_option
@json_option
def drill(config: Path, names: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> None:
    """Cause each kind of failure, and show that a run recovers.

    It uses a scratch folder, the model of CONFIG and the first rows of its first output. Failures
    that this machine cannot have are simulated, and the table marks them. It takes some minutes.
    """
    from chunkvisor.commands import drill as drilling
    from chunkvisor.config.load import load
    from chunkvisor.testing import FAULTS
    from chunkvisor.units import counted, did_you_mean

    known = [fault.name for fault in FAULTS]
    for name in names:
        if name not in known:
            raise click.UsageError(
                f"there is no fault {name} to drill; {did_you_mean(name, known)}"
            )
    faults = [fault for fault in FAULTS if not names or fault.name in names]
    loaded = load(config, overrides)
    parent = loaded.config.workdir.parent  # so that a drill meets the same disk; None = TMPDIR
    place = parent if os.access(parent, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=".chunkvisor-drill-", dir=place))
    failed = list[dict[str, Any]]()
    try:
        print_lines(
            f"one run without a fault, then {counted(len(faults), 'run')} with a fault, in "
            f"{folder}",
            err=True,
        )
        findings = drilling.drill(
            loaded, faults, folder, lambda line: print_lines(line, err=as_json)
        )
        failed = [each for each in findings if each["problem"]]
    finally:
        if not failed:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print_json(findings)
    print_lines(
        f"the run recovered from {len(findings) - len(failed)} of "
        f"{counted(len(findings), 'fault')}",
        err=as_json,
    )
    if failed:
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"the run did not recover from: {', '.join(each['fault'] for each in failed)}",
            f"Read the logs of these runs in {folder}",
            why=failed[0]["problem"],
        )


@command("tune", "embeddings.yaml --price 2.5")
@config_argument
@set_option
@flag("--write", help="Put the recommended settings into CONFIG; its comments stay.")
@click.option(
    "--price",
    type=click.FloatRange(0),
    metavar="PER_HOUR",
    help="Add costs, at this price of the machine.",
)
@json_option
def tune(
    config: Path, overrides: tuple[str, ...], write: bool, price: float | None, as_json: bool
) -> None:
    """Try settings on texts of CONFIG, and recommend the fastest.

    It compares dtypes, attention, batch sizes and numbers of workers by their speed, and by how
    near their vectors are to those of float32. It takes some minutes and writes nothing into the
    workdir.
    """
    from chunkvisor.commands import tune as tuning
    from chunkvisor.config.load import load, with_values
    from chunkvisor_worker.contract.files import write_atomic

    found = tuning.tune(load(config, overrides), price, _print_step)
    if as_json:
        print_json(found)
    else:
        print_lines(*tuning.tune_lines(found))
    if not any(each["recommended"] for each in found["candidates"]):
        raise Halt(
            ExitCode.QUARANTINED,
            f"no setting has a least cosine of {tuning.LEAST_COSINE:g} to float32",
            "Choose one by the table, and set it in the config.",
        )
    if write and found["changes"]:
        target = config.resolve()  # a link stays a link
        # as bytes: line ends stay
        text = with_values(target.read_bytes().decode("utf-8"), found["changes"])
        if text is None:
            lines = "; ".join(f"{key}: {value}" for key, value in found["changes"].items())
            raise config_error(f"cannot edit {config} automatically", f"Set by hand: {lines}")
        mode = target.stat().st_mode & 0o777
        write_atomic(target, [text.encode("utf-8")])
        target.chmod(mode)
        print_lines(f"{config}: written", err=True)


@command("init", "embeddings.yaml")
@click.argument("path", type=PATH, default=Path("chunkvisor.yaml"))
def init(path: Path) -> None:
    """Write a starter config that explains every key.

    Without PATH it is chunkvisor.yaml. An existing file is not overwritten.
    """
    from importlib.resources import files

    target = path / "chunkvisor.yaml" if path.is_dir() else path
    try:
        with open(target, "x") as file:
            file.write(files("chunkvisor").joinpath("starter.yaml").read_text())
    except OSError as error:
        raise config_error(
            f"{target} cannot be written: {error.strerror}",
            "Name another file: chunkvisor init OTHER.yaml",
        ) from None
    quoted = shlex.quote(str(target))
    print_lines(
        f"{target} written. Change the lines marked with <--: source, column, model, device. Then:",
        f"  chunkvisor doctor {quoted}    can this machine do it?",
        f"  chunkvisor plan {quoted}      how much work is it?",
        f"  chunkvisor run {quoted}       do it; run it again to continue",
    )


@command("explain", "gpu_oom")
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """Explain a failure, by its NAME or an error message.

    It prints what happened, what a run does automatically, and what you can do. NAME is what the
    last lines of a run have after `see:`, or a pasted error message, or - for a log on standard
    input. Without NAME it lists all.
    """
    from chunkvisor.commands import explain as handbook

    if name is None:
        print_lines(*handbook.index_lines())
    else:
        print_lines(
            handbook.explain(
                sys.stdin.buffer.read().decode(errors="replace") if name == "-" else name
            )
        )
