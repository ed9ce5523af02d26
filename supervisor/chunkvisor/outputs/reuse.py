"""Finds which texts of an output have a vector elsewhere, and copies these vectors next to the output's own chunks.

They come from the output's own earlier final file, from other finished outputs, or from chunks of a state that is given
up; only under the same vector identity.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from chunkvisor.errors import config_error
from chunkvisor.events.event import Emit, Warned
from chunkvisor.outputs.forms import form_of
from chunkvisor.outputs.join import final_rows
from chunkvisor.outputs.publish import read_moved, read_recorded, rows_without_vector
from chunkvisor.sources.table import StagedTable, TableFiles, matches
from chunkvisor.store.artifact import (
    BadVectorsError,
    Vectors,
    bad_rows,
    blocks,
    npy_header,
    pick_rows,
    read_shape,
)
from chunkvisor.store.chunkfiles import chunk_files
from chunkvisor.store.identity import Fixed, Identity, read_facts, read_fixed
from chunkvisor.store.layout import Layout, OutputLayout, unfinished
from chunkvisor.store.records import DamagedError
from chunkvisor.store.reuse import (
    Place,
    ReuseFiles,
    ledger_of,
    read_reuse,
    write_plan,
)
from chunkvisor_worker.contract.files import make_folder, remove_folder, sync_folder
from chunkvisor_worker.contract.messages import Facts

Rows = npt.NDArray[np.int64]
Blocks = Iterator[tuple[int, Vectors]]
"""Vectors that stand one after the other, with the number of the first; the numbers rise."""


# --- who may have vectors


@dataclass(frozen=True, slots=True)
class Donor:
    """One place that may have some of the texts."""

    place: Place
    index: Path  # of the texts of its source
    facts: Facts
    blocks: Callable[
        [], Blocks
    ]  # read its vectors and check them; raises BadVectorsError, FileNotFoundError
    numbers: Callable[
        [Rows], Rows
    ]  # its numbers for rows of that source; -1 = it has no vector for them
    tokens: Callable[
        [Rows], Rows
    ]  # tokens before the cut for numbers of it: 0 = whole, -1 = not counted


def of_final(layout: OutputLayout, wanted: Identity, words: str) -> Donor | None:
    """Offer the final file of a finished state; None if it is none, or `wanted` can have nothing of it."""
    try:
        fixed = read_fixed(layout)
        manifest = read_recorded(layout)
        if fixed is None or manifest is None or not _fits(layout, fixed, wanted):
            return None
        form = form_of(manifest)
        final = read_moved(layout) or layout
        is_of_this = manifest["fingerprint"] == fixed.identity.fingerprint
        if not is_of_this or not form.is_exact or not final.file(form.format).exists():
            return None
        bad = rows_without_vector(layout, manifest)
    except (DamagedError, OSError):
        return None
    versions = {name: each for name, each in manifest["versions"].items() if name != "chunkvisor"}
    return Donor(
        Place(words, versions),
        TableFiles(layout.table).index,
        read_facts(layout) or Facts(int(manifest["dimension"]), versions=versions),
        lambda: _numbered(0, final_rows(final, manifest)),
        lambda rows: np.where(np.isin(rows, bad), -1, rows),
        partial(_tokens_in, layout.cut_rows, -1),
    )


def of_other_workdirs(folders: Sequence[Path], wanted: Identity) -> Iterator[Donor | None]:
    """Offer finished outputs of other workdirs. Raises Halt (78) if one of the folders is not a workdir."""
    for folder in folders:
        layout = Layout(folder)
        if not layout.outputs.is_dir():
            what = f"reuse_from: {folder} is not a workdir of chunkvisor"
            raise config_error(what, remedy="Correct it, or remove it from the list.")
        for path in sorted(layout.outputs.glob("*/")):
            yield of_final(layout.output(path.name), wanted, f"{folder} output {path.name}")


def of_chunks(layout: OutputLayout, wanted: Identity) -> Donor | None:
    """Offer what a state has committed, or copied, that will have no final file; None if that is nothing."""
    try:
        fixed = read_fixed(layout)
        reuse = read_reuse(layout)
        table = TableFiles(layout.table)
        if (
            fixed is None
            or not _fits(layout, fixed, wanted)
            or (ledger := ledger_of(layout)) is None
        ):
            return None
        ledger.load()
    except (DamagedError, OSError):
        return None
    if (facts := ledger.facts) is None:
        return None
    plan = ledger.plan
    copies = ReuseFiles(layout.reuse)
    cut = layout.cut_texts(ledger.fingerprint)
    whole = {chunk: path for chunk, path in chunk_files(layout) if ledger.is_whole(chunk, path)}

    # Texts that are encoded keep their numbers; the rows of the copies follow.
    files = [(plan.bounds(chunk)[0], path) for chunk, path in whole.items()]
    if reuse is not None:
        files.append((plan.distinct, copies.copied))
    if not files:
        return None

    def numbers(rows: Rows) -> Rows:
        texts = pick_rows(table.row_text, "<i8", 0, 1, rows)[:, 0].astype(np.int64)
        copied = np.zeros(len(rows), bool)
        if reuse is not None:
            where = reuse.where_of(texts)
            texts = np.maximum(where, ~where)
            copied = where >= 0
        done = np.isin(texts // plan.chunk_size, [*whole]) & ~np.isin(texts, [*ledger.bad])
        return np.where(copied, plan.distinct + texts, np.where(done, texts, -1))

    def tokens(numbers: Rows) -> Rows:
        own = numbers < plan.distinct
        found = _tokens_in(cut, 0 if facts.counts_cut else -1, numbers[own])
        return np.append(found, _tokens_in(copies.tokens, -1, numbers[~own] - plan.distinct))

    place = Place("earlier chunks of this output", facts.versions)
    return Donor(place, table.index, facts, lambda: _stored(files), numbers, tokens)


def _fits(layout: OutputLayout, fixed: Fixed, wanted: Identity) -> bool:
    """Say whether it has vectors as they are wanted, and an index of its texts."""
    return fixed.identity.of_vectors == wanted.of_vectors and TableFiles(layout.table).holds_index()


def _numbered(first: int, found: Iterable[Vectors]) -> Blocks:
    for block in found:
        yield first, block
        first += len(block)


def _stored(files: Sequence[tuple[int, Path]]) -> Blocks:
    for first, path in files:
        with open(path, "rb") as file:
            yield from _numbered(first, blocks(file, read_shape(file)))


def _tokens_in(path: Path, otherwise: int, numbers: Rows) -> Rows:
    if not path.exists():
        return np.full(len(numbers), otherwise)
    return pick_rows(path, "<i4", 0, 1, numbers)[:, 0].astype(np.int64)


# --- the plan


def plan_reuse(
    name: str,
    folder: Path,
    table: StagedTable,
    donors: Iterable[Donor],
    emit: Emit,
    on_block: Callable[[], None],
) -> Facts | None:
    """Make the plan of an output in `folder`, with what is copied; who comes first among the donors is preferred.

    Calls `on_block` now and then; it may raise to stop. Returns the facts of the first vectors that are copied. Raises
    OSError, Halt.
    """
    partial_folder = unfinished(folder)
    remove_folder(partial_folder)
    make_folder(partial_folder, durable=False)  # its name comes with the last rename
    files = ReuseFiles(partial_folder)
    places = list[Place]()
    facts = None
    done = 0
    where = np.empty(0, "<i8")
    with open(files.copied, "wb") as copied, open(files.tokens, "wb") as tokens:
        copied.write(npy_header(0, 1))  # as long as the right one
        for donor in donors:
            if len(where) == 0:
                where = np.full(table.distinct, -1, "<i8")
            shared = matches(TableFiles(table.folder).index, donor.index)
            found = [(table.texts_of_rows(here), donor.numbers(there)) for here, there in shared]
            texts, numbers = (
                np.concatenate(each) for each in zip((np.empty(0, int),) * 2, *found, strict=True)
            )
            new = (numbers >= 0) & (where[texts] < 0)
            order = np.argsort(numbers[new])
            texts = texts[new][order]
            numbers = numbers[new][order]
            if not len(texts):
                continue
            at = copied.tell()
            try:
                _copy(donor.blocks(), numbers, (facts or donor.facts).dimension, copied, on_block)
            except (BadVectorsError, FileNotFoundError) as error:
                emit(Warned(f"{name}: no vectors are reused from {donor.place.words}: {error}"))
                copied.seek(at)
                continue
            tokens.write(donor.tokens(numbers).astype("<i4").tobytes())
            where[texts] = np.arange(done, done + len(texts))
            facts = facts or donor.facts
            done += len(texts)
            places.append(replace(donor.place, texts=len(texts)))
        copied.truncate()
        copied.seek(0)
        copied.write(npy_header(done, facts.dimension if facts is not None else 1))
    encoded = np.flatnonzero(where < 0)
    where[encoded] = ~np.arange(len(encoded))
    if places:
        files.where.write_bytes(where.tobytes())
        files.encoded.write_bytes(encoded.astype("<i8").tobytes())
    else:
        files.copied.unlink()
        files.tokens.unlink()
    write_plan(partial_folder, table.distinct, len(encoded), places)
    remove_folder(folder)
    partial_folder.rename(folder)
    sync_folder(
        folder.parent
    )  # whose own name is on the disk with the facts, or with the first chunk
    return facts


def _copy(
    found: Blocks, wanted: Rows, dimension: int, out: BinaryIO, on_block: Callable[[], None]
) -> None:
    """Write the vectors of the numbers `wanted`, which rise. All blocks are read, which checks them.

    Raises BadVectorsError, also for a vector with NaN; OSError.
    """
    done = 0
    for first, block in found:
        if block.shape[1] != dimension:
            raise BadVectorsError(f"it has vectors of {block.shape[1]} numbers, not {dimension}")
        end = int(np.searchsorted(wanted, first + len(block)))
        rows = block[wanted[done:end] - first]
        if len(bad_rows(rows)[0]):
            raise BadVectorsError("it has other rows without a vector than its record says")
        out.write(rows.data)
        done = end
        on_block()
    if done < len(wanted):
        raise BadVectorsError("it has fewer rows than its record says")
