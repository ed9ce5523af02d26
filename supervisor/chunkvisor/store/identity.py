"""The identity of an output: all that its vectors depend on, with its fingerprint.

What only changes how the work is done (folders, batches, chunks, devices, workers, retries) is not
part of it, and may change at any resume. Values that may be secret are in it as digests.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from chunkvisor.config.model import SENTENCE_TRANSFORMERS, Config
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import digest_of, read_if_whole, read_record, write_record
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Facts
from chunkvisor_worker.contract.secrets import digested

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
    """Return the variables in ARITHMETIC that workers will have; an empty one counts as not set.

    Those `given` by the config replace the `inherited`.
    """
    both = {**inherited, **given}
    return {name: both[name] for name in ARITHMETIC if both.get(name)}


UNREAD = 0
"""Stands for the number of rows of a source that was not read, whose digest is then made of the
sizes and times of its files."""
TEXT_KEYS = ("column", "template", "sql", "where")
"""Keys of an output that say which rows are encoded, and which text each has."""


@frozen
class Identity:
    """Dotted keys and plain values, such as {"encode.normalize": True}, in the order shown."""

    values: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """sha256 of the canonical JSON, as hex.

        A local model counts by the digest of its files (`model.revision`), not by its path.
        """
        return digest_of(self._distinguishing())

    @property
    def vector_fingerprint(self) -> str:
        """Fingerprint of what the vector of a given text depends on: not of source and rows."""
        shaping = ("model.", "encode.", "env.")
        return digest_of(
            {
                name: value
                for name, value in self._distinguishing().items()
                if name.startswith(shaping)
            }
        )

    def _distinguishing(self) -> dict[str, Any]:
        values = dict(self.values)
        # The name of a local model is an absolute path (hub ids begin with no slash), and its
        # revision says what is in it. The name of a plug-in may mean anything, and has no revision.
        is_plugin = values["model.encoder"] != SENTENCE_TRANSFORMERS
        if values["model.name"].startswith("/") and not is_plugin:
            del values["model.name"]
        return values

    @property
    def rows(self) -> int:
        """Number of rows of the source."""
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

    `revision` is that of the model: a commit hash of the hub, or the digest of a local folder;
    empty for a plug-in. `outside` has the revision of each repository or folder outside the
    model's that its files refer to. `table_digest` and `rows` identify the source (see UNREAD).
    `arithmetic` are the variables in ARITHMETIC that are set.
    """
    model = config.model
    encode = config.effective_encode(output_name)
    output = config.outputs[output_name]
    values: dict[str, Any] = {
        "model.name": model.name,
        "model.revision": revision,
        "model.outside": dict(outside) if outside else None,
        "model.dtype": model.dtype.value,
        "model.max_length": model.max_length,
        "model.kwargs": digested(model.kwargs),
        "model.encoder": model.encoder,
        # null refuses the model, or gives what false gives
        "model.trust_remote_code": model.trust_remote_code is True,
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
    """Return a sentence for each difference; none exactly if the fingerprints are equal."""
    before = old._distinguishing()
    now = new._distinguishing()
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
    if value is None:
        return "not set"
    return json.dumps(digested(value), ensure_ascii=False, sort_keys=True)


@frozen
class Plan:
    """How the texts of an output are cut into chunks, numbered from 0; its first run fixes it.

    The reuse plan is something else: it says which texts are encoded at all (`store.reuse`).
    """

    distinct: int
    """Number of distinct texts."""
    chunk_size: int
    """Distinct texts in a chunk; the last may have fewer."""

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.distinct // self.chunk_size)

    def bounds(self, chunk: int) -> tuple[int, int]:
        """Return (first text, one past the last) of the chunk."""
        return chunk * self.chunk_size, min(self.distinct, (chunk + 1) * self.chunk_size)

    def size(self, chunk: int) -> int:
        """Count the texts in the chunk."""
        start, stop = self.bounds(chunk)
        return stop - start

    def texts_in(self, chosen: bytearray) -> int:
        """Count the texts in the chosen chunks: those whose byte in `chosen` is not 0."""
        count = (len(chosen) - chosen.count(0)) * self.chunk_size
        if chosen and chosen[-1]:
            count -= self.chunk_size - self.size(self.count - 1)
        return count


@frozen
class BadText:
    """A text that gets no vector, not even in a batch by itself."""

    text: int
    """Its number among the distinct texts."""
    outcome: Outcome
    reason: str


@frozen
class Fixed:
    """What the first run of an output fixes for later ones, and what it found in the source."""

    identity: Identity
    chunk_size: int
    """Distinct texts in a chunk."""
    asked: dict[str, Any]
    """What the staged table depends on; see `outputs.stage`."""
    distinct: int
    """Number of distinct texts."""
    files: tuple[str, ...]
    carried: str | None = None
    """sha256 of the rows table, if columns are carried along or rows are left out."""
    place: str | None = None
    """Path of a final file outside the workdir, relative to it."""
    anew: bool = False
    """The generation began with --from-scratch: it takes no vector that the workdir had before."""


@frozen
class FactsRecord:
    """What workers have reported about the model, and about what computed the vectors."""

    facts: Facts
    other_versions: tuple[dict[str, str], ...] = ()
    """Versions of libraries that computed some of the texts, other than those in the facts."""


def read_fixed(layout: OutputLayout) -> Fixed | None:
    """Return the record, or None if the output was never begun. Raises DamagedError, OSError."""
    return read_record(Fixed, layout.identity)


def read_facts(layout: OutputLayout) -> Facts | None:
    """Return the model facts, or None if there is no record, or it is damaged."""
    record = read_if_whole(FactsRecord, layout.facts)
    return record.facts if record else None


def write_facts(
    layout: OutputLayout, facts: Facts, other_versions: Sequence[dict[str, str]] = ()
) -> None:
    """Write them. Raises OSError."""
    write_record(layout.facts, FactsRecord(facts, tuple(other_versions)))
