"""STAGED ──► ENCODING: copies the vectors that are elsewhere, and fixes which texts are encoded."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from chunkvisor.child import OnWait
from chunkvisor.events.event import Emit, Warned
from chunkvisor.outputs.donors import (
    Blocks,
    Donor,
    chunks_donor,
    final_donor,
    fits,
    other_workdirs_donors,
)
from chunkvisor.outputs.stage import Wanted
from chunkvisor.outputs.state import OutputState, Stage, read
from chunkvisor.sources.table import StagedTable, TableFiles, shared_texts
from chunkvisor.store.artifact import BadVectorsError, Numbers, bad_rows, npy_header
from chunkvisor.store.identity import Fixed, write_facts
from chunkvisor.store.layout import Layout, OutputLayout, unfinished
from chunkvisor.store.records import DamagedError, read_if_whole
from chunkvisor.store.reuse import ReuseFiles, read_reuse, write_plan
from chunkvisor_worker.contract.files import remove_at_once, remove_folder, sync
from chunkvisor_worker.contract.messages import Facts


def plan(found: OutputState, wanted: Wanted, others: Sequence[OutputLayout]) -> None:
    """Fix which texts are encoded, and copy the vectors of the others, unless that was done before.

    `others` are the outputs of the run. One rename gives the folder of the chunks, with the plan in
    it, its name: if the run is killed before, the next one plans again; after it, the plan is
    fixed. Then earlier generations are removed, except the one whose final file is in place. Raises
    OSError, DamagedError.
    """
    layout = found.layout
    name = layout.name
    if found.stage is Stage.ENCODING:
        try:
            read_reuse(layout)
        except DamagedError as error:
            wanted.emit_note(
                f"{name}: its plan is damaged ({error}); its texts are looked up again"
            )
        else:
            return
    table = StagedTable.open(layout.table)
    prepared = unfinished(layout.chunks)
    remove_folder(prepared)
    prepared.mkdir(exist_ok=True)
    reuse = prepared / layout.reuse.name
    donors = _donors(found, wanted, others) if wanted.loaded.config.reuse else iter(())
    facts = plan_reuse(name, reuse, table, filter(None, donors), wanted.emit, wanted.on_wait)
    remove_at_once(layout.chunks)  # chunks of a damaged plan go before the new one comes
    layout.facts.unlink(missing_ok=True)
    if facts:
        write_facts(layout, facts)
    prepared.rename(layout.chunks)
    sync(layout.state)  # the copies are on the disk before their originals are removed
    for number in layout.generations():
        stands = found.earlier and number == found.earlier.generation
        if number != layout.generation and not stands:
            remove_folder(layout.at_generation(number).state)


def count_shared(
    found: OutputState, before: Sequence[OutputState], complete: Sequence[OutputLayout]
) -> tuple[list[int], int]:
    """Count the texts that an output shares with others, before those are encoded.

    Returns, for each output in `before`, how many texts it shares with that one and none before it;
    and how many texts can have a vector elsewhere at most once all these are encoded. Texts of
    `complete` outputs and of its own earlier generations are in the second number alone. Raises
    OSError.
    """
    assert found.fixed
    table = TableFiles(found.layout.table)
    known = np.zeros(found.fixed.identity.rows, dtype=bool)
    numbers = [] if found.fixed.anew else found.layout.generations()
    own = [
        found.layout.at_generation(number)
        for number in numbers
        if number != found.layout.generation
    ]
    counts = []
    for layout in (*own, *complete, *(each.layout for each in before)):
        seen = int(known.sum())
        fixed = read_if_whole(Fixed, layout.identity)
        if fixed and fits(layout, fixed, found.fixed.identity):
            for ours, _ in shared_texts(table.index, TableFiles(layout.table).index):
                known[ours] = True
        counts.append(int(known.sum()) - seen)
    return counts[len(own) + len(complete) :], int(known.sum())


def _donors(
    found: OutputState, wanted: Wanted, others: Sequence[OutputLayout]
) -> Iterator[Donor | None]:
    """Find the donors, the best first; None stands for a place that has no fitting vectors.

    First its own final file, then other outputs of the run and of the workdir, its own earlier
    chunks, and other workdirs. After --from-scratch, nothing that the workdir had before.
    """
    assert found.fixed
    layout = found.layout
    name = layout.name
    identity = found.fixed.identity
    config = wanted.loaded.config
    anew = found.fixed.anew
    late = []
    if not anew:
        own = final_donor(found, identity, "its earlier final file")
        yield own
        donated = (found.earlier or layout).generation if own else 0
        for number in reversed(layout.generations()):
            if number != donated:
                earlier = layout.at_generation(number)
                late.append(chunks_donor(earlier, identity, "its earlier chunks"))
        if found.earlier and not own and not any(late):
            words = "no vector can be taken from its final file, which is rounded or damaged"
            wanted.emit_note(
                f"{name}: {words}; with chunk.keep: true, updates encode only new texts"
            )
    for other in others:
        newest = read(other, check_file=False)
        words = f"output {other.name}"
        final = None
        if not newest.earlier or not anew:
            final = final_donor(newest, identity, words)
            yield final
        if other.name != name and (not final or newest.earlier):
            yield chunks_donor(newest.layout, identity, words)
    if not anew:
        workdir = Layout(layout.workdir)
        for path in sorted(workdir.outputs.glob("*/")):
            if path.name not in config.outputs:
                another = read(workdir.output(path.name), check_file=False)
                yield final_donor(another, identity, f"output {path.name}")
    yield from late
    yield from other_workdirs_donors(config.reuse_from, identity)


def plan_reuse(
    name: str,
    folder: Path,
    table: StagedTable,
    donors: Iterable[Donor],
    emit: Emit,
    on_wait: OnWait,
) -> Facts | None:
    """Write the plan of an output, and the vectors that it copies, into a new folder.

    A text that several donors have is copied from the first. Returns what is known of the model
    from the first donor that is used. Raises OSError, Halt.
    """
    folder.mkdir(exist_ok=True)
    files = ReuseFiles(folder)
    places = []
    facts = None
    done = 0
    where = np.empty(0, "<i8")
    with open(files.copied, "wb") as copied, open(files.tokens, "wb") as tokens:
        copied.write(npy_header(0, 1))  # as long as the right one, which replaces it
        for donor in donors:
            if len(where) == 0:
                where = np.full(table.distinct, -1, "<i8")
            shared = shared_texts(TableFiles(table.folder).index, donor.index)
            found = [(table.row_text_at(here), donor.numbers(there)) for here, there in shared]
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
                _copy(donor.blocks(), numbers, (facts or donor.facts).dimension, copied, on_wait)
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
        copied.write(npy_header(done, facts.dimension if facts else 1))
    encoded = np.flatnonzero(where < 0)
    where[encoded] = ~np.arange(len(encoded))
    if places:
        files.where.write_bytes(where.tobytes())
        files.encoded.write_bytes(encoded.astype("<i8").tobytes())
    else:
        files.copied.unlink()
        files.tokens.unlink()
    write_plan(folder, table.distinct, len(encoded), places)
    sync(folder.parent)
    return facts


def _copy(found: Blocks, wanted: Numbers, dimension: int, out: BinaryIO, on_wait: OnWait) -> None:
    """Write the vectors with the numbers `wanted`, which rise, to `out`.

    All blocks are read, also after the last wanted vector, so that the digest of the file is
    checked. Raises BadVectorsError, also for a vector with NaN; OSError.
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
        on_wait()
    if done < len(wanted):
        raise BadVectorsError("it has fewer rows than its record says")
