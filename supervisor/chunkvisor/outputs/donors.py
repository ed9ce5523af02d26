"""Says who has vectors of an output's texts: final files of this workdir and of others, and chunks.

And reads them.

Only under the same vector identity.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.errors import config_error
from chunkvisor.outputs.forms import file_of, form_of
from chunkvisor.outputs.join import final_rows
from chunkvisor.outputs.publish import rows_without_vector
from chunkvisor.outputs.state import Standing, read
from chunkvisor.sources.table import TableFiles
from chunkvisor.store.artifact import Vectors, blocks, pick_rows, read_shape
from chunkvisor.store.chunkfiles import chunk_files
from chunkvisor.store.identity import Fixed, Identity, read_facts, read_fixed
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.records import DamagedError
from chunkvisor.store.reuse import Place, ReuseFiles, ledger_of, read_reuse
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Facts

Rows = npt.NDArray[np.int64]
Blocks = Iterator[tuple[int, Vectors]]
"""Vectors that stand one after the other, with the number of the first; the numbers rise."""


@frozen
class Donor:
    """One place that may have some of the texts."""

    place: Place
    index: Path  # of the texts of its source
    facts: Facts
    blocks: Callable[[], Blocks]
    """Read its vectors and check them; raises BadVectorsError, FileNotFoundError."""
    numbers: Callable[[Rows], Rows]
    """Its numbers for rows of that source; -1 = it has no vector for them."""
    tokens: Callable[[Rows], Rows]
    """Tokens before the cut for numbers of it: 0 = whole, -1 = not counted."""


def final_donor(
    layout: OutputLayout, standing: Standing | None, wanted: Identity, words: str
) -> Donor | None:
    """Offer the final file that stands, of this generation.

    None if `wanted` can have nothing of it.
    """
    try:
        fixed = read_fixed(layout)
        if fixed is None or standing is None or not _fits(layout, fixed, wanted):
            return None
        manifest = standing.manifest
        is_of_this = manifest["fingerprint"] == fixed.identity.fingerprint
        is_exact = form_of(manifest).is_exact
        if not is_of_this or not is_exact or not file_of(layout, manifest).exists():
            return None
        bad = rows_without_vector(layout, manifest)
    except (DamagedError, OSError):
        return None
    versions = {name: each for name, each in manifest["versions"].items() if name != "chunkvisor"}
    return Donor(
        Place(words, versions),
        TableFiles(layout.table).index,
        read_facts(layout) or Facts(int(manifest["dimension"]), versions=versions),
        lambda: _numbered(0, final_rows(layout, manifest)),
        lambda rows: np.where(np.isin(rows, bad), -1, rows),
        partial(_tokens_in, layout.cut_rows, -1),
    )


def output_donor(layout: OutputLayout, wanted: Identity, words: str) -> Donor | None:
    """Offer the final file that stands of an output, of whatever generation. Raises OSError."""
    found = read(layout, check_file=False)
    return final_donor(found.earlier or found.layout, found.standing, wanted, words)


def other_workdirs_donors(folders: Sequence[Path], wanted: Identity) -> Iterator[Donor | None]:
    """Offer finished outputs of other workdirs.

    Raises Halt (78) if one of the folders is not a workdir.
    """
    for folder in folders:
        layout = Layout(folder)
        if not layout.outputs.is_dir():
            raise config_error(
                f"reuse_from: {folder} is not a workdir of chunkvisor",
                "Correct it, or remove it from the list.",
            )
        for path in sorted(layout.outputs.glob("*/")):
            yield output_donor(layout.output(path.name), wanted, f"{folder} output {path.name}")


def chunks_donor(layout: OutputLayout, wanted: Identity, words: str) -> Donor | None:
    """Offer what a generation has committed, or copied; None if that is nothing."""
    if not layout.chunks.exists():
        return None
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

    place = Place(words, facts.versions)
    return Donor(place, table.index, facts, lambda: _blocks_of_files(files), numbers, tokens)


def _fits(layout: OutputLayout, fixed: Fixed, wanted: Identity) -> bool:
    """Say whether it has vectors as they are wanted, and an index of its texts."""
    return (
        fixed.identity.vector_fingerprint == wanted.vector_fingerprint
        and TableFiles(layout.table).holds_index()
    )


def _numbered(first: int, found: Iterable[Vectors]) -> Blocks:
    for block in found:
        yield first, block
        first += len(block)


def _blocks_of_files(files: Sequence[tuple[int, Path]]) -> Blocks:
    for first, path in files:
        with open(path, "rb") as file:
            yield from _numbered(first, blocks(file, read_shape(file)))


def _tokens_in(path: Path, otherwise: int, numbers: Rows) -> Rows:
    if not path.exists():
        return np.full(len(numbers), otherwise)
    return pick_rows(path, "<i4", 0, 1, numbers)[:, 0].astype(np.int64)
