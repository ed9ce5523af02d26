"""Everything that shapes the vectors of one output, with its fingerprint.

What only changes how the work is done (folders, batches, chunks, devices, workers, retries) is not
in it, so that it may change at any resume. Of what is probably a secret it has a digest.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from chunkvisor.config.choices import digested
from chunkvisor.config.model import SENTENCE_TRANSFORMERS, Config
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import digest_of, read_if_whole, read_record, write_record
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Facts

ARITHMETIC = (
    "NVIDIA_TF32_OVERRIDE",  # TF32 in every NVIDIA library (cuBLAS, "NVIDIA_TF32_OVERRIDE")
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",  # the same in torch's matrix products (ATen/Context.cpp)
    # other kernels, hence other last digits (cuBLAS, "Results Reproducibility")
    "CUBLAS_WORKSPACE_CONFIG",
    # float32 out of bfloat16 (cuBLAS, "Floating Point Emulation")
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
    "ONEDNN_DEFAULT_FPMATH_MODE",  # bfloat16 for float32 on CPUs that have it (oneDNN, "Math Mode")
    "DNNL_DEFAULT_FPMATH_MODE",  # its earlier name, which still holds
)


def arithmetic_variables(inherited: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return those that workers will have, `given` by the config over the `inherited`.

    An empty one is not set.
    """
    both = {**inherited, **given}
    return {name: both[name] for name in ARITHMETIC if both.get(name)}


UNREAD = 0
"""For `rows` of a source that was not read, whose digest is one of the state of its files; no
source has no rows."""
TEXT_KEYS = ("column", "template", "sql", "where")
"""Names of what says which text of a row is encoded, and of which rows."""


@frozen
class Identity:
    """Dotted names and plain values, in the order in which they are shown."""

    values: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """sha256 of the canonical JSON, as hex.

        A local model counts by its revision, a digest, not by its place.
        """
        return digest_of(self._distinguishing())

    @property
    def vector_fingerprint(self) -> str:
        """Fingerprint of all that makes one text's vector.

        Without source, template and number of rows.
        """
        shaping = ("model.", "encode.", "env.")
        return digest_of(
            {
                name: value
                for name, value in self._distinguishing().items()
                if name.startswith(shaping)
            }
        )

    def _distinguishing(self) -> dict[str, Any]:
        # The config makes the path of a local folder absolute, and no hub id begins with a slash. A
        # plug-in's name may mean anything, and no revision stands for it.
        values = self.values
        is_local = values["model.encoder"] == SENTENCE_TRANSFORMERS and values[
            "model.name"
        ].startswith("/")
        return {
            name: value for name, value in values.items() if not (is_local and name == "model.name")
        }

    @property
    def rows(self) -> int:
        """Rows of the source."""
        return int(self.values["source.rows"])

    @property
    def source_digest(self) -> str:
        """Digest of the staged source."""
        return str(self.values["source.digest"])


def identity_of(
    config: Config,
    output_name: str,
    revision: str,
    table_digest: str,
    rows: int,
    arithmetic: Mapping[str, str],
    outside: Mapping[str, str] | None = None,
) -> Identity:
    """Make the identity of one output.

    `arithmetic` are the variables of the workers that choose other arithmetic. `revision` is the
    resolved one: a commit hash of the hub or a digest of a local folder; empty for a plug-in.
    `outside` has the same of what the model's files name outside its folder. `table_digest` and
    `rows` tell the staged source from another (see UNREAD).
    """
    model, encode, output = (
        config.model,
        config.effective_encode(output_name),
        config.outputs[output_name],
    )
    values: dict[str, Any] = {
        "model.name": model.name,
        "model.revision": revision,
        "model.outside": dict(outside) if outside else None,
        "model.dtype": model.dtype.value,
        "model.max_length": model.max_length,
        "model.kwargs": digested(model.kwargs),
        "model.encoder": model.encoder,
        "model.trust_remote_code": model.trust_remote_code
        is True,  # null refuses, or gives what false gives
        "model.pooling": model.pooling,
        "encode.normalize": encode.normalize,
        "encode.prompt": encode.prompt,
        "encode.prompt_name": encode.prompt_name,
        "encode.truncate_dim": encode.truncate_dim,
        "encode.task": encode.task,
        "encode.kwargs": digested(encode.kwargs) or None,
        "column": output.column,
        "template": output.template,
        "sql": output.sql,
        "where": output.where,
        "skip_blank": output.skip_blank,
        "source.rows": rows,
        "source.digest": table_digest,
        **{f"env.{name}": value for name, value in arithmetic.items()},
    }
    return Identity({name: value for name, value in values.items() if value is not None})


def differences(old: Identity, new: Identity) -> list[str]:
    """Return a sentence for each thing that would give other vectors.

    None exactly if the fingerprints are equal.
    """
    before, now = old._distinguishing(), new._distinguishing()
    sentences = []
    for name in dict.fromkeys((*now, *before)):
        if name == "source.digest" or digest_of(before.get(name)) == digest_of(now.get(name)):
            continue
        if name == "source.rows":
            sentences.append(f"source: {old.rows:,} rows before, {new.rows:,} now")
        else:
            sentences.append(
                f"{name}: {_shown(old.values.get(name))} before, {_shown(new.values.get(name))} now"
            )
    if old.source_digest != new.source_digest and old.rows == new.rows:
        of_files = "its files have changed, or are other files than before"
        sentences.append(
            f"source: {of_files if new.rows == UNREAD else 'same number of rows, other content'}"
        )
    return sentences


def _shown(value: Any) -> str:
    return (
        "not set"
        if value is None
        else json.dumps(digested(value), ensure_ascii=False, sort_keys=True)
    )


@frozen
class Plan:
    """Chunks of one output, numbered from 0; fixed by the output's first run."""

    distinct: int
    """Distinct texts."""
    chunk_size: int
    """Distinct texts in a chunk; the last may have fewer."""

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.distinct // self.chunk_size)

    def bounds(self, chunk: int) -> tuple[int, int]:
        """(first text, one past the last) of the chunk."""
        return chunk * self.chunk_size, min(self.distinct, (chunk + 1) * self.chunk_size)

    def size(self, chunk: int) -> int:
        """Count the texts in the chunk."""
        start, stop = self.bounds(chunk)
        return stop - start

    def texts_in(self, chosen: bytearray) -> int:
        """Count the texts in the chunks that are chosen: one byte a chunk, 1 or 0."""
        count = chosen.count(1) * self.chunk_size
        return count - (self.chunk_size - self.size(self.count - 1)) * bool(chosen and chosen[-1])


@frozen
class BadText:
    """A text that fails alone."""

    text: int
    """Its number among the distinct texts."""
    outcome: Outcome
    reason: str


@frozen
class Fixed:
    """What the first run of an output fixes, and what its source was found to hold."""

    identity: Identity
    chunk_size: int
    """Distinct texts in a chunk."""
    asked: dict[str, Any]
    """All that the request depends on which the staged table answers."""
    distinct: int
    """Distinct texts."""
    files: tuple[str, ...]
    carried: str | None = None
    """Digest of the rows table, if columns are carried along or rows are left out."""
    place: str | None = None
    """Of the final file, relative to the workdir, if it is not in it."""
    anew: bool = False
    """Nothing is taken over that the workdir had before."""


@frozen
class FactsRecord:
    """What is known of the model, and of what computed the vectors."""

    facts: Facts
    other_versions: tuple[dict[str, str], ...] = ()
    """Of libraries, that computed some of the texts after those of the facts."""


def read_fixed(layout: OutputLayout) -> Fixed | None:
    """Return the record, or None if the output was never begun. Raises DamagedError, OSError."""
    return read_record(Fixed, layout.identity)


def read_facts(layout: OutputLayout) -> Facts | None:
    """Return the facts, or None if they are not known, or not any more."""
    record = read_if_whole(FactsRecord, layout.facts)
    return record.facts if record is not None else None


def write_facts(
    layout: OutputLayout, facts: Facts, other_versions: Sequence[dict[str, str]] = ()
) -> None:
    """Write them. Raises OSError."""
    write_record(layout.facts, FactsRecord(facts, tuple(other_versions)))
