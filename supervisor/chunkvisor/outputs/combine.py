"""Puts the final files of several outputs side by side in one array."""

import heapq
import itertools
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np

from chunkvisor.child import OnWait
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.outputs.forms import (
    BadRow,
    Form,
    Manifest,
    Stored,
    VectorType,
    clear_partial,
    form_of,
)
from chunkvisor.outputs.join import BLOCK_BYTES, Portions, final_rows, write_final
from chunkvisor.outputs.publish import (
    all_quarantined,
    complete_publication,
    describe_file,
    list_quarantined,
    publish,
    restore_records,
)
from chunkvisor.outputs.state import final_record_of
from chunkvisor.store.artifact import BadVectorsError
from chunkvisor.store.disk import not_ours
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.records import DamagedError, digest_of
from chunkvisor.units import counted
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import make_folder


def refuse_unequal(combine: Mapping[str, Sequence[str]], rows: Mapping[str, int]) -> None:
    """Raise Halt (78) if outputs to be combined do not have the same number of rows."""
    for name, members in combine.items():
        counts = {member: rows[member] for member in members if member in rows}
        if len(set(counts.values())) > 1:
            listed = ", ".join(
                f"{member} has {counted(count, 'row')}" for member, count in counts.items()
            )
            raise config_error(
                f"combine.{name}: {listed}",
                "Give them the same source and the same `where`, or combine others.",
                why="Row i of the combined final is row i of each of them.",
            )


def combine(
    layout: OutputLayout, members: Mapping[str, Manifest], on_wait: OnWait
) -> tuple[Manifest, bool]:
    """Put final files side by side in one array, of the dtype of the first.

    Row i has row i of each: members of shapes (rows, 384) and (rows, 768) give (rows, 1152).
    `members` are their manifests, by the name of the output. Returns the manifest, and whether the
    combined file was there already: it is made again if a member has changed. Raises OSError;
    Halt: 78 if something else is in its place, 74 if a member is damaged.
    """
    complete_publication(layout)
    fingerprint = digest_of(
        [[name, each["fingerprint"], each["digest"]] for name, each in members.items()]
    )
    record = final_record_of(layout)
    whole = record and record.holds(layout)
    if record and whole and record.manifest["fingerprint"] == fingerprint:
        restore_records(layout, record)
        return record.manifest, True
    if layout.final.exists() and not whole and not layout.done.exists():
        raise not_ours(layout.final, "give the combination another name")
    first, *_ = manifests = list(members.values())
    form = Form(dtype=form_of(first).dtype)
    rows = int(first["rows"])
    vector_type = VectorType(form.dtype, sum(each["dimension"] for each in manifests))
    outputs = {name: Layout(layout.workdir).output(name) for name in members}
    zero_rows = 0
    for folder in (layout.home.parent, layout.home, layout.state):
        make_folder(folder)
    clear_partial(layout)

    def side_by_side() -> Generator[Stored]:
        nonlocal zero_rows
        found = [final_rows(outputs[name], each) for name, each in members.items()]
        portions = [Portions(each) for each in found]
        per_block = max(1, BLOCK_BYTES // vector_type.row_bytes)
        for start in range(0, rows, per_block):
            block = np.concatenate(
                [each.next_rows(min(per_block, rows - start)) for each in portions], axis=1
            )
            zero_rows += int(np.count_nonzero(~block.any(axis=1)))
            yield block
            on_wait()
        for rest in found:
            next(rest, None)  # the reader compares the digest when it is asked for more

    try:
        written = layout.partial(form.format)
        digest = write_final(layout, written, rows, vector_type, form, side_by_side())
        quarantined = list_quarantined(layout, _quarantined_in_any(outputs, members))
    except (BadVectorsError, DamagedError) as error:
        raise Halt(
            ExitCode.DISK,
            f"a final that {layout.name} is made of is damaged: {error}",
            "Move it away, and run the same command again: it is made again.",
        ) from None
    manifest = {
        "rows": rows,
        "dimension": vector_type.dimension,
        **describe_file(layout, form, digest),
        "fingerprint": fingerprint,
        **quarantined,
        "zero_rows": zero_rows,
        "combined": [
            {"output": name, "dimension": each["dimension"]} for name, each in members.items()
        ],
        "model": first["model"],
        "versions": {"chunkvisor": __version__},
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    publish(layout, manifest)
    return manifest, False


def _quarantined_in_any(
    outputs: Mapping[str, OutputLayout], members: Mapping[str, Manifest]
) -> Iterator[BadRow]:
    """Give the rows without a vector in one or several of the outputs, with all reasons."""

    def with_name(name: str) -> Iterator[BadRow]:
        for each in all_quarantined(outputs[name], members[name]):
            yield each | {"reason": f"{name}: {each['reason']}"}

    row = itemgetter("row")
    for _, same in itertools.groupby(heapq.merge(*map(with_name, members), key=row), key=row):
        each = list(same)
        yield each[0] | {"reason": "; ".join(one["reason"] for one in each)}
