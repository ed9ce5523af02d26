"""Finds which texts of an output have a vector elsewhere, plans to take these over, and opens them for the join.

Vectors may come from the output's own earlier final, from other outputs, or from chunks of a state that is given up;
only under the same vector identity.
"""

import errno
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.assemble.badrows import every_row
from chunkvisor.assemble.forms import FORMATS, asked_form, form_of, place_of, recorded_parts
from chunkvisor.assemble.join import ArrayRows, Taken, TakenDamagedError, final_rows
from chunkvisor.assemble.manifest import earlier_holds, read_finished, read_moved, read_recorded
from chunkvisor.config.choices import FinalFormat
from chunkvisor.config.model import Config
from chunkvisor.errors import config_error
from chunkvisor.events.event import Emit, Warned
from chunkvisor.sources.table import StagedTable, TableFiles, WhereWriter, matches
from chunkvisor.store.artifact import BLOCK_BYTES, BadVectorsError, Vectors, bad_rows, npy_header, pick_rows, read_shape
from chunkvisor.store.identity import BadText, Fixed, Identity, read_facts, read_fixed
from chunkvisor.store.layout import Layout, OutputLayout, unfinished
from chunkvisor.store.ledger import (
    ENCODED,
    WHERE,
    Ledger,
    Place,
    PlaceKind,
    Reuse,
    ReuseFiles,
    chunk_files,
    ledger_of,
    read_reuse,
    write_plan,
)
from chunkvisor.store.records import DamagedError
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import make_folder, remove_folder
from chunkvisor_worker.contract.messages import Facts

_TEXTS_AT_ONCE = 1 << 18

Rows = npt.NDArray[np.int64]


def gives_vectors(config: Config, name: str) -> bool:
    """Say whether the final of this output is to hold the vectors as they are."""
    return asked_form(config.outputs[name]).is_exact


def sources_first(config: Config) -> list[str]:
    """Return the outputs in the order in which they are encoded: first those whose vectors others can take."""
    return sorted(config.outputs, key=lambda name: not gives_vectors(config, name))


@dataclass(frozen=True, slots=True)
class Offer:
    """One place that may have some of the texts."""

    place: Place
    index: Path
    """Of the texts of its source."""
    facts: Facts | None
    reader: ArrayRows | None
    """None = there is no vector yet: the same run will make it."""
    numbers: Callable[[Rows], Rows] = lambda rows: rows
    """What the reader wants for rows of that source; -1 = it has no vector for them."""
    problem: Callable[[Callable[[], None]], str | None] = lambda _: None
    """What is wrong with the files, in words; reads them."""


def of_final(layout: OutputLayout, wanted: Identity, kind: PlaceKind, words: str, scratch: Path) -> Offer | None:
    """Offer the final file of a finished state; None if it is none, or `wanted` can have nothing of it."""
    try:
        fixed, manifest = read_fixed(layout), read_recorded(layout)
        if fixed is None or manifest is None or not _fits(layout, fixed, wanted):
            return None
        form, final = form_of(manifest), read_moved(layout) or layout
        whole = manifest["fingerprint"] == fixed.identity.fingerprint and place_of(final, form).exists()
        if not whole or not form.is_exact or not FORMATS[form.format].can_be_read:
            return None
        versions = {name: each for name, each in manifest["versions"].items() if name != "chunkvisor"}
        facts = read_facts(layout) or Facts(int(manifest["dimension"]), versions=versions)
        rows = FinalRows(final, manifest, scratch)
    except (DamagedError, OSError):
        return None
    place = Place(kind, words, layout.name, fixed.identity.source_digest, manifest["digest"], versions)

    def numbers(found: Rows) -> Rows:
        return np.where(np.isin(found, rows.without), -1, found)

    return Offer(place, TableFiles(layout.table).index, facts, rows, numbers, rows.problem)


class FinalRows(ArrayRows):
    """The rows of the final that a manifest describes; it is float32."""

    def __init__(self, layout: OutputLayout, manifest: dict[str, Any], scratch: Path) -> None:
        """A table is unpacked in the folder `scratch` when it is read.

        Raises DamagedError if it cannot be told which rows have no vector.
        """
        parts = [part for part, _ in recorded_parts(layout, manifest)]
        super().__init__(manifest["dimension"], [part.start for part in parts], [part.path for part in parts])
        self.without = np.fromiter((each["row"] for each in every_row(layout, manifest)), dtype=np.int64)
        """Rows without a vector."""
        self._layout, self._manifest, self._scratch = layout, manifest, scratch
        self._packed = form_of(manifest).format is not FinalFormat.NPY

    def problem(self, on_block: Callable[[], None]) -> str | None:
        """Say what is wrong with the files; None if they have the digests of the manifest. Reads them.

        Calls `on_block` now and then; it may raise to stop.
        """
        try:
            for _ in final_rows(self._layout, self._manifest):
                on_block()
        except (BadVectorsError, OSError) as error:
            return str(error)
        return None

    def read(self, rows: Rows) -> Vectors:
        """See ArrayRows; BadVectorsError for what is not a table."""
        if self._packed:
            with TemporaryFile(dir=self._scratch) as file:
                file.write(npy_header(self._manifest["rows"], self.dimension))
                for block in final_rows(self._layout, self._manifest):
                    file.write(np.ascontiguousarray(block).data)
                file.flush()
                kept = os.dup(file.fileno())
            weakref.finalize(self, os.close, kept)
            super().__init__(self.dimension, [0], [Path(f"/proc/self/fd/{kept}")])
            self._packed = False
        return super().read(rows)


def promised(layout: OutputLayout, fixed: Fixed, wanted: Identity) -> Offer | None:
    """Offer an output that the same run finishes before it needs these vectors; None if they are of no use."""
    if not _fits(layout, fixed, wanted):
        return None
    place = Place(PlaceKind.OUTPUT, f"output {layout.name}", layout.name, fixed.identity.source_digest)
    return Offer(place, TableFiles(layout.table).index, None, None)


def of_chunks(layout: OutputLayout, wanted: Identity) -> Offer | None:
    """Offer what a state has committed, or copied, that will have no final file; None if that is nothing.

    Its chunks are read, each against its digest.
    """
    try:
        fixed, reuse, table = read_fixed(layout), read_reuse(layout), TableFiles(layout.table)
        if fixed is None or not _fits(layout, fixed, wanted) or (ledger := ledger_of(layout)) is None:
            return None
        ledger.load()
    except (DamagedError, OSError):
        return None
    if ledger.facts is None:
        return None
    plan, copied, copies = ledger.plan, ReuseFiles(layout.reuse).copied, list[int]()
    files = {chunk: path for chunk, path in chunk_files(layout) if ledger.is_whole(chunk, path)}
    starts, paths = [plan.bounds(chunk)[0] for chunk in files], [*files.values()]
    if reuse is not None and copied.exists():  # its rows are numbered after the texts that are encoded
        copies = [number for number, each in enumerate(reuse.places) if each.kind is PlaceKind.COPY]
        starts, paths = [*starts, plan.distinct], [*paths, copied]
    if not paths:
        return None
    chunks, bad = (np.fromiter(each, dtype=np.int64) for each in (files, ledger.bad))

    def numbers(found: Rows) -> Rows:
        texts = pick_rows(table.row_text, "<i8", 0, 1, found)[:, 0].astype(np.int64)
        place = np.full(len(texts), ENCODED)
        if reuse is not None:
            where = reuse.where_of(texts)
            place, texts = where["place"], where["row"]
        committed = (place == ENCODED) & np.isin(texts // plan.chunk_size, chunks) & ~np.isin(texts, bad)
        return np.where(np.isin(place, copies), plan.distinct + texts, np.where(committed, texts, -1))

    place = Place(PlaceKind.COPY, "earlier chunks of this output", layout.name, versions=ledger.facts.versions)
    return Offer(place, table.index, ledger.facts, ArrayRows(ledger.facts.dimension, starts, paths), numbers)


def _fits(layout: OutputLayout, fixed: Fixed, wanted: Identity) -> bool:
    """Say whether it has vectors as they are wanted, and an index of its texts."""
    return fixed.identity.of_vectors == wanted.of_vectors and TableFiles(layout.table).holds_index()


def of_other_workdirs(folders: Sequence[Path], wanted: Identity, scratch: Path) -> Iterator[Offer]:
    """Offer finished outputs of other workdirs. Raises Halt (78) if one of the folders is not a workdir."""
    for folder in folders:
        layout = Layout(folder)
        if not layout.outputs.is_dir():
            raise config_error(
                f"reuse_from: {folder} is not a workdir of chunkvisor", remedy="correct it, or remove it from the list"
            )
        for path in sorted(layout.outputs.glob("*/")):
            words = f"{folder} output {path.name}"
            found = of_final(layout.output(path.name), wanted, PlaceKind.COPY, words, scratch)
            if found is not None:
                yield found


class Planner:
    """Of one run: what it has checked, it need not check again."""

    def __init__(self, emit: Emit, on_wait: Callable[[], None]) -> None:
        self._emit, self._on_wait = emit, on_wait
        self._problems: dict[tuple[str, str], str | None] = {}

    def plan(self, name: str, folder: Path, table: StagedTable, candidates: Iterable[Offer]) -> Facts | None:
        """Make the plan of the output in `folder`, from the candidates in the order in which they are preferred.

        Returns the facts of the first vectors that are taken, if they are known. Raises OSError, Halt.
        """
        partial = unfinished(folder)
        remove_folder(partial)
        make_folder(partial, durable=False)  # its name comes with the last rename
        writer = WhereWriter(partial, table)
        used, facts = self._look_up(name, writer, TableFiles(table.folder).index, candidates)
        encoded, places = table.distinct, list[Place]()
        if used:
            encoded, taken = writer.write()
            places = [replace(each.place, texts=taken.get(number, 0)) for number, each in enumerate(used)]
            copies = {
                number: each.reader
                for number, each in enumerate(used)
                if each.place.kind is PlaceKind.COPY and each.reader is not None and number in taken
            }
            copy_rows(partial, copies, self._on_wait)
        write_plan(partial, table.distinct, encoded, places)
        remove_folder(folder)
        # The name is on the disk with the facts, or with the first chunk; until then nothing rests on the plan.
        partial.rename(folder)
        return facts

    def _look_up(
        self, name: str, writer: WhereWriter, ours: Path, candidates: Iterable[Offer]
    ) -> tuple[list[Offer], Facts | None]:
        """Return those that have some of the texts, numbered as in the matches that the writer gets."""
        used, facts = list[Offer](), None
        for candidate in candidates:
            if facts is not None and candidate.facts is not None and facts.dimension != candidate.facts.dimension:
                continue
            has_some = False
            for here, there in matches(ours, candidate.index):
                self._on_wait()
                numbers = candidate.numbers(there)
                known = numbers >= 0
                if not known.any():
                    continue
                key = (candidate.place.words, candidate.place.final_digest)
                if key not in self._problems:
                    self._problems[key] = candidate.problem(self._on_wait)
                if (problem := self._problems[key]) is not None:
                    self._emit(Warned(f"{name}: no vectors are reused from {candidate.place.words}: {problem}"))
                    break
                has_some = True
                writer.add(len(used), here[known], numbers[known])
            if has_some:
                used.append(candidate)
                facts = facts or candidate.facts
        return used, facts


def copy_rows(folder: Path, readers: Mapping[int, ArrayRows], on_block: Callable[[], None]) -> None:
    """Copy what the plan in `folder` has in these places into one file, in the order of the texts, and point there.

    Whoever writes the plan syncs them. Raises OSError; EIO if a place has other rows without a vector than its record
    says.
    """
    if not readers:
        return
    files, dimension, done = ReuseFiles(folder), next(iter(readers.values())).dimension, 0
    pointed, per_block = files.where.with_name("where.tmp"), max(1, BLOCK_BYTES // (4 * dimension))
    with open(files.where, "rb") as old, open(pointed, "wb") as out, open(files.copied, "wb") as copied:
        copied.write(npy_header(0, dimension))
        while data := old.read(per_block * WHERE.itemsize):
            where = np.frombuffer(data, dtype=WHERE).copy()
            hits = np.flatnonzero(np.isin(where["place"], list(readers)))
            block = np.empty((len(hits), dimension), dtype="<f4")
            for place in np.unique(where["place"][hits]).tolist():
                own = where["place"][hits] == place
                block[own] = readers[place].read(where["row"][hits][own])
            if len(bad_rows(block)[0]):
                raise OSError(errno.EIO, "it has other rows without a vector than its record says")
            copied.write(block.data)
            where["row"][hits] = np.arange(done, done + len(hits))
            done += len(hits)
            out.write(where.tobytes())
            on_block()
        copied.seek(0)
        copied.write(npy_header(done, dimension))  # as long as the one of before
    pointed.replace(files.where)


def taken_of(layout: OutputLayout, reuse: Reuse, ledger: Ledger, on_block: Callable[[], None]) -> Taken:
    """Open what is taken over. Fixes the facts of the output, if nothing of it was encoded.

    Raises TakenDamagedError if something is not what it was, OSError, Halt.
    """
    readers, bad = dict[int, ArrayRows](), dict[tuple[int, int], BadText]()
    for number, place in enumerate(reuse.places):
        if not place.texts:  # another one has all its texts
            continue
        readers[number] = reader = _reader_of(layout, reuse, place, number, bad)
        if ledger.facts is None:
            facts = read_facts(Layout(layout.workdir).output(place.output)) or Facts(0, versions=place.versions)
            ledger.fix_facts(replace(facts, dimension=reader.dimension))
        if ledger.facts is not None and reader.dimension != ledger.facts.dimension:
            raise TakenDamagedError(f"{place.words} has vectors of {reader.dimension} numbers")
    without, rows = dict[int, BadText](), np.array([row for _, row in bad], dtype=np.int64)
    for start in range(0, reuse.texts if bad else 0, _TEXTS_AT_ONCE):
        where = reuse.where(start, min(start + _TEXTS_AT_ONCE, reuse.texts))
        for at in np.flatnonzero(np.isin(where["row"], rows)).tolist():
            if (found := bad.get((int(where["place"][at]), int(where["row"][at])))) is not None:
                without[start + at] = replace(found, text=start + at)
        on_block()
    return Taken(reuse, readers, without)


def _reader_of(
    layout: OutputLayout, reuse: Reuse, place: Place, number: int, bad: dict[tuple[int, int], BadText]
) -> ArrayRows:
    """Return the reader of a place, and note its rows without a vector in `bad`, by place and row."""
    if place.kind is PlaceKind.COPY:
        path = ReuseFiles(reuse.folder).copied
        try:
            with open(path, "rb") as file:
                return ArrayRows(read_shape(file).dimension, [0], [path])
        except (BadVectorsError, OSError) as error:
            raise TakenDamagedError(f"{reuse.folder} is damaged: {error}") from error
    source = Layout(layout.workdir).output(place.output)
    if place.kind is PlaceKind.EARLIER:
        source = layout.earlier
        manifest = read_recorded(source) if earlier_holds(layout, place.final_digest) else None
    else:
        manifest = read_finished(source)
    if manifest is None or not form_of(manifest).is_exact:
        raise TakenDamagedError(f"{place.words} is damaged, not there, or not in float32 any more")
    try:
        for each in every_row(source, manifest):
            reason = f"{each['reason']} (in {place.words})"
            bad[number, int(each["row"])] = BadText(0, Outcome(each["outcome"]), reason)
        return FinalRows(source, manifest, layout.workdir)
    except DamagedError as error:
        raise TakenDamagedError(f"{error} is damaged") from error
