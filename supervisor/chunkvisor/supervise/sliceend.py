"""The end of a slice that is not the last one: how far the whole is, and what became of its own rows.

Of the chunks of other slices, only the names are looked at: their processes may be writing them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import Emit
from chunkvisor.events.run import SliceDone
from chunkvisor.show.outputstatus import read_output
from chunkvisor.store.chunkfiles import committed_chunks
from chunkvisor.store.fixed import read_facts
from chunkvisor.store.layout import Layout
from chunkvisor.store.ledger import ledger_of
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.supervise.outputrun import OutputRun

_ROWS = 10
"""So many of the rows without a vector are named; for each, the source is read up to its line."""


def progress_of(layout: Layout, names: Iterable[str]) -> tuple[int, int]:
    """(chunks that are committed, chunks there are) of these outputs, of all slices; an output not begun has none.

    On a network file system, what another machine has committed in the last minute may be missing (nfs(5), acdirmax).
    """
    found = [read_output(layout.output(name)) for name in names]
    return sum(output.chunks_done for output in found), sum(output.chunks for output in found)


def awaiting_dimension(layout: Layout, names: Iterable[str]) -> int:
    """Chunks of which each text is known to be bad, so that only the dimension kept them from being committed.

    A slice that ends before any other has a vector leaves them so; who comes last puts them together.
    """
    return sum(_awaiting(layout.output(name)) for name in names)


def _awaiting(layout: OutputLayout) -> int:
    ledger = ledger_of(layout)
    if ledger is None or read_facts(layout) is None:
        return 0
    done = committed_chunks(layout, ledger.plan)
    numbers = (int(path.name) for path in layout.parts.glob("*") if path.name.isdecimal())
    return sum(not done[each] and not ledger.parts(each).missing() for each in numbers if each < len(done))


def end_slice(layout: Layout, outputs: Sequence[OutputRun], done: int, chunks: int, emit: Emit) -> ExitCode:
    """Say that the share is done. Raises Halt (3) where some of its rows have no vector."""
    emit(SliceDone(str(layout.slice), done, chunks))
    count = sum(output.ledger.bad_count for output in outputs)
    if not count:
        return ExitCode.COMPLETE
    bad = [(output, text) for output in outputs for text in output.ledger.bad_texts()]
    more = f" and {count - _ROWS} more" if count > _ROWS else ""
    raise Halt(
        ExitCode.QUARANTINED,
        f"slice {layout.slice} is done, but {count} text{'s' * (count != 1)} could not be encoded: "
        + ", ".join(islice(_places(outputs), _ROWS))
        + more,
        why=f"{bad[0][1].outcome}: {bad[0][1].reason}",
        remedy="the manifests will list them once all slices are joined; "
        f"to try them again then: chunkvisor retry {layout.workdir}, and run again",
    )


def _places(outputs: Sequence[OutputRun]) -> Iterator[str]:
    for output in outputs:
        for text in output.ledger.bad_texts():
            row = int(output.table.first_row(text.text, text.text + 1)[0])
            yield f"{output.name} row {row} ({output.table.place_of(row)})"
