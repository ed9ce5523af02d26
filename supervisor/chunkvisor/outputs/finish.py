"""ENCODING ──► PUBLISHING: joins the committed chunks, and puts the manifest together."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from chunkvisor.child import OnWait
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.outputs.forms import BadRow, Form, Manifest
from chunkvisor.outputs.join import JoinInputs, assemble
from chunkvisor.outputs.publish import (
    complete_publication,
    describe_file,
    list_quarantined,
    publish,
    remove_leftovers,
)
from chunkvisor.store.artifact import pick_numbers, read_shape
from chunkvisor.store.identity import TEXT_KEYS, Fixed
from chunkvisor.store.records import digest_file
from chunkvisor.store.reuse import ReuseFiles
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import write_atomic
from chunkvisor_worker.contract.messages import Facts

_ROWS_AT_ONCE = 1 << 18


def finish_output(
    inputs: JoinInputs,
    form: Form,
    fixed: Fixed,
    model: ModelSource,
    keep_chunks: bool,
    more: Manifest,
    on_wait: OnWait,
) -> dict[str, Any]:
    """Join and publish the output; return the fields of the event `OutputComplete`.

    `more` are further entries of the manifest. Raises Halt, OSError, and what `on_wait` raises.
    """
    ledger = inputs.ledger
    table = inputs.table
    reuse = inputs.reuse
    layout = ledger.layout
    model.check_unchanged()
    if reuse and not ledger.facts:  # all vectors are copies, and the record of the model was lost
        with open(reuse.files.copied, "rb") as file:
            ledger.fix_facts(Facts(read_shape(file).dimension, versions=reuse.places[0].versions))
    complete_publication(layout)  # of a join that failed after the rename, and is tried again
    final = assemble(inputs, form, on_wait)
    facts = ledger.facts
    assert facts
    cut = _record_cut(inputs, on_wait)
    values = fixed.identity.values
    prompt = values.get("encode.prompt")
    if prompt is None and facts.loaded:
        prompt = facts.loaded.prompt
    max_length = facts.max_length or values.get("model.max_length")
    manifest = {
        "rows": table.rows,
        "dimension": final.dimension,
        **describe_file(layout, form, final.digest),
        "fingerprint": fixed.identity.fingerprint,
        **list_quarantined(layout, quarantined(inputs, on_wait)),
        "distinct_texts": table.distinct,
        "truncated": cut,
        "zero_rows": final.zero_rows,
        "model": {
            **_section(fixed, "model."),
            "dtype": facts.dtype or values["model.dtype"],
            "max_length": max_length,
            "loaded": asdict(facts.loaded) if facts.loaded else None,
        },
        # The text of the prompt, also if it was chosen by name or is the model's default.
        "encode": {**_section(fixed, "encode."), "prompt": prompt},
        "source": {"files": list(fixed.files), "digest": table.digest},
        "text": {key: value for key, value in values.items() if key in TEXT_KEYS},
        "versions": {"chunkvisor": __version__, **facts.versions},
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "generation": layout.generation,
        **more,
    }
    if facts.linear:
        manifest["linear"] = facts.linear
    if ledger.other_versions:
        manifest["other_versions"] = ledger.other_versions
    if reuse:
        manifest["reused"] = [
            {"from": each.words, "texts": each.texts, "versions": each.versions}
            for each in reuse.places
        ]
        manifest["texts_encoded"] = reuse.encoded
    publish(layout, manifest)
    # With rows in quarantine the chunks stay: `retry` has only the bad texts computed again.
    remove_leftovers(layout, keep_chunks=keep_chunks or bool(manifest["quarantined"]))
    return {
        "rows": table.rows,
        "dimension": final.dimension,
        "path": str(layout.file(form.format)),
        "truncated": (cut or {}).get("rows", 0),
        "max_length": max_length or 0,
    }


def _section(fixed: Fixed, prefix: str) -> Manifest:
    values = fixed.identity.values.items()
    return {key.removeprefix(prefix): value for key, value in values if key.startswith(prefix)}


def quarantined(inputs: JoinInputs, on_wait: OnWait) -> Iterator[BadRow]:
    """Give all rows without a vector, in order, as a manifest lists them."""
    table = inputs.table
    bad = inputs.bad_texts()
    if not bad:
        return
    numbers = np.fromiter(bad, dtype=np.int64)
    for start in range(0, table.rows, _ROWS_AT_ONCE):
        texts = table.row_text(start, min(start + _ROWS_AT_ONCE, table.rows))
        rows = (start + np.flatnonzero(np.isin(texts, numbers))).tolist()
        for row, place in zip(rows, table.places_of(rows), strict=True):
            why = bad[int(texts[row - start])]
            yield {"row": row, "outcome": str(why.outcome), "reason": why.reason, "place": place}
        on_wait()


def _record_cut(inputs: JoinInputs, on_wait: OnWait) -> Manifest | None:
    """Write the list of the rows whose text was cut; return the manifest's entry `truncated`.

    None if the encoder does not count them. Raises OSError.
    """
    ledger = inputs.ledger
    table = inputs.table
    reuse = inputs.reuse
    layout = ledger.layout
    count = 0
    if not ledger.facts or not ledger.facts.counts_cut:
        layout.cut_rows.unlink(missing_ok=True)
        return None
    own = layout.cut_texts(ledger.fingerprint)
    copies = ReuseFiles(layout.reuse).tokens

    def tokens_before_the_cut() -> Iterator[bytes]:
        """Give an int32 for each row, 0 if it is whole; write the lines of the list as well."""
        nonlocal count
        with open(layout.truncated_kept, "wb") as lines:
            for start in range(0, table.rows, _ROWS_AT_ONCE):
                numbers = table.row_text(start, min(start + _ROWS_AT_ONCE, table.rows))
                where = reuse.where_of(numbers) if reuse else ~numbers
                tokens = np.zeros(len(numbers), dtype="<i4")
                for file, hits in ((own, where < 0), (copies, where >= 0)):
                    if file.exists():
                        tokens[hits] = pick_numbers(file, np.maximum(where, ~where)[hits], "<i4")
                tokens = np.maximum(tokens, 0)  # of copies that were not counted
                rows = np.flatnonzero(tokens)
                count += len(rows)
                pairs = zip((rows + start).tolist(), tokens[rows].tolist(), strict=True)
                lines.writelines(b'{"row": %d, "tokens": %d}\n' % pair for pair in pairs)
                yield tokens.tobytes()
                on_wait()

    write_atomic(layout.cut_rows, tokens_before_the_cut())
    if not count:
        return {"rows": 0}
    digest = f"sha256:{digest_file(layout.truncated_kept)}"
    return {"rows": count, "file": layout.truncated.name, "digest": digest}
