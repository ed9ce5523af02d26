"""Makes the final file of one output, whose chunks are all committed, and its manifest.

A final file that was there before stays valid until one rename replaces it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from chunkvisor.assemble.badrows import record
from chunkvisor.assemble.forms import Form, place_of
from chunkvisor.assemble.join import Final, TakenDamagedError, assemble, texts_without
from chunkvisor.assemble.manifest import describe_files, publish, record_cut
from chunkvisor.config.choices import digested
from chunkvisor.engine.modelsource import LocalModel
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.reuse import taken_of
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.identity import TEXT_KEYS, BadText, Fixed, Staged
from chunkvisor.store.ledger import Ledger, Reuse
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import remove_folder
from chunkvisor_worker.contract.messages import Spec

_MAX_LINES = 100
"""For that many quarantined rows, the line of the source is looked up."""


def finish(
    form: Form,
    fixed: Fixed,
    staged: Staged,
    ledger: Ledger,
    table: StagedTable,
    reuse: Reuse | None,
    job: Spec,
    local: LocalModel | None,
    keep_chunks: bool,
    on_block: Callable[[], None],
) -> dict[str, Any]:
    """Return rows, dimension and path of the final file, and how many rows were cut; see `OutputRun.finish`.

    Raises Halt, OSError, and what `on_block` raises.
    """
    layout, model, encode, form = ledger.layout, job.model, job.encode, form.of(table.rows)
    if local is not None:
        local.check()
    try:
        taken = taken_of(layout, reuse, ledger, on_block) if reuse is not None else None
        final = assemble(ledger, table, on_block, form, taken)
    except TakenDamagedError as error:
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"{layout.name}: vectors that were to be taken over are not what they were",
            why=str(error),
            remedy="run the same command again: it looks them up again, and encodes what it does not find",
        ) from error
    facts = ledger.facts
    assert facts is not None
    bad = _quarantined_rows(texts_without(ledger, taken), table, final)
    cut = record_cut(ledger, table, reuse, on_block)
    prompt = encode.prompt if encode.prompt is not None or facts.loaded is None else facts.loaded.prompt
    max_length = facts.max_length if facts.max_length is not None else model.max_length
    manifest = {
        "rows": staged.rows,
        "dimension": final.dimension,
        **describe_files(layout, form, staged.rows, final.digests, final.ranges),
        "fingerprint": fixed.identity.fingerprint,
        **record(layout, len(final.bad_rows), bad),
        "distinct_texts": staged.distinct,
        "truncated": cut,
        "zero_rows": final.zero_rows,
        "model": {
            "name": model.name,
            "revision": model.revision,
            "dtype": facts.dtype or model.dtype,
            "max_length": max_length,
            "encoder": model.encoder,
            "trust_remote_code": model.trust_remote_code,
            "loaded": asdict(facts.loaded) if facts.loaded else None,
        },
        "encode": {
            "normalize": encode.normalize,
            "prompt": prompt,  # what stood before every text: by name, or as the model's default, as well
            "prompt_name": encode.prompt_name,
            "task": encode.task,
            "kwargs": digested(encode.kwargs),
            "truncate_dim": encode.truncate_dim,
        },
        "source": {"files": list(staged.files), "digest": staged.digest},
        "text": {key: value for key in TEXT_KEYS if (value := fixed.identity.values.get(key)) is not None},
        "versions": {"chunkvisor": __version__, **facts.versions},
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "generation": fixed.generation,
    }
    if facts.linear:
        manifest["linear"] = facts.linear
    if ledger.other_versions:
        manifest["other_versions"] = ledger.other_versions
    if reuse is not None:
        used = [each for each in reuse.places if each.texts]
        manifest["reused"] = [{"from": each.words, "texts": each.texts, "versions": each.versions} for each in used]
        manifest["texts_encoded"] = reuse.encoded
    publish(layout, manifest)
    remove_folder(layout.before)
    # With rows in quarantine the chunks stay: `retry` has only the bad texts computed again.
    if not keep_chunks and not manifest["quarantined"]:
        remove_folder(layout.chunks)
    return {
        "rows": staged.rows,
        "dimension": final.dimension,
        "path": str(place_of(layout, form)),
        "truncated": (cut or {}).get("rows", 0),
        "max_length": max_length or 0,
    }


def _quarantined_rows(without: dict[int, BadText], table: StagedTable, final: Final) -> Iterator[dict[str, Any]]:
    for number, (row, text) in enumerate(final.bad_rows):
        bad = without[text]
        # To find a line, the source is read up to it.
        place = table.place_of(row, with_line=number < _MAX_LINES)
        yield {"row": row, "outcome": str(bad.outcome), "reason": bad.reason, "place": place}
