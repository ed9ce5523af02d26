"""`combine`: the finals of several outputs side by side in one array, in bounded memory.

It encodes nothing. What it is made of is known by digest, so that it is made anew where one of them has changed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkvisor.assemble.badrows import every_row, record
from chunkvisor.assemble.forms import Form, form_of, is_ours
from chunkvisor.assemble.join import describe_files
from chunkvisor.assemble.manifest import publish_manifest, read_finished, recorded_parts
from chunkvisor.assemble.numbers import Numbers, Stored
from chunkvisor.assemble.sides import ranges_of, remove_sides, write_sides
from chunkvisor.assemble.writer import FinalWriter, Source, clear_partial, rows_of_parts
from chunkvisor.config.choices import FinalDtype
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.store.artifact import BLOCK_BYTES, BadVectorsError, Vectors, bad_rows
from chunkvisor.store.disk import not_ours
from chunkvisor.store.identity import make_state
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import digest_of
from chunkvisor.units import counted
from chunkvisor.version import __version__


@dataclass(frozen=True, slots=True)
class Member:
    """One of the outputs that are put side by side."""

    layout: OutputLayout
    manifest: dict[str, Any]

    @property
    def numbers(self) -> Numbers:
        """Of its vectors."""
        return Numbers(form_of(self.manifest).dtype, int(self.manifest["dimension"]))

    def described(self) -> dict[str, Any]:
        """Which columns of the combined final are its own, and what they are made of."""
        return {"output": self.layout.name, "dimension": self.numbers.dimension, "digest": self.manifest["digest"]}

    def rows(self) -> Iterator[Stored]:
        """Its rows, in blocks. Raises BadVectorsError where they are not what its manifest says, OSError."""
        missing = sorted(each["row"] for each in every_row(self.layout, self.manifest))
        source = Source(self.layout, self.manifest["rows"], self.numbers.dimension, form_of(self.manifest), missing)
        yield from rows_of_parts(recorded_parts(self.layout, self.manifest), source)


def refuse_unequal(combine: Mapping[str, Sequence[str]], rows: Mapping[str, int]) -> None:
    """Raise Halt (78) where outputs that are to stand side by side have not the same number of rows."""
    for name, members in combine.items():
        counts = {member: rows[member] for member in members if member in rows}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{member} has {counted(count, 'row')}" for member, count in counts.items())
            raise config_error(
                f"combine.{name}: {listed}",
                why="Row i of the combined final is row i of each of them.",
                remedy="Give them the same source and the same `where`, or combine others.",
            )


def combine(
    layout: OutputLayout, members: Sequence[Member], on_block: Callable[[], None]
) -> tuple[dict[str, Any], bool]:
    """The manifest of the combined final, which has the dtype of its members, and whether it was there already.

    Calls `on_block` now and then; it may raise to stop. Raises Halt: 78 where row counts differ, bytes of ubinary
    would have to be split, or something that is not ours stands in its place, 74 where a member is damaged; OSError.
    """
    counts = {each.layout.name: each.manifest["rows"] for each in members}
    refuse_unequal({layout.name: list(counts)}, counts)
    of_what = [[each.layout.name, each.manifest["fingerprint"], each.manifest["digest"]] for each in members]
    fingerprint = digest_of(of_what)
    finished = read_finished(layout)
    if finished is not None and finished["fingerprint"] == fingerprint:
        write_sides(layout, finished)
        return finished, True
    if layout.final.exists() and finished is None and not is_ours(layout, layout.final) and not layout.done.exists():
        raise not_ours(layout.final, "give the combination another name")
    numbers = _numbers(layout.name, members)
    make_state(layout)
    rows, form, ranges = members[0].manifest["rows"], Form(dtype=numbers.dtype), _ranges(members)
    clear_partial(layout)
    with FinalWriter(layout, rows, numbers.dimension, form) as writer:
        zero_rows = 0
        for block in _side_by_side(members, rows, numbers):
            zero_rows += len(bad_rows(block)[1]) if numbers.is_float else 0
            writer.write(block, np.empty(0, dtype=np.int64))
            on_block()
        stamps = writer.publish()
    if not numbers.is_float:  # what is zero there may have been something else
        zero_rows = min(each.manifest["zero_rows"] for each in members)
    manifest = {
        "rows": rows,
        "dimension": numbers.dimension,
        **describe_files(layout, form, rows, stamps, ranges),
        "fingerprint": fingerprint,
        **record(layout, _quarantined(members)),
        "zero_rows": zero_rows,
        "combined": [each.described() for each in members],
        "model": members[0].manifest["model"],
        "versions": {"chunkvisor": __version__},
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if finished is not None:
        remove_sides(layout, finished)
    write_sides(layout, manifest)
    publish_manifest(layout, manifest, stamps)
    return manifest, False


def _numbers(name: str, members: Sequence[Member]) -> Numbers:
    """Of the combined rows. Raises Halt (78) where they would not begin with a byte of their own."""
    for each in members[:-1]:
        if each.numbers.dtype is FinalDtype.UBINARY and each.numbers.dimension % 8:
            raise config_error(
                f"combine.{name}: {each.layout.name} has {each.numbers.dimension} dimensions, and eight share a byte",
                why="The next output would begin in the middle of one.",
                remedy="Name it last, or give it an encode.truncate_dim that 8 divides.",
            )
    return Numbers(members[0].numbers.dtype, sum(each.numbers.dimension for each in members))


def _ranges(members: Sequence[Member]) -> Vectors | None:
    """Of int8: each dimension has its own."""
    ranges = [each for each in (ranges_of(member.manifest) for member in members) if each is not None]
    return np.concatenate(ranges, axis=1) if ranges else None


def _side_by_side(members: Sequence[Member], rows: int, numbers: Numbers) -> Iterator[Stored]:
    per_block = max(1, BLOCK_BYTES // numbers.row_bytes)
    readers = [_Reader(each) for each in members]
    for first in range(0, rows, per_block):
        count = min(per_block, rows - first)
        yield np.concatenate([reader.take(count) for reader in readers], axis=1)
    for reader in readers:
        reader.finish()


class _Reader:
    """Hands out the rows of a member in whatever numbers. Raises Halt (74) where they are not what was written."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._blocks = member.rows()
        self._left: Stored = np.empty((0, member.numbers.width), dtype=member.numbers.numpy)

    def take(self, count: int) -> Stored:
        """The next rows."""
        while len(self._left) < count:
            block = self._next()
            if block is None:
                raise self._damaged("has fewer rows than its manifest says")
            self._left = np.concatenate([self._left, block])
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def finish(self) -> None:
        """Read to the end, where the digest is compared."""
        if len(self._left) or self._next() is not None:
            raise self._damaged("has more rows than its manifest says")

    def _next(self) -> Stored | None:
        try:
            return next(self._blocks, None)
        except BadVectorsError as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, why: str) -> Halt:
        return Halt(
            ExitCode.DISK,
            f"the final of {self._member.layout.name} is damaged: it {why}",
            remedy="`chunkvisor verify` names the file; move it away, and the next run computes it again",
        )


def _quarantined(members: Sequence[Member]) -> list[dict[str, Any]]:
    """One entry for each row that lacks the vector of a member; those columns of it are NaN, or zero."""
    found: dict[int, dict[str, Any]] = {}
    for member in members:
        for each in every_row(member.layout, member.manifest):
            reason = f"{member.layout.name}: {each['reason']}"
            before = found.get(each["row"])
            reason = reason if before is None else f"{before['reason']}; {reason}"
            found[each["row"]] = {**(before or each), "reason": reason}
    return [found[row] for row in sorted(found)]
