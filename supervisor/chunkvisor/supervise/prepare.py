"""Opens one output for a run: settles which of its texts are encoded, and reads what is done.

What an earlier run has fixed stays as it was.
"""

import os
from collections.abc import Sequence
from typing import Any

from chunkvisor.assemble.badrows import mend_records
from chunkvisor.assemble.before import drop_before
from chunkvisor.assemble.finalwriter import clear_partial
from chunkvisor.assemble.form import asked_form
from chunkvisor.config.specs import encode_spec, model_spec, resolve_limits
from chunkvisor.engine.environment import thread_count
from chunkvisor.events.event import Note, OutputOpened
from chunkvisor.heart.output import OutputRun
from chunkvisor.sources.table import StagedTable, fresh_of, rows_of
from chunkvisor.store.attempt import Job
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.reuse import PlaceKind, Reuse, is_planned, read_reuse, work_with
from chunkvisor.supervise.begin import open_table
from chunkvisor.supervise.finish import Finish
from chunkvisor.supervise.opening import Begun, Opening
from chunkvisor.supervise.settle import settle
from chunkvisor.units import counted, listed
from chunkvisor_worker.contract.files import remove_folder


def open_output(opening: Opening, begun: Begun, outputs: Sequence[Begun]) -> OutputRun | dict[str, Any]:
    """The output, ready to run; or its manifest where it is complete already.

    `outputs` are all of the run. Raises as `begin_output`.
    """
    layout, config, name = begun.layout, opening.config, begun.name
    if begun.complete:
        assert begun.manifest is not None
        drop_before(layout)
        clear_partial(layout)  # of a join that was tried again after its final stood, in vain: the disk failed
        # The records of a planned one are about a part of its texts; `retry` does without them.
        mended = 0 if is_planned(layout) else mend_records(layout, begun.manifest, begun.fixed.chunk_size)
        if mended:
            opening.emit(Note(f"{name}: {counted(mended, 'lost record')} of texts without a vector written again"))
        if not config.chunk.keep and layout.chunks.exists() and not begun.manifest["quarantined"]:
            remove_folder(layout.chunks)
        return begun.manifest
    settle(opening, begun, outputs)
    fixed, staged = begun.fixed, begun.staged
    clear_partial(layout)  # before space is counted: a killed join leaves its whole size reserved
    table = open_table(opening, layout, fixed)
    if config.effective_chunk_size(name) not in ("auto", fixed.chunk_size):
        opening.emit(Note(f"{name}: keeps chunks of {fixed.chunk_size:,} texts, as its first run began"))
    reuse = read_reuse(layout)
    ledger = Ledger(layout, *work_with(reuse, fixed, staged))
    ledger.load()
    taken = reuse.taken if reuse is not None else 0
    return _output_run(opening, begun, ledger, table, reuse, taken)


def _output_run(
    opening: Opening, begun: Begun, ledger: Ledger, table: StagedTable, reuse: Reuse | None, taken: int
) -> OutputRun:
    name, config, staged = begun.name, opening.config, begun.staged
    fresh = fresh_of(table, reuse)
    _tell_opened(opening, ledger, fresh, reuse, taken, begun)
    job = _job(opening, name, ledger.fingerprint)
    taken_from = (each for each in (reuse.places if reuse else ()) if each.texts and each.kind is PlaceKind.OUTPUT)
    return OutputRun(
        ledger,
        fresh,
        job,
        resolve_limits(config.effective_encode(name), opening.device_kind, plugin=config.model.is_plugin),
        Finish(opening, begun, ledger, table, reuse, job),
        asked_form(config.outputs[name], staged.carried),
        opening.source.local,
        rows=staged.rows,
        taken=taken,
        awaits=frozenset(each.output for each in taken_from),
    )


def _tell_opened(
    opening: Opening, ledger: Ledger, table: StagedTable, reuse: Reuse | None, taken: int, begun: Begun
) -> None:
    """`table` has the texts of the ledger."""
    if reuse is not None:
        places = [each.words for each in reuse.places if each.texts]
        have = f"{reuse.taken:,} of {counted(reuse.texts, 'text')} already have a vector, from {listed(places, 3)}"
        opening.emit(Note(f"{ledger.layout.name}: {have}; {reuse.encoded:,} left to encode"))
    saved = ledger.saved()  # finds the chunks of which parts are known, and with them their bad texts
    told = OutputOpened(
        output=ledger.layout.name,
        rows=begun.staged.rows,
        distinct=ledger.plan.distinct + taken,
        chunks=ledger.plan.count,
        chunk_size=begun.fixed.chunk_size,
        chunks_done=ledger.chunks_done,
        texts_done=ledger.texts_done + taken,
        texts_saved=sum(saved.values()),
        quarantined=sum(rows_of(table, [bad.text for bad in ledger.bad_texts()]).values()),
    )
    opening.emit(told)


def _job(opening: Opening, name: str, fingerprint: str) -> Job:
    cores = len(os.sched_getaffinity(0)) // opening.config.workers.per_device
    wanted = opening.config.env.get("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS"))
    return Job(
        run_id=opening.run_id,
        fingerprint=fingerprint,
        output=name,
        model=model_spec(opening.config.model, opening.source.path, opening.source.revision),
        encode=encode_spec(opening.config.effective_encode(name)),
        import_path=(str(opening.loaded.folder),),
        threads=thread_count(wanted, opening.device_kind, cores),
    )
