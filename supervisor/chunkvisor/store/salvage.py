"""What an attempt that ended without a result has encoded all the same: the batches that it had written.

Nothing is believed: each batch has to match its checksum, and a vector that would be refused in a result is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader

import numpy as np
import xxhash

from chunkvisor.store.artifact import BadVectorsError, Shape, bad_rows, read_exactly, read_shape
from chunkvisor_worker.contract.batchlog import read_batch_log
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Facts, Spec


@dataclass(frozen=True, slots=True)
class Salvage:
    """What is left of an attempt; positions count from the first text of its spec."""

    done: tuple[int, ...] = ()
    """Texts whose vectors are in its partial file, verified."""
    under_way: tuple[int, ...] = ()
    """Texts of the batches that had begun and were not written: one of them may be what ended it."""


def look(files: AttemptFiles, spec: Spec, known: Facts | None, is_blank: Callable[[int], bool]) -> Salvage:
    """What is left of the attempt. Raises nothing: what cannot be read is not there.

    `known` and `is_blank` are as in `store.attempt.gather`.
    """
    record = read_batch_log(files.batches)
    rows = spec.stop - spec.start
    wanted = set(range(rows)).difference(spec.skip)
    under_way = tuple(sorted(wanted.intersection(record.under_way)))
    facts = record.facts
    if facts is None or (known is not None and (known.dimension, known.dtype) != (facts.dimension, facts.dtype)):
        return Salvage(under_way=under_way)
    done: list[int] = []
    try:
        with open(files.partial, "rb") as file:
            shape = read_shape(file)
            if (shape.rows, shape.dimension) != (rows, facts.dimension):
                return Salvage(under_way=under_way)
            for batch, digest in record.written:
                if wanted.issuperset(batch):
                    done += _good(file, shape, batch, digest, is_blank)
    except (BadVectorsError, OSError):
        return Salvage(under_way=under_way)
    return Salvage(tuple(sorted(done)), under_way)


def _good(
    file: BufferedReader, shape: Shape, rows: tuple[int, ...], digest: str, is_blank: Callable[[int], bool]
) -> list[int]:
    """Those rows of a batch whose vectors are good; none where they are not the ones that were written."""
    block = np.empty((len(rows), shape.dimension), dtype="<f4")
    for row, room in zip(rows, block, strict=True):
        file.seek(shape.offset_bytes + 4 * shape.dimension * row)
        read_exactly(file, room)
    if xxhash.xxh3_64_hexdigest(block.data) != digest:
        return []
    not_finite, zero = (set(found.tolist()) for found in bad_rows(block))
    refused = not_finite.union(at for at in zero if not is_blank(rows[at]))
    return [row for at, row in enumerate(rows) if at not in refused]
