"""The work of one run: its model, its outputs, its engine, and the loop over them."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from chunkvisor.assemble.badrows import count_of
from chunkvisor.assemble.combine import refuse_unequal
from chunkvisor.assemble.finalfiles import place_of
from chunkvisor.assemble.form import asked_form
from chunkvisor.assemble.manifest import read_done_manifest
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import Backend, EngineKind, OnBadRow, Start, Strictness
from chunkvisor.config.specs import model_spec
from chunkvisor.decide.history import Budget
from chunkvisor.decide.lastwords import BadRows
from chunkvisor.decide.watch import Patience
from chunkvisor.devices.gpu import find_devices, is_guessed
from chunkvisor.engine.conversion import ensure_converted, with_place
from chunkvisor.engine.engine import Engine
from chunkvisor.engine.environment import thread_count, worker_environment
from chunkvisor.engine.fresh import worker_command
from chunkvisor.engine.local import LocalEngine
from chunkvisor.engine.modelfolder import computed_dtype, gpu_need_bytes
from chunkvisor.engine.modelsource import ModelSource, pin_source, resolve_hub, resolve_local, source_at_hand
from chunkvisor.engine.ray.create import cluster_devices, ray_engine
from chunkvisor.engine.starter import WorkerSettings
from chunkvisor.errors import ExitCode, config_error
from chunkvisor.events.device import GpuLost, GpusGuessed, LookingForGpus
from chunkvisor.events.event import Emit
from chunkvisor.events.output import OutputAlreadyComplete
from chunkvisor.events.run import (
    CheckingModel,
    ConvertingModel,
    Resolving,
    RunStarted,
    WaitingForTurn,
    WorkPlanned,
)
from chunkvisor.ingest.firstrow import try_first_row
from chunkvisor.store.arithmetic import arithmetic_variables
from chunkvisor.store.layout import Layout
from chunkvisor.store.lessons import LessonFile
from chunkvisor.store.slicelock import turn
from chunkvisor.store.slices import Slice
from chunkvisor.supervise.anew import begin_anew
from chunkvisor.supervise.begin import Opening, begin_output
from chunkvisor.supervise.candidates import sources_first
from chunkvisor.supervise.combining import combine_finals
from chunkvisor.supervise.diskwait import DiskWait
from chunkvisor.supervise.driver import Driver
from chunkvisor.supervise.endings import gave_up, stopped, with_bad_rows
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.planreuse import Planner
from chunkvisor.supervise.prepare import open_output
from chunkvisor.supervise.scheduler import Settings
from chunkvisor.supervise.signals import Signals
from chunkvisor.supervise.sliceend import awaiting_dimension, end_slice, progress_of
from chunkvisor.supervise.staging import request_of
from chunkvisor.supervise.uploading import upload_finals
from chunkvisor.supervise.waitteller import WaitTeller
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import ModelSpec, Spec
from chunkvisor_worker.contract.template import TemplateSpec

_PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line adds to the config."""

    loaded: LoadedConfig
    max_rows: int | None = None
    from_scratch: bool = False
    update: bool = False
    """Take a source that has changed as it is now."""
    command: Callable[[AttemptFiles, Spec], list[str]] = worker_command
    """The command line of an attempt."""
    slice: Slice | None = None
    """The slice that this run works on; None = the whole."""
    stop_after_s: float | None = None
    """So long it may take, at most; None = as long as it takes."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run has for itself."""

    layout: Layout
    run_id: str
    signals: Signals
    emit: Emit
    tick: Callable[[], None]
    """To be called several times a second, however long something takes."""
    texts_per_s_before: float | None = None
    """Of the last run in this workdir, or of a trial."""


class Work:
    """What a run does between its first word and its last."""

    def __init__(self, request: Request, run: Run) -> None:
        self._request = request
        self._config = config = request.loaded.config
        self._run = run
        self._layout, self._emit = run.layout, run.emit
        self._on_ray = config.engine.kind is EngineKind.RAY
        if not self._on_ray and "cpu" not in config.device:
            self._emit(LookingForGpus())
        if self._on_ray:
            self._devices = cluster_devices(config)
        else:
            self._devices = find_devices(config.device, on_lost=lambda why: self._emit(GpuLost(why)))
        if guessed := sum(map(is_guessed, self._devices)):
            self._emit(GpusGuessed(guessed))
        self._budget = Budget(config.recovery.attempts, config.recovery.min_batch_size, config.recovery.wait_timeout)
        self._engine: Engine | None = None
        """Of the chunks that come next."""

    def do(self) -> ExitCode:
        """Do it. Raises Halt with the exit code and the words where it does not end well; OSError."""
        try:
            return self._do()
        finally:
            if self._engine is not None:
                self._engine.close()

    def _do(self) -> ExitCode:
        config, of_slice = self._config, self._request.slice
        self._emit(
            RunStarted(
                workdir=str(self._layout.workdir),
                device=", ".join(map(str, self._devices)),
                run=self._run.run_id,
                gpus=tuple(device.uuid for device in self._devices),
                engine=str(config.engine.kind),
                model=config.model.name,
                outputs=tuple(config.outputs),
                slice=str(of_slice or ""),
            )
        )
        with self._turn():
            source, outputs = self._open(of_slice)
        self._tell_plan(outputs)
        self._encode(source, outputs)
        if of_slice is not None:
            # The last slice finds all chunks committed, and then does what a run of the whole would do.
            with self._turn():
                done, chunks = progress_of(self._layout, config.outputs)
                if done + awaiting_dimension(self._layout, config.outputs) == chunks:
                    self._encode(*self._open(None))
                    done = chunks
            if done < chunks:
                return end_slice(self._layout, outputs, done, chunks, self._emit)
        combine_finals(config, self._layout, self._emit, self._on_wait)
        upload_finals(config, self._layout, self._emit, self._on_wait)
        found = {name: read_done_manifest(self._layout.output(name)) for name in config.outputs}
        quarantined = {name: manifest for name, manifest in found.items() if manifest and count_of(manifest)}
        if quarantined:
            raise with_bad_rows(self._layout, quarantined)
        return ExitCode.COMPLETE

    def _open(self, of_slice: Slice | None) -> tuple[ModelSource, list[OutputRun]]:
        """The model's files, and the outputs that are not complete."""
        config, layout = self._config, self._layout
        from_scratch, outputs = self._request.from_scratch, list[OutputRun]()
        source = self._resolve_model(anew=from_scratch)
        opening = Opening(
            self._request.loaded,
            source,
            self._devices[0].kind,
            self._run.run_id,
            self._request.max_rows,
            of_slice,
            # The environment of this machine does not travel to the nodes of a cluster.
            arithmetic_variables({} if self._on_ray else os.environ, config.env),
            DiskWait(config.recovery.wait_timeout, self._pause, self._emit),
            self._emit,
            self._on_wait,
            Planner(self._emit, self._on_wait, strict=config.identity is Strictness.STRICT),
            lambda: self._load_ahead(source),
            computed_dtype(config.model, source.path),
            self._request.update,
            from_scratch,
        )
        if from_scratch:
            begin_anew(opening, [layout.output(name) for name in config.outputs])
            if not config.model.is_plugin and source.local is None:
                pin_source(layout.model, config.model, source)
        begun = [begin_output(opening, layout.output(name)) for name in config.outputs]
        refuse_unequal(config.combine, {each.name: each.staged.rows for each in begun})
        order = sources_first(config, {each.name: each.fixed.identity for each in begun})
        begun.sort(key=lambda each: order.index(each.name))
        for each in begun:
            opened = open_output(opening, each, begun)
            if isinstance(opened, OutputRun):
                outputs.append(opened)
            else:
                path = str(place_of(each.layout, asked_form(config.outputs[each.name])))
                self._emit(OutputAlreadyComplete(each.name, opened["rows"], opened["dimension"], path))
        for output in outputs:
            output.awaited = tuple(each for each in outputs if each.name in output.awaits)
        return source, outputs

    def _tell_plan(self, outputs: Sequence[OutputRun]) -> None:
        if not outputs:
            return
        ledgers = [output.ledger for output in outputs]
        texts, left = sum(each.texts for each in ledgers), sum(each.texts - each.texts_done for each in ledgers)
        rows = sum(output.rows for output in outputs)
        chunks, pending = sum(len(each.share) for each in ledgers), sum(output.left for output in outputs)
        self._emit(WorkPlanned(rows, texts, left, chunks, pending, self._run.texts_per_s_before))

    def _encode(self, source: ModelSource, outputs: Sequence[OutputRun]) -> None:
        config, run = self._config, self._run
        settings = Settings(
            per_device=config.workers.per_device,
            standby=config.workers.standby,
            budget=self._budget,
            bad_rows=BadRows(config.recovery.on_bad_row is OnBadRow.FAIL, config.recovery.max_bad_rows),
        )
        patience = Patience(config.recovery.startup_timeout, config.recovery.stall_timeout)
        if outputs and outputs[0].job.model.converted is not None:
            self._convert(source, outputs[0].job.model)
        lessons, engine = self._lessons(source), self._engine or self._new_engine(source, outputs)
        need_bytes, self._engine = gpu_need_bytes(config.model, source.path), None  # the driver closes it
        driver = Driver(outputs, settings, patience, lessons, engine, run.signals, run.emit, run.tick, need_bytes)
        given_up = driver.run()
        if run.signals.first is not None or (run.signals.draining and not all(each.finished for each in outputs)):
            raise stopped(run.signals)
        if given_up:
            raise gave_up(given_up)

    def _load_ahead(self, source: ModelSource) -> None:
        """Before a source is read: have a template load meanwhile, where there is to be one or it takes seconds."""
        model = self._config.model
        slow = not model.is_plugin and model.backend is Backend.TORCH
        wanted = slow or (model.is_plugin and self._config.workers.start is Start.WARM)
        if wanted and self._engine is None and not self._on_ray:
            self._engine = engine = self._local_engine(source)
            engine.expect_any()

    def _new_engine(self, source: ModelSource, outputs: Sequence[OutputRun]) -> Engine:
        match self._config.engine.kind:
            case EngineKind.LOCAL:
                return self._local_engine(source)
            case EngineKind.RAY:
                job = outputs[0].job if outputs else None
                return ray_engine(self._config, self._layout, job, self._run.run_id, self._emit)

    def _local_engine(self, source: ModelSource) -> LocalEngine:
        config, device, command = self._config, self._devices[0], self._request.command
        # All outputs have the same model.
        model = with_place(model_spec(config.model, source.path, source.revision), self._layout.converted)
        settings = WorkerSettings(
            # A command line of somebody else's can only be started afresh.
            config.workers.start if command is worker_command else Start.FRESH,
            self._run.run_id,
            os.environ,
            config.env,
            device,
            TemplateSpec(model, device.kind, (str(self._request.loaded.folder),)),
            self._layout.template,
            config.recovery.startup_timeout,
            command,
        )
        return LocalEngine(self._devices, settings, self._emit)

    def _lessons(self, source: ModelSource) -> LessonFile:
        model = self._config.model
        other = f"|{model.backend}" if model.backend is not Backend.TORCH else ""
        of_model = f"{source.revision or model.name}|{model.dtype}|{model.encoder}{other}"
        return LessonFile(self._layout.lessons, of_model)

    def _convert(self, source: ModelSource, model: ModelSpec) -> None:
        config = self._config
        threads = thread_count(config.env.get("OMP_NUM_THREADS"), self._devices[0].kind, len(os.sched_getaffinity(0)))
        with self._turn():
            ensure_converted(
                model,
                worker_environment(
                    os.environ, self._devices[0], self._run.run_id, os.getpid(), config.env, threads=threads
                ),
                self._on_wait,
                lambda: self._emit(ConvertingModel(model.name, model.backend)),
                source.local.check if source.local is not None else lambda: None,
            )

    def _resolve_model(self, *, anew: bool) -> ModelSource:
        model, layout = self._config.model, self._layout
        if model.is_plugin:
            return ModelSource(None, model.revision)
        try:
            if model.is_folder:
                self._emit(CheckingModel(model.name))
                return resolve_local(model, layout.model, self._on_wait)
            at_hand = source_at_hand(model, layout.model)  # refuses the path of a folder that is not there
        except OSError as error:
            raise config_error(f"the model folder {model.name} cannot be read: {error}") from None
        if at_hand is None:
            # The hub may be waited for, and a download takes minutes: what is wrong with the sources is said before.
            for name in self._config.outputs:
                try_first_row(request_of(self._config, name, self._request.max_rows), self._on_wait)
        self._emit(Resolving(model.name))

        teller, began_s = WaitTeller(self._emit, self._budget.wait_timeout_s), None

        def wait(seconds: float, why: str) -> None:
            nonlocal began_s
            now_s = time.monotonic()
            began_s = now_s if began_s is None else began_s
            teller.tell(seconds, now_s - began_s, why, Outcome.HUB)
            self._pause(seconds)

        return resolve_hub(model, layout.model, layout.fetch, self._budget, wait, self._on_wait, anew=anew)

    def _turn(self) -> AbstractContextManager[None]:
        """What belongs to all slices is prepared, and joined, by one of them at a time."""
        return turn(self._layout, self._pause, lambda who: self._emit(WaitingForTurn(who)))

    def _pause(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._run.signals.sleep(min(left_s, _PAUSE_S), [])
            self._on_wait()

    def _on_wait(self) -> None:
        self._run.tick()
        if self._run.signals.draining:
            raise stopped(self._run.signals)
