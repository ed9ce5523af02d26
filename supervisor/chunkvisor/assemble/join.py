"""Joins the chunks of an output into its final, in bounded memory.

The rows are put together in float32. A final of another form is made from a file of them that nobody gets to see.
"""

import errno
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from chunkvisor.assemble.forms import Form, parts_of, place_of
from chunkvisor.assemble.numbers import Positions, Ranges
from chunkvisor.assemble.reader import ChunkDamagedError, Taken, TakenDamagedError, TextVectors
from chunkvisor.assemble.sides import describe_ranges
from chunkvisor.assemble.writer import FinalWriter, Source, clear_partial, reform, rows_of
from chunkvisor.config.choices import digested
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.artifact import BLOCK_BYTES, BadVectorsError, Vectors, bad_rows
from chunkvisor.store.identity import BadText
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import ENCODED, Ledger
from chunkvisor.store.records import Stamp, digest_of
from chunkvisor.version import __version__
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, ModelSpec

_ROWS_AT_ONCE = 1 << 18
_BLOCKS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Final:
    """What was published."""

    stamps: tuple[Stamp, ...]
    """Of its file, or of each of its shards."""
    dimension: int
    zero_rows: int
    """Rows that are zero throughout; only blank texts have such vectors."""
    bad_rows: list[tuple[int, int]]
    """(row, number of its text) of every row that has no vector, in order."""
    ranges: Vectors | None = None
    """Of an int8 final, float32, shape (2, dimension)."""


def assemble(
    ledger: Ledger,
    table: StagedTable,
    on_block: Callable[[], None],
    form: Form | None = None,
    taken: Taken | None = None,
    on_written: Callable[[Final], None] = lambda _: None,
) -> Final:
    """Write, verify and publish the final, as one .npy of float32 unless another form is asked for.

    Calls `on_block` now and then; it may raise to stop. `on_written` gets what is verified, before it is published.
    Raises ChunkDamagedError, TakenDamagedError, OSError; Halt (78) where the numbers do not go into the form.
    """
    assert ledger.facts is not None
    layout, dimension, form = ledger.layout, ledger.facts.dimension, form or Form()
    clear_partial(layout)
    if form.is_of_rows:
        with FinalWriter(layout, table.rows, dimension, form) as writer:
            joined = _join(ledger, table, writer, on_block, taken)
            final = Final(writer.stamps(), dimension, joined.zero_rows, joined.bad_rows)
            on_written(final)
            return replace(final, stamps=writer.publish())
    ranges = Ranges(dimension)
    with FinalWriter(layout, table.rows, dimension, Form(), layout.partial_rows) as writer:
        joined = _join(ledger, table, writer, on_block, taken, ranges)
    source = Source(layout, table.rows, dimension, Form(), [row for row, _ in joined.bad_rows], ranges.values)
    try:
        with reform(source, lambda _: rows_of(layout.partial_rows, source), form, on_block) as reformed:
            written = reformed.writer.stamps()
            final = Final(written, dimension, joined.zero_rows, joined.bad_rows, reformed.ranges)
            on_written(final)
            final = replace(final, stamps=reformed.publish())
    except BadVectorsError as error:
        raise OSError(errno.EIO, f"does not hold what was written to it: {error}", str(layout.partial_rows)) from None
    clear_partial(layout)
    return final


@dataclass(frozen=True, slots=True)
class _Joined:
    """See Final."""

    zero_rows: int
    bad_rows: list[tuple[int, int]]


def _join(
    ledger: Ledger,
    table: StagedTable,
    writer: FinalWriter,
    on_block: Callable[[], None],
    taken: Taken | None,
    ranges: Ranges | None = None,
) -> _Joined:
    """Write the rows; row i gets the vector of text `row_text[i]`.

    Texts are numbered in the order of their first row, so the chunks are read once, from the first to the last; a row
    whose text came before gets its vector from what is already written.
    """
    dimension = writer.numbers.dimension
    per_block, zero_rows = max(1, BLOCK_BYTES // (4 * dimension)), 0
    with TextVectors(ledger, taken) as vectors:
        bad, nan_rows = np.fromiter(texts_without(ledger, taken), dtype=np.int64), list[tuple[int, int]]()
        room, spare = (np.empty((per_block, dimension), dtype="<f4") for _ in range(2))
        for rows in _blocks(table, per_block, writer.expect):
            block, new = room[: len(rows.ids)], spare[: rows.fresh]
            if rows.fresh == len(rows.ids):
                vectors.fill(block)  # no text of the block came before, so its ids rise by one from row to row
            elif rows.fresh:
                vectors.fill(new)
                # Clipped, so that the rows of old texts get some vector for now: one copy instead of two.
                np.take(new, rows.ids - rows.seen, axis=0, out=block, mode="clip")
            if len(rows.old):
                block[rows.old] = writer.read(rows.old_from)
            hits = np.flatnonzero(np.isin(rows.ids, bad)) if len(bad) else np.empty(0, dtype=np.int64)
            nan_rows += [(rows.first + int(row), int(rows.ids[row])) for row in hits]
            not_finite, zero = bad_rows(block)
            if len(others := np.setxor1d(not_finite, hits)):
                raise _other_rows(int(rows.ids[others[0]]), ledger, taken)
            zero_rows += len(zero)
            if ranges is not None:
                ranges.take(block, hits)
            writer.write(block, hits)
            on_block()
        assert vectors.at_end
    return _Joined(zero_rows, nan_rows)


def texts_without(ledger: Ledger, taken: Taken | None) -> dict[int, BadText]:
    """Texts that have no vector, by number."""
    if taken is None:
        return ledger.bad
    own = {int(taken.reuse.texts_of(number, number + 1)[0]): bad for number, bad in ledger.bad.items()}
    return {**taken.without, **own}


def _other_rows(text: int, ledger: Ledger, taken: Taken | None) -> Exception:
    """The text has no vector, or has one against its record."""
    words = "has other rows without a vector than its record says"
    if taken is not None:
        where = taken.reuse.where(text, text + 1)[0]
        if where["place"] != ENCODED:
            return TakenDamagedError(f"{taken.reuse.places[where['place']].words} {words}")
        text = int(where["row"])
    return ChunkDamagedError(text // ledger.plan.chunk_size, words)


@dataclass(frozen=True, slots=True)
class _Block:
    """Which vectors a block of rows has."""

    first: int
    """Its first row."""
    ids: Positions
    """Of the rows' texts."""
    seen: int
    """Texts that have a row before the block."""
    fresh: int
    """Texts that have their first row in it."""
    old: Positions
    """Positions of the rows whose text came before the block."""
    old_from: Positions
    """First rows of those texts."""


def _blocks(table: StagedTable, per_block: int, expect: Callable[[Positions], None]) -> Iterator[_Block]:
    """All rows, in blocks of `per_block`; what is read back for a block is expected long before."""
    before: list[_Block] = []
    for blocks in _stretches(table, per_block):
        if before:
            old_from = np.concatenate([block.old_from for block in blocks])
            expect(old_from[old_from < before[0].first])
        yield from before
        before = blocks
    yield from before


def _stretches(table: StagedTable, per_block: int) -> Iterator[list[_Block]]:
    """The same, several blocks at a time, so that the table is not asked for each."""
    seen, at_once = 0, per_block * max(1, min(_BLOCKS_AT_ONCE, _ROWS_AT_ONCE // per_block))
    for start in range(0, table.rows, at_once):
        ids = table.row_text(start, min(start + at_once, table.rows))
        # Texts are numbered as they come: what is the greatest number so far tells how many there were.
        upto = np.maximum(np.maximum.accumulate(ids) + 1, seen)
        cuts = range(per_block, len(ids), per_block)
        pieces = np.split(ids, cuts)
        bounds = [seen, *(int(piece[-1]) for piece in np.split(upto, cuts))]
        old = [np.flatnonzero(piece < there) for piece, there in zip(pieces, bounds, strict=False)]
        firsts = table.first_rows_of(np.concatenate([piece[rows] for piece, rows in zip(pieces, old, strict=True)]))
        old_from = np.split(firsts, np.cumsum([len(rows) for rows in old[:-1]]))
        yield [
            _Block(start + number * per_block, piece, there, after - there, rows, from_rows)
            for number, (piece, (there, after), rows, from_rows) in enumerate(
                zip(pieces, itertools.pairwise(bounds), old, old_from, strict=True)
            )
        ]
        seen = bounds[-1]


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
        **({"linear": facts.linear} if facts.linear else {}),
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
