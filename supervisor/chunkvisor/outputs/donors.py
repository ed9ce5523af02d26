"""Finds places that already have vectors of an output's texts, and reads those.

Such a place is called a *donor*: a final file or committed chunks, in this workdir or another, of
which model and settings give the same vectors (`Identity.vector_fingerprint`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from chunkvisor.errors import config_error
from chunkvisor.outputs.forms import file_of, form_of
from chunkvisor.outputs.join import final_rows
from chunkvisor.outputs.publish import rows_without_vector
from chunkvisor.outputs.state import OutputState, read
from chunkvisor.sources.table import TableFiles
from chunkvisor.store.artifact import Numbers, Vectors, blocks, pick_numbers, read_shape
from chunkvisor.store.chunkfiles import chunk_files
from chunkvisor.store.identity import Fixed, Identity, read_facts, read_fixed
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.records import DamagedError
from chunkvisor.store.reuse import Place, ReuseFiles, plan_and_fingerprint, read_reuse
from chunkvisor_worker.contract.files import open_regular
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Facts

Blocks = Iterator[tuple[int, Vectors]]
"""(number of its first vector, vectors) for each block; the numbers rise."""


@frozen
class Donor:
    """A place that may have vectors of some of the texts.

    It numbers its vectors in the order in which they lie there: a final file by row, chunks by
    text.
    """

    place: Place
    index: Path
    """The index of the texts of its source."""
    facts: Facts
    blocks: Callable[[], Blocks]
    """Read its vectors and check them; raises BadVectorsError, FileNotFoundError."""
    numbers: Callable[[Numbers], Numbers]
    """Rows of its source to the numbers of their vectors; -1 = it has none for the row."""
    tokens: Callable[[Numbers], Numbers]
    """Numbers of vectors to tokens of their texts before the cut; 0 = not cut, -1 = not counted."""


def final_donor(found: OutputState, wanted: Identity, words: str) -> Donor | None:
    """Return the final file in place as a donor; None if its vectors are not those of `wanted`.

    `words` name it for people.
    """
    layout = found.earlier or found.layout
    record = found.final_record
    try:
        fixed = read_fixed(layout)
        if not fixed or not record or not fits(layout, fixed, wanted):
            return None
        manifest = record.manifest
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


def other_workdirs_donors(folders: Sequence[Path], wanted: Identity) -> Iterator[Donor | None]:
    """Give the final files of these other workdirs as donors.

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
            found = read(layout.output(path.name), check_file=False)
            yield final_donor(found, wanted, f"{folder} output {path.name}")


def chunks_donor(layout: OutputLayout, wanted: Identity, words: str) -> Donor | None:
    """Return the committed chunks of a generation, and its copies, as a donor, if there are any."""
    if not layout.chunks.exists():
        return None
    try:
        fixed = read_fixed(layout)
        reuse = read_reuse(layout)
        table = TableFiles(layout.table)
        if not fixed or not fits(layout, fixed, wanted):
            return None
        ledger = Ledger(layout, *plan_and_fingerprint(reuse, fixed))
        ledger.load()
    except (DamagedError, OSError):
        return None
    facts = ledger.facts
    if not facts:
        return None
    plan = ledger.plan
    copies = ReuseFiles(layout.reuse)
    cut = layout.cut_texts(ledger.fingerprint)
    whole = {
        chunk: path for chunk, path in chunk_files(layout) if ledger.files.is_whole(chunk, path)
    }

    # This donor numbers the vectors of encoded texts as the texts, then those of the copies.
    files = [(plan.bounds(chunk)[0], path) for chunk, path in whole.items()]
    if reuse:
        files.append((plan.distinct, copies.copied))
    if not files:
        return None

    def numbers(rows: Numbers) -> Numbers:
        texts = pick_numbers(table.row_text, rows)
        copied = np.zeros(len(rows), bool)
        if reuse:
            where = reuse.where_of(texts)
            texts = np.maximum(where, ~where)
            copied = where >= 0
        done = np.isin(texts // plan.chunk_size, [*whole]) & ~np.isin(texts, [*ledger.bad])
        return np.where(copied, plan.distinct + texts, np.where(done, texts, -1))

    def tokens(numbers: Numbers) -> Numbers:
        own = numbers < plan.distinct
        found = _tokens_in(cut, 0 if facts.counts_cut else -1, numbers[own])
        return np.append(found, _tokens_in(copies.tokens, -1, numbers[~own] - plan.distinct))

    place = Place(words, facts.versions)
    return Donor(place, table.index, facts, lambda: _blocks_of_files(files), numbers, tokens)


def fits(layout: OutputLayout, fixed: Fixed, wanted: Identity) -> bool:
    """Say whether a generation has the wanted vector identity, and an index of its texts."""
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
        with open(path, "rb", opener=open_regular) as file:
            yield from _numbered(first, blocks(file, read_shape(file)))


def _tokens_in(path: Path, otherwise: int, numbers: Numbers) -> Numbers:
    if not path.exists():
        return np.full(len(numbers), otherwise)
    return pick_numbers(path, numbers, "<i4")
