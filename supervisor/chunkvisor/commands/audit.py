"""Encodes a sample of finished rows again, each alone, in float32 and in a fresh process, and compares the vectors.

It only reads the workdir. A vector can be finite, of the right length and wrong all the same: because the model was
changed half-way, because it was not made for padding, because a card computes wrongly.
"""

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.assemble.badrows import every_row
from chunkvisor.assemble.forms import FORMATS, form_of
from chunkvisor.assemble.manifest import read_finished, recorded_parts
from chunkvisor.assemble.numbers import Numbers
from chunkvisor.assemble.sides import ranges_of
from chunkvisor.config.choices import FinalDtype
from chunkvisor.config.model import ModelConfig
from chunkvisor.config.values import SENTENCE_TRANSFORMERS
from chunkvisor.engine.modelsource import resolve_local
from chunkvisor.engine.trial import Conditions, allowed_difference, difference_and_cosine, try_texts, write_line
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.identity import Identity, read_fixed
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.records import DamagedError, read_pins
from chunkvisor.store.workdir import require_workdir
from chunkvisor_worker.contract.files import write_blocks
from chunkvisor_worker.contract.messages import EncodeSpec, ModelSpec

_ROUNDED = {FinalDtype.FLOAT32: 0.0, FinalDtype.FLOAT16: 0.001, FinalDtype.INT8: 0.05}
"""How much more, by the type of numbers of the final: float16 has 11 bits, int8 has 256 steps a dimension."""


EXPECTED = 10
"""Rows that `--write-expect` writes, at most: each run encodes them anew."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One row of an output, and how its vector fares."""

    row: int
    place: str
    """Where the row stands in the source."""
    difference: float
    """Length of the difference to the vector made now, relative to that vector's length."""
    cosine: float
    differs: bool


@dataclass(frozen=True, slots=True)
class Audit:
    """What became of one output's sample."""

    output: str
    dtype: str
    """Of the weights that made the vectors."""
    allowed: float
    """Differences above this count."""
    rows: tuple[Compared, ...]
    note: str = ""
    """What else the person should know."""
    encode: EncodeSpec = field(default_factory=EncodeSpec)
    """What shaped the vectors."""
    lines: tuple[bytes, ...] = ()
    """Of some rows that do not differ: text and vector in float32, as lines of a file for `model.expect`."""

    @property
    def differing(self) -> list[Compared]:
        """Rows whose vectors are not the ones that are made now."""
        return [row for row in self.rows if row.differs]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: value for name, value in asdict(self).items() if name not in ("encode", "lines")}


def audit(workdir: Path, rows: int, conditions: Conditions, on_wait: Callable[[], None]) -> Iterator[Audit]:
    """Compare up to so many rows of each finished output.

    Raises Halt: 78 where the folder is no workdir, nothing is finished, or its texts or its model are gone; what a run
    would end with where no vector can be made. OSError.
    """
    layout = require_workdir(workdir)
    finished = False
    for folder in sorted(layout.outputs.glob("*/")):
        output = layout.output(folder.name)
        manifest = read_finished(output)
        if manifest is not None:
            finished = True
            yield _of_output(layout, output, manifest, rows, conditions, on_wait)
    if not finished:
        raise config_error(f"no output in {workdir} is finished", remedy="let the run complete, then audit it")


def _of_output(
    layout: Layout,
    output: OutputLayout,
    manifest: dict[str, Any],
    rows: int,
    conditions: Conditions,
    on_wait: Callable[[], None],
) -> Audit:
    if form_of(manifest).dtype is FinalDtype.UBINARY:
        return Audit(output.name, str(manifest["model"]["dtype"]), 0, (), "bits alone cannot be compared: not audited")
    try:
        fixed = read_fixed(output)
        if fixed is None:
            raise DamagedError(f"{output.identity} is missing")
        table = StagedTable.open(output.table)
    except DamagedError as error:
        raise config_error(
            f"the texts of output {output.name} are not in the workdir any more",
            why=str(error),
            remedy="`chunkvisor clean` removes them; audit before it",
        ) from None
    bad = {each["row"] for each in every_row(output, manifest)}
    # Not the same rows each time: every audit looks at others.
    candidates = random.SystemRandom().sample(range(manifest["rows"]), min(manifest["rows"], rows + len(bad)))
    sample = sorted([row for row in candidates if row not in bad][:rows])
    texts = [table.texts(text, text + 1)[0] for row in sample for text in table.row_text(row, row + 1).tolist()]
    model, note = _model(layout, fixed.identity, on_wait)
    encode = _encode_spec(fixed.identity)
    again = _encode(output.name, model, encode, texts, conditions, on_wait)
    dtype = str(manifest["model"]["dtype"])
    quantised = "quantization_config" in model.kwargs
    allowed = _ROUNDED[form_of(manifest).dtype] + allowed_difference(dtype, quantized=quantised)
    compared = []
    for row, stored, made in zip(sample, _stored(output, manifest, sample), again, strict=True):
        difference, cosine = difference_and_cosine(stored, made)
        compared.append(
            Compared(row, table.place_of(row, with_line=False), difference, cosine, not difference <= allowed)
        )
    good = [at for at, row in enumerate(compared) if not row.differs and again[at].any()]
    lines = tuple(write_line(texts[at], again[at]) for at in good[:EXPECTED])
    return Audit(output.name, dtype, allowed, tuple(compared), note, encode, lines)


def write_expect(path: Path, audits: Sequence[Audit], encode: EncodeSpec | None) -> int:
    """Write texts and vectors of the audited rows to a new file for `model.expect`; returns how many.

    `encode` is what the config says of all outputs, None if it is not at hand. Raises Halt (78) if no output, or not
    all of them, are encoded in that way; OSError.
    """
    if path.exists():
        raise config_error(f"{path} is there already", remedy="name another file, or remove this one")
    wanted = encode if encode is not None else audits[0].encode
    fit = [audit for audit in audits if audit.encode == wanted and audit.lines]
    if not fit or (encode is None and any(audit.encode != wanted for audit in audits)):
        raise config_error(
            f"nothing was written to {path}: no output is encoded as `encode` says, without settings of its own"
            if encode is not None
            else f"nothing was written to {path}: the outputs are encoded in different ways, or none can be compared",
            why="model.expect is checked with the section `encode` of a config, without the overrides of outputs",
            remedy="give the config instead of the workdir, and have one output without an `encode` of its own",
        )
    write_blocks(path, fit[0].lines)
    return len(fit[0].lines)


def _model(layout: Layout, identity: Identity, on_wait: Callable[[], None]) -> tuple[ModelSpec, str]:
    """The model in float32, and a note where it is no longer the one of the run. Raises Halt (78), OSError."""
    values = identity.values
    name, revision = str(values["model.name"]), str(values["model.revision"])
    path, note = None, ""
    if values["model.encoder"] == SENTENCE_TRANSFORMERS:
        pins = (pin for pin in read_pins(layout.model) if (pin.name, pin.revision) == (name, revision))
        pin = next(pins, None)
        fetched = pin is not None
        path = pin.path if pin is not None else name
        if not Path(path).is_dir():
            raise config_error(
                f"the model of the run is not here: {path}",
                remedy="put it back, or let `chunkvisor run` fetch it again",
            )
        if not fetched:
            with tempfile.TemporaryDirectory(prefix="chunkvisor-audit-") as scratch:
                now = resolve_local(ModelConfig(name=name), Path(scratch) / "stamps.json", on_wait)
            if now.revision != revision:
                note = f"the model folder {path} has changed since the run"
    spec = ModelSpec(
        name=name,
        path=path,
        revision=revision,
        dtype="float32",
        max_length=values["model.max_length"],
        pooling=values.get("model.pooling"),
        trust_remote_code=bool(values["model.trust_remote_code"]),
        kwargs=dict(values["model.kwargs"]),
        encoder=str(values["model.encoder"]),
    )
    return spec, note


def _encode_spec(identity: Identity) -> EncodeSpec:
    values = identity.values
    return EncodeSpec(
        normalize=bool(values["encode.normalize"]),
        prompt=values["encode.prompt"],
        prompt_name=values["encode.prompt_name"],
        task=values.get("encode.task"),
        kwargs=dict(values.get("encode.kwargs", {})),
        truncate_dim=values["encode.truncate_dim"],
    )


def _encode(
    name: str,
    model: ModelSpec,
    encode: EncodeSpec,
    texts: Sequence[str],
    conditions: Conditions,
    on_wait: Callable[[], None],
) -> npt.NDArray[np.float32]:
    """The texts' vectors, shape (n, dimension), each from a batch of its own. Raises Halt, OSError."""
    with tempfile.TemporaryDirectory(prefix="chunkvisor-audit-") as folder:
        trial = try_texts(texts, model, encode, conditions, Path(folder), on_wait)
    if trial.vectors is None:
        verdict = trial.verdict
        raise Halt(
            ExitCode(verdict.exit_code or ExitCode.CONFIG),
            f"the sample of {name} could not be encoded: {verdict.outcome}",
            why=f"{verdict.reason}; the last line of the worker's log: {trial.log_line or 'nothing'}",
            remedy=verdict.remedy or "`chunkvisor doctor` looks at the machine and the model",
        )
    return trial.vectors


def _stored(output: OutputLayout, manifest: dict[str, Any], rows: Sequence[int]) -> Iterator[npt.NDArray[np.float32]]:
    """The vectors of these rows, which rise, from the final files."""
    form, left = form_of(manifest), list(rows)
    numbers, ranges = Numbers(form.dtype, manifest["dimension"]), ranges_of(manifest)
    for part, _ in recorded_parts(output, manifest):
        if not left or left[0] >= part.stop:
            continue
        first = part.start
        for block, _ in FORMATS[form.format].read(part.path, part.rows, numbers, None):
            while left and left[0] < first + len(block):
                row = left.pop(0) - first
                yield numbers.back(block[row : row + 1], ranges)[0]
            if not left or left[0] >= part.stop:
                break
            first += len(block)
