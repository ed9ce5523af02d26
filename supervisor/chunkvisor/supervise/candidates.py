"""Where vectors of an output's texts may be: its own earlier final, other outputs, chunks of a given-up state.

Only under the same vector identity. It reads, and decides nothing about texts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.assemble.forms import FORMATS, asked_form, form_of, place_of
from chunkvisor.assemble.manifest import read_moved, read_recorded
from chunkvisor.assemble.reader import CommittedRows, FinalRows, RowReader, Scratch
from chunkvisor.config.model import Config
from chunkvisor.errors import config_error
from chunkvisor.sources.table import TableFiles
from chunkvisor.store.artifact import pick_rows
from chunkvisor.store.identity import Fixed, Identity, read_facts, read_fixed, read_staged
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.records import DamagedError
from chunkvisor.store.reuse import Place, PlaceKind, read_reuse, work_with
from chunkvisor_worker.contract.messages import Facts

Rows = npt.NDArray[np.int64]


def gives_vectors(config: Config, name: str) -> bool:
    """Whether the final of this output is to hold the vectors as they are."""
    return asked_form(config.outputs[name]).is_exact


def sources_first(config: Config) -> list[str]:
    """The outputs in the order in which they are encoded: first those whose vectors others can take."""
    return sorted(config.outputs, key=lambda name: not gives_vectors(config, name))


def _themselves(rows: Rows) -> Rows:
    return rows


def _all_but(without: Rows) -> Callable[[Rows], Rows]:
    return lambda rows: np.where(np.isin(rows, without), -1, rows)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place that may have some of the texts."""

    place: Place
    index: Path
    """Of the texts of its source."""
    facts: Facts | None
    reader: RowReader | None
    """None = there is no vector yet: the same run will make it."""
    numbers: Callable[[Rows], Rows] = _themselves
    """What the reader wants for rows of that source; -1 = it has no vector for them."""
    problem: Callable[[Callable[[], None]], str | None] = lambda _: None
    """What is wrong with the files, in words; reads them."""


def of_final(layout: OutputLayout, wanted: Identity, kind: PlaceKind, words: str, scratch: Scratch) -> Candidate | None:
    """The final file of a finished state; None where it is none, or `wanted` can have nothing of it."""
    try:
        fixed, manifest = read_fixed(layout), read_recorded(layout)
        if fixed is None or manifest is None:
            return None
        form, final = form_of(manifest), read_moved(layout) or layout
        whole = manifest["fingerprint"] == fixed.identity.fingerprint and place_of(final, form).exists()
        if not whole or not form.is_exact or not FORMATS[form.format].can_be_read:
            return None
        versions = {name: each for name, each in manifest["versions"].items() if name != "chunkvisor"}
        facts = read_facts(layout) or Facts(int(manifest["dimension"]), versions=versions)
        if fixed.identity.of_vectors != wanted.of_vectors or not TableFiles(layout.table).holds_index():
            return None
        rows = FinalRows(final, manifest, scratch)
    except (DamagedError, OSError):
        return None
    place = Place(kind, words, layout.name, fixed.identity.source_digest, manifest["digest"], versions)
    return Candidate(place, TableFiles(layout.table).index, facts, rows, _all_but(rows.without), rows.problem)


def promised(layout: OutputLayout, fixed: Fixed, wanted: Identity) -> Candidate | None:
    """An output that the same run finishes before it needs these vectors; None where they are of no use."""
    if fixed.identity.of_vectors != wanted.of_vectors or not TableFiles(layout.table).holds_index():
        return None
    place = Place(PlaceKind.OUTPUT, f"output {layout.name}", layout.name, fixed.identity.source_digest)
    return Candidate(place, TableFiles(layout.table).index, None, None)


def of_chunks(layout: OutputLayout, wanted: Identity) -> Candidate | None:
    """What a state has committed, or copied, that will have no final file; None where that is nothing.

    Its chunks are read, each against its digest.
    """
    try:
        fixed, record, facts = read_fixed(layout), read_staged(layout), read_facts(layout)
        if fixed is None or record is None or facts is None:
            return None
        words = "earlier chunks of this output"
        if fixed.identity.of_vectors != wanted.of_vectors or not TableFiles(layout.table).holds_index():
            return None
        reuse, table = read_reuse(layout), TableFiles(layout.table)
        ledger = Ledger(layout, *work_with(reuse, fixed, record.staged))
        ledger.load()
    except (DamagedError, OSError):
        return None
    rows = CommittedRows(layout, ledger, reuse)
    if rows.empty:
        return None
    place = Place(PlaceKind.COPY, words, layout.name, versions=facts.versions)

    def numbers(found: Rows) -> Rows:
        return rows.numbers_of(pick_rows(table.row_text, "<i8", 0, 1, found)[:, 0].astype(np.int64))

    return Candidate(place, table.index, facts, rows, numbers)


def workdir_of(folder: Path) -> Layout:
    """One of `reuse_from`. Raises Halt (78) where it is no workdir."""
    layout = Layout(folder)
    if not layout.outputs.is_dir():
        raise config_error(
            f"reuse_from: {folder} is not a workdir of chunkvisor", remedy="correct it, or remove it from the list"
        )
    return layout


def of_other_workdirs(folders: Sequence[Path], wanted: Identity, scratch: Scratch) -> Iterator[Candidate]:
    """Finished outputs of other workdirs. Raises Halt (78) where one of the folders is no workdir."""
    for folder in folders:
        layout = workdir_of(folder)
        for path in sorted(layout.outputs.glob("*/")):
            words = f"{folder} output {path.name}"
            found = of_final(layout.output(path.name), wanted, PlaceKind.COPY, words, scratch)
            if found is not None:
                yield found


def copied(candidate: Candidate | None) -> list[Candidate]:
    """The same, to be copied: its files may be gone by the time of the join."""
    return [replace(candidate, place=replace(candidate.place, kind=PlaceKind.COPY))] if candidate is not None else []
