"""`chunkvisor tune`: tries settings on the config's own texts, and says which is fastest."""

import json
import math
from pathlib import Path

import click

from chunkvisor.cli.parameters import Number, config_argument, set_option
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.printing import say


@click.command("tune")
@config_argument()
@set_option("Override a key, e.g. device=cuda:1.")
@click.option("--write", is_flag=True, help="Put the recommended settings into CONFIG; its comments stay.")
@click.option(
    "--price",
    type=Number(float, 0, math.inf, "a number, 0 or more"),
    metavar="PER_HOUR",
    help="What an hour of this machine costs; the table then has the cost of the whole job.",
)
@click.option(
    "--least-cosine",
    type=Number(float, 0, 1, "a number from 0 to 1"),
    default=0.999,
    show_default=True,
    metavar="COSINE",
    help="Recommend only settings whose every vector has at least this cosine, 0 to 1, to its float32 one.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object, in hours.")
def tune(
    config: Path, overrides: tuple[str, ...], write: bool, price: float | None, least_cosine: float, as_json: bool
) -> None:
    r"""Try settings on texts of CONFIG, and recommend the fastest.

    Dtypes, batch sizes and numbers of workers are compared by their speed, and by how near their vectors are to those
    of float32. It takes a minute or two and writes nothing into the workdir.

    \b
    Example: chunkvisor tune embeddings.yaml --price 2.5
    """
    from chunkvisor.commands.tune import draw, to_json
    from chunkvisor.commands.tune import tune as try_all
    from chunkvisor.config.load import load

    tuning = try_all(load(config, overrides), least_cosine, _tell)
    if as_json:
        say(json.dumps(to_json(tuning, price), indent=2))
    else:
        say("\n".join(draw(tuning, least_cosine, price)))
    if tuning.best is None:
        raise Halt(
            ExitCode.QUARANTINED,
            f"no setting has a least cosine of {least_cosine:g} to float32",
            remedy="ask for less: --least-cosine 0.99; the table says what each setting has",
        )
    if write and tuning.changes:
        _write(config, tuning.changes)
        say(f"{config}: written", err=True)


def _tell(step: str) -> None:
    say(f"{step} …", err=True)


def _write(config: Path, values: dict[tuple[str, str], int | str]) -> None:
    from chunkvisor.config.edit import with_values
    from chunkvisor_worker.contract.files import open_regular, write_atomic

    target = config.resolve()  # a link stays a link
    if not target.is_file():
        raise config_error(f"{config} is no file that can be written to", remedy="give the config's own path")
    with open_regular(target) as file:
        text = with_values(file.read().decode("utf-8"), values)
    if text is None:
        lines = "; ".join(f"{section}.{key}: {value}" for (section, key), value in values.items())
        raise config_error(f"{config} is written in a form that cannot be edited for you", remedy=f"set {lines}")
    mode = target.stat().st_mode
    write_atomic(target, text.encode("utf-8"))
    target.chmod(mode & 0o777)
