"""The work of one run: runs the loop over its outputs, and combines final files."""

import tempfile
from contextlib import closing
from pathlib import Path

from chunkvisor.config.model import encode_spec
from chunkvisor.core.loop import Loop
from chunkvisor.core.run import stopped
from chunkvisor.core.store import ResultStore
from chunkvisor.devices.gpu import unfit_dtype, weakest
from chunkvisor.engine.expected import Expected, read_expected
from chunkvisor.engine.modelfolder import check_model_files, read_model_folder
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.engine.trial import try_texts
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import Note, Warned, WorkPlanned
from chunkvisor.messages import chunks_given_up, finished_with_bad_rows
from chunkvisor.outputs.combine import combine
from chunkvisor.outputs.forms import Manifest
from chunkvisor.outputs.state import final_record_of, read
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import LessonFile
from chunkvisor.supervise.opening import Opening
from chunkvisor.supervise.resources import RunResources
from chunkvisor.units import counted


def work(resources: RunResources, source: ModelSource) -> None:
    """Encode what is left to encode, and make all final files.

    Raises Halt if it does not end well; OSError.
    """
    run = resources.run
    config = resources.request.loaded.config
    model = config.model
    if source.path is not None:
        folder = read_model_folder(Path(source.path))
        dtype = folder.computes_in(model)
        unfit = unfit_dtype(dtype, folder.model_type, weakest(resources.devices))
        if unfit:
            run.emit(Warned("; ".join(unfit)))
    # Before the source is read, which may take long: the file may be wrong.
    expected = read_expected(model.expect) if model.expect else None
    outputs = Opening(resources, source).open_all()
    if outputs:
        for what, mend in check_model_files(config, source.path):
            run.emit(Warned(f"{what}; {mend}"))
        ledgers = [output.ledger for output in outputs]
        texts = sum(each.plan.distinct for each in ledgers)
        planned = WorkPlanned(
            rows=sum(output.table.rows for output in outputs),
            texts=texts,
            texts_left=texts - sum(each.texts_done for each in ledgers),
            chunks=sum(each.plan.count for each in ledgers),
            chunks_left=sum(output.left for output in outputs),
            texts_per_s=run.texts_per_s_before,
            taken=sum(output.taken for output in outputs),
        )
        run.emit(planned)
        if expected and any(output.left for output in outputs):
            _expect(expected, resources, source)
    lessons = LessonFile(
        run.layout.lessons, f"{source.revision or model.name}|{model.dtype}|{model.encoder}"
    )
    with closing(resources.take_engine(source)) as engine:
        store = ResultStore(outputs, run, config.recovery.wait_timeout)
        given_up = Loop(outputs, config, lessons, engine, store, run).run()
    joined = all(each.joined for each in outputs)
    if run.signals.first or (run.signals.draining and not joined):
        raise stopped(run.signals)
    if given_up:
        raise chunks_given_up(given_up)
    _complete(resources)


def _complete(resources: RunResources) -> None:
    """Make the combinations, and check that every final file and manifest is there.

    Raises Halt: 3 if some rows have no vector, 75 if a file is missing; OSError.
    """
    run = resources.run
    config = resources.request.loaded.config
    finished = dict[str, Manifest]()
    for name in config.outputs:
        found = read(run.layout.output(name))
        finished[name] = _there(found.manifest, found.layout)
    for name, members in config.combine.items():
        place = run.layout.combined(name)
        manifests = {member: finished[member] for member in members}
        manifest, was_there = combine(place, manifests, resources.on_wait)
        record = final_record_of(place)
        whole = record and record.holds(place)
        _there(manifest if whole else None, place)
        if not was_there:
            size = f"{manifest['rows']:,} x {manifest['dimension']:,}"
            words = f"{name}: {size}, {' and '.join(members)} next to each other: {place.final}"
            run.emit(Note(words))
    quarantined = {name: each for name, each in finished.items() if each["quarantined"]}
    if quarantined:
        raise finished_with_bad_rows(run.layout, quarantined)


def _there(manifest: Manifest | None, layout: OutputLayout) -> Manifest:
    """Return the manifest of an output or a combination.

    Raises Halt (75) if it is None: its files are missing, or not those that were made.
    """
    if not manifest:
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"{layout.name} has no final file, or not the one that was made: {layout.final}",
            "Run the same command again: what has a vector is not encoded again.",
            why="it was changed or removed while the run ended, or the run did not make it",
        )
    return manifest


def _expect(expected: Expected, resources: RunResources, source: ModelSource) -> None:
    """Have the first worker of the run encode the texts of `model.expect`.

    Raises Halt (78) if it gives other vectors; OSError.
    """
    loaded = resources.request.loaded
    config = loaded.config
    model = source.spec(config.model)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-expect-") as folder:
        trial = try_texts(
            expected.texts,
            model,
            encode_spec(config.encode),
            resources.devices[0],
            loaded,
            Path(folder),
            resources.on_wait,
        )
    if trial.vectors is None:
        raise trial.failure("the texts of model.expect could not be encoded")
    refusal = expected.refusal(trial.vectors, trial.dtype, model)
    if refusal:
        raise refusal
    texts = counted(len(expected.texts), "text")
    resources.run.emit(Note(f"the model gives the vectors of {texts} in {expected.path}"))
