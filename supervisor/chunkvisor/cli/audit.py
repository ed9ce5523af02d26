"""`chunkvisor audit`: encodes some finished rows again, and says which vectors are not the same."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkvisor.cli.parameters import ROW_COUNT, config_argument
from chunkvisor.errors import ExitCode, Halt
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
    with a plug-in encoder, which is looked for beside the config.

    \b
    Example: chunkvisor audit embeddings.yaml --rows 500
    """
    from chunkvisor.commands.audit import audit as audits_of
    from chunkvisor.commands.audit import write_expect
    from chunkvisor.config.load import load
    from chunkvisor.config.specs import encode_spec
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
