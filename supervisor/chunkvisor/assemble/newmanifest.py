"""The manifest of a final that was just made, and what it says of its files."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chunkvisor.assemble.finalfiles import parts_of, place_of
from chunkvisor.assemble.form import Form
from chunkvisor.assemble.join import Final
from chunkvisor.assemble.sides import describe_ranges
from chunkvisor.config.secretnames import digested
from chunkvisor.store.artifact import Vectors
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import Stamp, digest_of
from chunkvisor.version import __version__
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, ModelSpec


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the rows of an output come from."""

    rows: int
    distinct_texts: int
    digest: str
    """Of the texts and their order."""
    files: list[str]


def build_manifest(
    layout: OutputLayout,
    form: Form,
    fingerprint: str,
    final: Final,
    facts: Facts,
    model: ModelSpec,
    encode: EncodeSpec,
    origin: Origin,
    quarantined: dict[str, Any],
    truncated: dict[str, Any] | None,
) -> dict[str, Any]:
    """The manifest as plain values; sizes and counts are plain numbers.

    `quarantined` is what `badrows.record` says, `truncated` what `truncated.record` says.
    """
    loaded = facts.loaded
    prompt = encode.prompt if encode.prompt is not None or loaded is None else loaded.prompt
    return {
        "rows": origin.rows,
        "dimension": final.dimension,
        **describe_files(layout, form, origin.rows, final.stamps, final.ranges),
        "fingerprint": fingerprint,
        **quarantined,
        "distinct_texts": origin.distinct_texts,
        "truncated": truncated,
        "zero_rows": final.zero_rows,
        "model": {
            "name": model.name,
            "revision": model.revision,
            "dtype": facts.dtype or model.dtype,
            "max_length": facts.max_length if facts.max_length is not None else model.max_length,
            "encoder": model.encoder,
            "trust_remote_code": model.trust_remote_code,
            "loaded": asdict(loaded) if loaded else None,
        },
        "encode": {
            "normalize": encode.normalize,
            "prompt": prompt,  # what stood before every text: by name, or as the model's default, as well
            "prompt_name": encode.prompt_name,
            "task": encode.task,
            "kwargs": digested(encode.kwargs),
            "truncate_dim": encode.truncate_dim,
        },
        "source": {"files": origin.files, "digest": origin.digest},
        **({"linear": asdict(facts.linear)} if facts.linear else {}),
        "versions": {"chunkvisor": __version__, **facts.versions},
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


FILE_KEYS = ("format", "dtype", "digest", "shards", "ranges", "carried")
"""Keys of a manifest that `describe_files` gives."""


def describe_files(
    layout: OutputLayout, form: Form, rows: int, stamps: Sequence[Stamp], ranges: Vectors | None
) -> dict[str, Any]:
    """The manifest's `format`, `dtype` and `digest`; `shards`, `ranges` and `carried` where there are any.

    With shards, `digest` is that of the list of theirs.
    """
    said = {"format": str(form.format), "dtype": str(form.dtype)}
    beside = {} if ranges is None else {"ranges": describe_ranges(layout, ranges)}
    if form.carried is not None:
        beside["carried"] = {"digest": f"sha256:{form.carried}"}
        if form.has_rows_table:
            beside["carried"]["file"] = layout.rows_table.name
    digests = [f"sha256:{stamp.digest}" for stamp in stamps]
    if form.shards is None:
        return said | {"digest": digests[0]} | beside
    parts = parts_of(place_of(layout, form), rows, form)
    listed = [
        {"file": str(part.path.relative_to(layout.workdir)), "rows": part.rows, "digest": digest}
        for part, digest in zip(parts, digests, strict=True)
    ]
    return said | {"digest": f"sha256:{digest_of(digests)}", "shards": listed} | beside
