"""The words with which a run ends that has done what it could: refused by its machine, or short of some rows.

Pure. `lastwords` has those about workers and texts, `stops` those of a run that was asked to stop.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from chunkvisor.assemble.badrows import count_of, reasons_in_words, reasons_of, where_listed
from chunkvisor.assemble.form import without_vectors
from chunkvisor.decide.remedies import advice_on_row, last_remedy
from chunkvisor.errors import ExitCode, Halt, is_empty
from chunkvisor.heart.telling import GivenUp
from chunkvisor.store.layout import Layout
from chunkvisor.store.leftovers import failed_as, last_log
from chunkvisor.units import counted
from chunkvisor_worker.contract.exits import Outcome

_SHOWN, _FILES = 10, 3


def with_bad_rows(layout: Layout, manifests: Mapping[str, dict[str, Any]]) -> Halt:
    """The end of a run whose outputs, by name, have rows without a vector."""
    listed = [(name, each) for name, manifest in manifests.items() for each in manifest["quarantined"]]
    rows = [f"{name} row {each['row']} ({each['place']})" for name, each in listed[:_SHOWN]]
    count = sum(map(count_of, manifests.values()))
    more = f" and {count - _SHOWN:,} more" if count > _SHOWN else ""
    reasons = reasons_of(row for _, row in listed)
    most = reasons[0]
    name = next(name for name, row in listed if (row["outcome"], row["reason"]) == (most.outcome, most.reason))
    rule, log = failed_as(layout.output(name).attempts, most.outcome, most.reason)
    if most.outcome == Outcome.BAD_OUTPUT and is_empty(str(log or "")):
        log = None
    advice, them = advice_on_row(most.outcome, rule), "it" if count == 1 else "them"
    files = [where_listed(layout.output(name), manifest) for name, manifest in manifests.items()]
    return Halt(
        ExitCode.QUARANTINED,
        f"finished, but {counted(count, 'row')} could not be encoded and {without_vectors(count, manifests)}: "
        + ", ".join(rows)
        + more,
        why="\n       ".join(reasons_in_words(reasons, count)),  # below each other
        remedy=f"{', '.join(map(str, files[:_FILES]))} {'lists' if len(files) == 1 else 'list'} every such row. "
        f"{advice}{' ' * bool(advice)}To try {them} again: chunkvisor retry {layout.workdir}, then run again. "
        "If you correct the source: run again with --update",
        log=log,
        see="quarantine",
    )


def gave_up(given_up: Sequence[GivenUp]) -> Halt:
    """The end of a run in which these chunks have exhausted their tries."""
    chunks = list(dict.fromkeys(f"{each.output} chunk {each.chunk}" for each in given_up))  # each may be in parts
    names = ", ".join(chunks[:10])
    more = f" and {len(chunks) - 10} more" if len(chunks) > 10 else ""
    last = given_up[-1]
    # What has no room on the GPU, be it long or short, will have none in the next run.
    lacks_memory = all(each.verdict.outcome is Outcome.GPU_OOM for each in given_up)
    return Halt(
        ExitCode.MACHINE if lacks_memory else ExitCode.TRY_AGAIN,
        f"not complete: {names}{more} failed in every try; everything else is done",
        why=last.verdict.why,
        remedy=f"{last_remedy(last.verdict)} Then run the same command again.",
        log=last_log(last.files),
        see=last.verdict.see,
    )
