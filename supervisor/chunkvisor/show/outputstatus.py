"""How far one output is, by its records and the names of its chunks."""

from dataclasses import dataclass, replace

from chunkvisor.assemble.badreasons import BadReason, reasons_of
from chunkvisor.assemble.badrows import count_of, where_listed
from chunkvisor.assemble.manifest import awaits_move, read_done_manifest, read_manifest, read_moved
from chunkvisor.show.snapshot import OutputState
from chunkvisor.store.chunkfiles import committed_chunks
from chunkvisor.store.fixed import Plan, read_fixed, read_staged
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.parts import Parts
from chunkvisor.store.reuse import work_of
from chunkvisor.store.seal import DamagedError


@dataclass(frozen=True, slots=True)
class OutputStatus:
    """Of one output."""

    rows: int = 0
    """0 until its source has been read."""
    rows_done: int = 0
    """Rows about which nothing is left to do: they have their vector, or count in `quarantined`; estimated from the
    share of distinct texts until the output is complete."""
    chunks: int = 0
    """Of the texts that are to be encoded; 0 where all have their vector from elsewhere."""
    chunks_done: int = 0
    """Committed; what workers have done of the others counts in `rows_done` alone."""
    quarantined: int = 0
    """Rows without a vector; until the output is complete, those found so far."""
    complete: bool = False
    """It has its final file, in its place."""
    distinct_texts: int = 0
    """Texts that differ: each is encoded once, for all its rows."""
    reasons: tuple[BadReason, ...] = ()
    """Why rows have no vector, the most frequent first; of the first 1,000 such rows."""
    file: str = ""
    """The final file, where `chunkvisor encode` has put it; empty where it is in the workdir, or is not there yet."""
    listed_in: str = ""
    """The file that lists each row without a vector; empty where there is none, or the output is not complete."""
    truncated: int | None = None
    """Rows whose texts were cut at the model's maximum length; null until the output is complete, and if the encoder
    does not count tokens. `<output>.truncated.jsonl` lists them."""

    @property
    def estimated(self) -> bool:
        """Whether `rows_done` is an estimate."""
        return not self.complete and self.distinct_texts != self.rows and 0 < self.rows_done < self.rows


def moved(output: OutputStatus, seen: OutputState) -> OutputStatus:
    """The output with what its workers have done of their chunks."""
    return output if output.complete else replace(output, rows_done=max(output.rows_done, seen.rows_done))


def read_output(layout: OutputLayout) -> OutputStatus:
    """How far one output is, by its records and the names of its chunks."""
    try:
        moved_to = read_moved(layout)
        moved_to = moved_to if moved_to is not None and moved_to.final.exists() else None
        manifest = read_done_manifest(layout) if moved_to is None else read_manifest(moved_to)
        fixed, record = read_fixed(layout), read_staged(layout)
    except DamagedError:
        return OutputStatus()
    if fixed is None or record is None:
        return OutputStatus()
    rows, distinct = record.staged.rows, record.staged.distinct
    try:
        plan, _ = work_of(layout, fixed, record.staged)
    except DamagedError:
        return OutputStatus(rows, distinct_texts=distinct)
    if manifest is not None:
        count = count_of(manifest)
        reasons = reasons_of(manifest["quarantined"])
        file = "" if moved_to is None else str(moved_to.final)
        listed_in = str(where_listed(moved_to or layout, manifest)) if count else ""
        return OutputStatus(
            rows,
            rows,
            plan.count,
            plan.count,
            count,
            not awaits_move(layout),
            distinct,
            reasons,
            file,
            listed_in,
            truncated=(manifest.get("truncated") or {}).get("rows"),
        )
    chunks = committed_chunks(layout, plan)
    saved = saved_texts(layout, plan, fixed.identity.fingerprint, chunks)
    done = rows * (distinct - plan.distinct + plan.texts_in(chunks) + saved) // max(1, distinct)
    return OutputStatus(rows, done, plan.count, chunks.count(1), distinct_texts=distinct)


def saved_texts(layout: OutputLayout, plan: Plan, fingerprint: str, committed: bytearray) -> int:
    """Texts of chunks that are not committed, which need no attempt any more."""
    names = (path.name for path in (layout.parts.iterdir() if layout.parts.is_dir() else ()))
    chunks = [int(name) for name in names if name.isdecimal() and int(name) < plan.count and not committed[int(name)]]
    missing = (Parts(layout, chunk, *plan.bounds(chunk), fingerprint).missing() for chunk in chunks)
    return sum(map(plan.size, chunks)) - sum(stop - start for ranges in missing for start, stop in ranges)
