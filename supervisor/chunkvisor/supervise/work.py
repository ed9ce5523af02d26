"""The work of one run: opens its outputs, runs the loop over them, and combines what is finished."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from chunkvisor.assemble.manifest import combine, read_done_manifest, read_finished
from chunkvisor.config.model import encode_spec, model_spec
from chunkvisor.devices.gpu import unfit_dtype, weakest
from chunkvisor.engine.modelfolder import check_model_files, read_model_folder
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.engine.trial import Conditions, Expected, environment_of, read_expected, try_texts, wrong_vectors
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import Note, Warned, WorkPlanned
from chunkvisor.heart.loop import Loop
from chunkvisor.heart.output import OutputRun
from chunkvisor.heart.run import Run, stopped
from chunkvisor.store.records import LessonFile
from chunkvisor.supervise.means import Means, Request
from chunkvisor.supervise.opening import Opening
from chunkvisor.units import counted
from chunkvisor.words import gave_up, with_bad_rows


def work(request: Request, run: Run, means: Means, source: ModelSource) -> None:
    """Do what a run does between its first word and its last. Raises Halt if it does not end well; OSError."""
    config = request.loaded.config
    if source.path is not None:
        folder = read_model_folder(Path(source.path))
        dtype, kind = folder.computes_in(config.model), folder.model_type
        card = weakest(means.devices, dtype, means.on_wait)
        if card is not None and (unfit := unfit_dtype(dtype, kind, card)) is not None:
            run.emit(Warned("; ".join(unfit)))
    # What is wrong with it is said before the source is read.
    expected = read_expected(config.model.expect) if config.model.expect is not None else None
    outputs = Opening(request, run, means, source).open()
    if outputs:
        for what, mend in check_model_files(config, source.path).warnings:
            run.emit(Warned(f"{what}; {mend}"))
        _tell_plan(run, outputs)
        if expected is not None and any(output.left for output in outputs):
            _expect(expected, request, run, means, source)
    _encode(request, run, means, source, outputs)
    _combine(request, run, means)
    found = {name: read_done_manifest(run.layout.output(name)) for name in config.outputs}
    if quarantined := {name: manifest for name, manifest in found.items() if manifest and manifest["quarantined"]}:
        raise with_bad_rows(run.layout, quarantined)


def _tell_plan(run: Run, outputs: Sequence[OutputRun]) -> None:
    ledgers = [output.ledger for output in outputs]
    texts = sum(each.plan.distinct for each in ledgers)
    planned = WorkPlanned(
        rows=sum(output.rows for output in outputs),
        texts=texts,
        texts_left=texts - sum(each.texts_done for each in ledgers),
        chunks=sum(each.plan.count for each in ledgers),
        chunks_left=sum(output.left for output in outputs),
        texts_per_s=run.texts_per_s_before,
        taken=sum(output.taken for output in outputs),
    )
    run.emit(planned)


def _expect(expected: Expected, request: Request, run: Run, means: Means, source: ModelSource) -> None:
    """Have the first worker of the run encode the texts of `model.expect`. Raises Halt, OSError."""
    config, device = request.loaded.config, means.devices[0]
    model = model_spec(config.model, source.path, source.revision)
    environment = environment_of(os.environ, [device], config.env)
    conditions = Conditions(device.kind, environment, (str(request.loaded.folder),), config.recovery)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-expect-") as folder:
        encode = encode_spec(config.encode)
        trial = try_texts(expected.texts, model, encode, conditions, Path(folder), means.on_wait)
    if trial.vectors is None:
        raise Halt(
            ExitCode(trial.verdict.exit_code or ExitCode.TRY_AGAIN),
            f"the texts of model.expect could not be encoded: {trial.verdict.outcome}",
            why=f"{trial.verdict.reason}; the last line of the worker's log: {trial.log_line or 'nothing'}",
            remedy=trial.verdict.remedy or "`chunkvisor doctor` looks at the machine and the model",
        )
    quantized = "quantization_config" in model.kwargs
    if problem := expected.problem(trial.vectors, trial.dtype, quantized=quantized):
        raise wrong_vectors(problem, config.model.name)
    run.emit(Note(f"the model gives the vectors of {counted(len(expected.texts), 'text')} in {expected.path}"))


def _encode(request: Request, run: Run, means: Means, source: ModelSource, outputs: Sequence[OutputRun]) -> None:
    config = request.loaded.config
    model = config.model
    lessons = LessonFile(run.layout.lessons, f"{source.revision or model.name}|{model.dtype}|{model.encoder}")
    with closing(means.take_engine(source)) as engine:
        given_up = Loop(outputs, config, lessons, engine, run).run()
    if run.signals.first is not None or (run.signals.draining and not all(each.joined for each in outputs)):
        raise stopped(run.signals)
    if given_up:
        raise gave_up(given_up)


def _combine(request: Request, run: Run, means: Means) -> None:
    """Put finished outputs next to each other, as the config asks. Raises Halt, OSError."""
    for name, members in request.loaded.config.combine.items():
        found = {member: read_finished(run.layout.output(member)) for member in members}
        whole = {member: manifest for member, manifest in found.items() if manifest}
        if len(whole) < len(found):
            lost = next(member for member, manifest in found.items() if not manifest)
            raise Halt(ExitCode.TRY_AGAIN, f"{lost} was damaged a moment ago", remedy="run again to make it again")
        place = run.layout.combined(name)
        manifest, was_there = combine(place, whole, means.on_wait)
        if not was_there:
            size = f"{manifest['rows']:,} x {manifest['dimension']:,}"
            run.emit(Note(f"{name}: {size}, {' and '.join(members)} next to each other: {place.final}"))
