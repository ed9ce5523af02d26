"""The work of one run: opens its outputs, runs the loop over them, and combines what is finished."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from chunkvisor.assemble.badrows import count_of
from chunkvisor.assemble.forms import asked_form, place_of
from chunkvisor.assemble.join import combine, refuse_unequal
from chunkvisor.assemble.manifest import read_done_manifest, read_finished
from chunkvisor.config.choices import OnBadRow
from chunkvisor.config.model import encode_spec, model_spec
from chunkvisor.devices.dtypes import less_memory, unfit_dtype
from chunkvisor.devices.gpu import weakest
from chunkvisor.engine.modelfolder import check_model_files, computed_dtype, gpu_need_bytes, read_model_folder
from chunkvisor.engine.modelsource import ModelSource, pin_source
from chunkvisor.engine.trial import Conditions, environment_of, read_expected, try_texts, wrong_vectors
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import Note, OutputAlreadyComplete, Warned, WorkPlanned
from chunkvisor.heart.loop import Loop
from chunkvisor.heart.output import OutputRun
from chunkvisor.heart.run import Run, stopped
from chunkvisor.heart.scheduler import Settings
from chunkvisor.judge import Patience
from chunkvisor.reuse import Planner, sources_first
from chunkvisor.store.identity import arithmetic_variables
from chunkvisor.supervise.means import Means, Request
from chunkvisor.supervise.opening import Opening, begin_anew, begin_output, open_output
from chunkvisor.supervise.settle import settle
from chunkvisor.units import counted
from chunkvisor.words import BadRows, gave_up, with_bad_rows
from chunkvisor_worker.contract.exits import Outcome

_LACKS_MEMORY = frozenset({str(Outcome.GPU_OOM), str(Outcome.GPU_BUSY)})


class RunWork:
    """What a run does between its first word and its last."""

    def __init__(self, request: Request, run: Run, means: Means) -> None:
        self._request, self._run, self._means = request, run, means
        self._config, self._layout, self._emit = request.loaded.config, run.layout, run.emit
        self._other_dtype = ""
        """What another dtype does against a lack of memory on the weakest GPU; empty = nothing, or not known."""

    def do(self, source: ModelSource) -> ExitCode:
        """Do it. Raises Halt with the exit code and the words if it does not end well; OSError."""
        self._check_dtype(source)
        if self._config.model.expect is not None:
            read_expected(self._config.model.expect)  # what is wrong with it is said before the source is read
        outputs = self._open(source)
        self._tell_plan(outputs)
        if any(output.left for output in outputs):
            self._expect(source)
        self._encode(source, outputs)
        self._combine()
        found = {name: read_done_manifest(self._layout.output(name)) for name in self._config.outputs}
        quarantined = {name: manifest for name, manifest in found.items() if manifest and count_of(manifest)}
        if quarantined:
            rows = [row for manifest in quarantined.values() for row in manifest["quarantined"]]
            lacks_memory = any(row["outcome"] == Outcome.GPU_OOM for row in rows)
            raise self._with_dtype(with_bad_rows(self._layout, quarantined), lacks_memory)
        return ExitCode.COMPLETE

    def _check_dtype(self, source: ModelSource) -> None:
        card = weakest(self._means.devices)
        if card is None or source.path is None:
            return
        dtype, kind = computed_dtype(self._config.model, source.path), read_model_folder(Path(source.path)).model_type
        self._other_dtype = less_memory(dtype, kind, card)
        if (unfit := unfit_dtype(dtype, kind, card)) is not None:
            self._emit(Warned("; ".join(unfit)))

    def _with_dtype(self, halt: Halt, lacks_memory: bool) -> Halt:
        """Add to the remedy the dtype that takes less memory on this card; the other words do not know the card."""
        if lacks_memory and self._other_dtype:
            halt.remedy = f"{halt.remedy.rstrip('.')}. {self._other_dtype}"
        return halt

    def _open(self, source: ModelSource) -> list[OutputRun]:
        """Open the outputs that are not complete."""
        config, layout, means = self._config, self._layout, self._means
        # The environment of this machine does not travel to the nodes of a cluster.
        arithmetic = arithmetic_variables({} if means.on_ray else os.environ, config.env)
        planner = Planner(self._emit, means.on_wait)
        opening = Opening(self._request, self._run, means, source, arithmetic, planner)
        if self._request.from_scratch:
            begin_anew(opening, [layout.output(name) for name in config.outputs])
            if not config.model.is_plugin and source.local is None:
                pin_source(layout.model, config.model, source)
        begun = [begin_output(opening, layout.output(name)) for name in config.outputs]
        refuse_unequal(config.combine, {each.name: each.staged.rows for each in begun})
        order = sources_first(config)
        begun.sort(key=lambda each: order.index(each.name))
        outputs = list[OutputRun]()
        for each in begun:
            if not each.complete:
                settle(opening, each, begun)
            opened = open_output(opening, each)
            if isinstance(opened, OutputRun):
                outputs.append(opened)
            else:
                path = str(place_of(each.layout, asked_form(config.outputs[each.name])))
                self._emit(OutputAlreadyComplete(each.name, opened["rows"], opened["dimension"], path))
        for what, mend in check_model_files(config, source.path).warnings if outputs else ():
            self._emit(Warned(f"{what}; {mend}"))
        for output in outputs:
            output.awaited = tuple(each for each in outputs if each.name in output.awaits)
        return outputs

    def _tell_plan(self, outputs: Sequence[OutputRun]) -> None:
        if not outputs:
            return
        ledgers = [output.ledger for output in outputs]
        texts = sum(each.plan.distinct for each in ledgers)
        planned = WorkPlanned(
            rows=sum(output.rows for output in outputs),
            texts=texts,
            texts_left=texts - sum(each.texts_done for each in ledgers),
            chunks=sum(each.plan.count for each in ledgers),
            chunks_left=sum(output.left for output in outputs),
            texts_per_s=self._run.texts_per_s_before,
            taken=sum(output.taken for output in outputs),
        )
        self._emit(planned)

    def _expect(self, source: ModelSource) -> None:
        """Have the first worker of the run encode the texts of `model.expect`. Raises Halt, OSError."""
        config, device = self._config, self._means.devices[0]
        if config.model.expect is None:
            return
        expected, model = read_expected(config.model.expect), model_spec(config.model, source.path, source.revision)
        environment = environment_of(os.environ, [device], config.env)
        conditions = Conditions(device.kind, environment, (str(self._request.loaded.folder),), Patience.of(config))
        with tempfile.TemporaryDirectory(prefix="chunkvisor-expect-") as folder:
            encode = encode_spec(config.encode)
            trial = try_texts(expected.texts, model, encode, conditions, Path(folder), self._means.on_wait)
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
        self._emit(Note(f"the model gives the vectors of {counted(len(expected.texts), 'text')} in {expected.path}"))

    def _encode(self, source: ModelSource, outputs: Sequence[OutputRun]) -> None:
        config, run = self._config, self._run
        settings = Settings(
            per_device=config.workers.per_device,
            standby=config.workers.standby,
            budget=self._means.budget,
            bad_rows=BadRows(config.recovery.on_bad_row is OnBadRow.FAIL, config.recovery.max_bad_rows),
        )
        lessons, need_bytes = self._means.lessons(source), gpu_need_bytes(config.model, source.path)
        with closing(self._means.take_engine(source, outputs)) as engine:
            loop = Loop(outputs, settings, Patience.of(config), lessons, engine, run, need_bytes)
            try:
                given_up = loop.run()
            except Halt as halt:
                lacks_memory = halt.outcome in _LACKS_MEMORY and halt.code != ExitCode.TRY_AGAIN
                raise self._with_dtype(halt, lacks_memory) from None
        if run.signals.first is not None or (run.signals.draining and not all(each.finished for each in outputs)):
            raise stopped(run.signals)
        if given_up:
            incomplete = gave_up(given_up)
            raise self._with_dtype(incomplete, incomplete.outcome == Outcome.GPU_OOM)

    def _combine(self) -> None:
        """Put finished outputs next to each other, as the config asks. Raises Halt, OSError."""
        for name, members in self._config.combine.items():
            found = {member: read_finished(self._layout.output(member)) for member in members}
            whole = {member: manifest for member, manifest in found.items() if manifest}
            if len(whole) < len(found):
                lost = next(member for member, manifest in found.items() if not manifest)
                raise Halt(ExitCode.TRY_AGAIN, f"{lost} was damaged a moment ago", remedy="run again to make it again")
            place = self._layout.combined(name)
            manifest, was_there = combine(place, whole, self._means.on_wait)
            if not was_there:
                size = f"{manifest['rows']:,} x {manifest['dimension']:,}"
                self._emit(Note(f"{name}: {size}, {' and '.join(members)} next to each other: {place.final}"))
