"""Encode a sample of finished rows again, and compare the vectors.

Each row is a batch of one, in float32, in a new process. The workdir is only read. This finds
vectors that are finite but wrong: the model was changed half-way, its vectors depend on padding, or
a GPU computes wrongly.
"""

import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chunkvisor.config.choices import FinalDtype
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import SENTENCE_TRANSFORMERS
from chunkvisor.devices.gpu import Device
from chunkvisor.engine.expected import difference_and_cosine, write_line
from chunkvisor.engine.trial import try_texts
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.outputs.forms import Manifest, form_of
from chunkvisor.outputs.join import final_rows
from chunkvisor.outputs.publish import rows_without_vector
from chunkvisor.outputs.state import read
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.artifact import BadVectorsError, Vectors
from chunkvisor.store.identity import read_fixed
from chunkvisor.store.layout import Layout, OutputLayout, require_workdir
from chunkvisor.store.records import DamagedError, read_models
from chunkvisor_worker.contract.correctness import allowed_difference
from chunkvisor_worker.contract.files import write_atomic
from chunkvisor_worker.contract.messages import EncodeSpec, ModelSpec

# Added to the allowed difference, by the dtype of the final file: float16 has 11 bits.
_ROUNDED = {FinalDtype.FLOAT32: 0.0, FinalDtype.FLOAT16: 0.001}
# Rows that `--write-expect` writes, at most: each run with `model.expect` encodes them again.
EXPECTED = 10


class Audit(NamedTuple):
    """The comparison of one output's sample."""

    details: dict[str, Any]  # as `--json` prints it: output, dtype, allowed difference, rows
    encode: EncodeSpec  # what shaped the vectors
    expected: list[bytes]  # lines of a file for `model.expect`, of rows that do not differ

    def in_words(self) -> list[str]:
        """Return lines for a terminal, with the first rows that differ."""
        rows = self.details["rows"]
        wrong = [row for row in rows if row["differs"]]
        largest = max((row["difference"] for row in rows), default=0.0)
        lines = [
            f"{self.details['output']}: {len(rows):,} rows encoded again; {len(wrong):,} differ by "
            f"more than {self.details['allowed']:g} of their length (weights in "
            f"{self.details['dtype'] or 'an unknown dtype'}); the largest difference is "
            f"{largest:.2g}"
        ]
        for row in wrong[:20]:
            lines.append(
                f"  row {row['row']:,} ({row['place']}): difference {row['difference']:.2g}, "
                f"cosine {row['cosine']:.5f}"
            )
        return lines


def audit(workdir: Path, rows: int, device: Device, loaded: LoadedConfig | None) -> Iterator[Audit]:
    """Compare up to `rows` rows of each finished output.

    `loaded` is the config, if it was given: a plug-in encoder needs its folder. Raises Halt: 78 if
    the folder is not a workdir, nothing is finished, or its texts or its model are gone; what a run
    would end with if no vector can be made. OSError.
    """
    layout = require_workdir(workdir)
    outputs = [layout.output(folder.name) for folder in sorted(layout.outputs.glob("*/"))]
    finished = [(found.layout, found.manifest) for found in map(read, outputs) if found.manifest]
    if not finished:
        raise config_error(
            f"no output in {workdir} is finished", "Let the run complete, then audit it."
        )
    for output, manifest in finished:
        yield _audit_output(layout, output, manifest, rows, device, loaded)


def _audit_output(
    layout: Layout,
    output: OutputLayout,
    manifest: Manifest,
    rows: int,
    device: Device,
    loaded: LoadedConfig | None,
) -> Audit:
    """Encode a random sample of one output's rows again, and compare. Raises as `audit`."""
    dtype = str(manifest["model"]["dtype"])
    try:
        fixed = read_fixed(output)
        if fixed is None:
            raise DamagedError(f"{output.identity} is missing")
        table = StagedTable.open(output.table)
        bad = set(rows_without_vector(output, manifest).tolist())
    except DamagedError as error:
        raise config_error(
            f"the texts of output {output.name} are not in the workdir any more, or damaged",
            "Audit before `chunkvisor clean`, which removes them. `chunkvisor run CONFIG "
            "--from-scratch` makes them again, and encodes them.",
            why=str(error),
        ) from None
    # Not the same rows each time: every audit looks at others.
    count = manifest["rows"]
    candidates = random.SystemRandom().sample(range(count), min(count, rows + len(bad)))
    sample = sorted([row for row in candidates if row not in bad][:rows])
    texts = [table.texts_at(table.row_text(row, row + 1))[0] for row in sample]
    values = fixed.identity.values
    encode = EncodeSpec(**_fields_of(EncodeSpec, "encode", values))
    name = str(values["model.name"])
    revision = str(values["model.revision"])
    path = None
    if values["model.encoder"] == SENTENCE_TRANSFORMERS:
        pins = read_models(layout.model).pins
        path = next(
            (pin.path for pin in pins if (pin.name, pin.revision) == (name, revision)), name
        )
        if not Path(path).is_dir():
            raise config_error(
                f"the model of the run is not here: {path}",
                "Put it back, or let `chunkvisor run` fetch it again.",
            )
    given = {
        "path": path,
        "hub": str(layout.hub),
        "dtype": "float32",
        "trust_remote_code": bool(values["model.trust_remote_code"]),
    }
    model = ModelSpec(**_fields_of(ModelSpec, "model", values) | given)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-audit-") as folder:
        trial = try_texts(texts, model, encode, device, loaded, Path(folder))
    if trial.vectors is None:
        raise trial.failure(f"the sample of {output.name} could not be encoded")
    allowed = _ROUNDED[form_of(manifest).dtype] + allowed_difference(dtype, model)
    found = []
    expected = list[bytes]()
    places = table.places_of(sample)
    for row, place, text, stored, made in zip(
        sample, places, texts, _final_vectors(output, manifest, sample), trial.vectors, strict=True
    ):
        difference, cosine = difference_and_cosine(stored, made)
        found.append(
            {
                "row": row,
                "place": place,
                "difference": difference,
                "cosine": cosine,
                "differs": not difference <= allowed,  # a NaN differs as well
            }
        )
        if difference <= allowed and made.any() and len(expected) < EXPECTED:
            expected.append(write_line(text, made))
    return Audit(
        {"output": output.name, "dtype": dtype, "allowed": allowed, "rows": found}, encode, expected
    )


def write_expect(path: Path, audits: Sequence[Audit], encode: EncodeSpec) -> int:
    """Write texts and vectors of audited rows to a new file for `model.expect`; return how many.

    `encode` is the section of the config, without the overrides of outputs. Raises Halt (78) if no
    audited output is encoded in that way; OSError.
    """
    if path.exists():
        raise config_error(f"{path} already exists", "Name another file, or remove this one.")
    fit = next((audit for audit in audits if audit.encode == encode and audit.expected), None)
    if fit is None:
        raise config_error(
            f"nothing was written to {path}: no output is encoded as the section `encode` of the "
            f"config says",
            "Give the config, and have one output without its own `encode`.",
            why="model.expect is checked with that section, without the overrides of outputs",
        )
    write_atomic(path, fit.expected)
    return len(fit.expected)


def _fields_of(kind: type[Any], section: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message that the identity has, under names such as `model.name`."""
    return {
        key: values[f"{section}.{key}"]
        for key in kind.__dataclass_fields__
        if f"{section}.{key}" in values
    }


def _final_vectors(
    output: OutputLayout, manifest: Manifest, rows: Sequence[int]
) -> Iterator[Vectors]:
    """Yield the vectors of these rows, which rise, from the final file."""
    wanted = np.array(rows)
    first = 0
    try:
        for block in final_rows(output, manifest):
            here = wanted[(first <= wanted) & (wanted < first + len(block))]
            yield from block[here - first].astype(np.float32, copy=False)
            first += len(block)
    except BadVectorsError as error:
        raise Halt(
            ExitCode.DISK,
            f"the final file of {output.name} is damaged: {error}",
            "Run the same config again: it makes the file again.",
        ) from None
