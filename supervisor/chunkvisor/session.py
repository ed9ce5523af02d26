"""One invocation of `chunkvisor run`, from the config to the exit code.

It never loops over chunks itself: the runner does.
"""

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chunkvisor.config import Config, EngineKind, OnBadRow, Start
from chunkvisor.configfile import LoadedConfig
from chunkvisor.diskneed import DISK_ERRNOS
from chunkvisor.endings import disk_halt, gave_up, limit_halt, stopped, with_bad_rows
from chunkvisor.engine.engine import Engine
from chunkvisor.engine.environment import worker_environment
from chunkvisor.engine.fresh import worker_command
from chunkvisor.engine.local import LocalEngine, LocalSettings
from chunkvisor.engine.ray.opening import cluster_devices, ray_engine
from chunkvisor.engine.starter import Starter
from chunkvisor.engine.warm import Template
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.finalfiles import place_of
from chunkvisor.finished import discard_final
from chunkvisor.gpu import Device, find_devices
from chunkvisor.journal import Journal
from chunkvisor.lastwords import BadRows
from chunkvisor.layout import Layout
from chunkvisor.lessonbook import LessonBook
from chunkvisor.manifest import read_quarantined
from chunkvisor.modelsource import ModelSource, resolve_hub, resolve_local
from chunkvisor.observe.extras import require_extras
from chunkvisor.observe.invocation import open_invocation
from chunkvisor.observe.observer import Observer, Observers
from chunkvisor.observe.standing import standing_observers
from chunkvisor.orphans import end_orphans
from chunkvisor.outputrun import Emit, OutputRun
from chunkvisor.policy import Budget
from chunkvisor.prepare import Opening, open_output
from chunkvisor.runner import Runner, Settings
from chunkvisor.signals import Signals
from chunkvisor.sliceend import end_slice, progress_of
from chunkvisor.slicelock import hold_workdir, turn
from chunkvisor.slices import Slice
from chunkvisor.watch import Patience
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Limits, Spec, Tier
from chunkvisor_worker.contract.template import TemplateSpec

_LIMIT_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
"""Of open files, processes and memory."""


_PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line adds to the config."""

    loaded: LoadedConfig
    max_rows: int | None = None
    from_scratch: bool = False
    command: Callable[[AttemptFiles, Spec], list[str]] = worker_command
    """The command line of an attempt."""
    slice: Slice | None = None
    """The slice that this run works on; None = the whole."""


def run(request: Request, observer: Observer) -> ExitCode:
    """Do the job, and let the observer hear of it.

    Raises Halt with the exit code and the words where it does not end well.
    """
    config = request.loaded.config
    _refuse_combinations(config)
    require_extras(config)
    layout, run_id = Layout(config.workdir, request.slice), secrets.token_hex(8)
    try:
        layout.workdir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise config_error(
            f"the workdir {layout.workdir} cannot be made: {error.strerror}", remedy="check the key workdir"
        ) from None
    with ExitStack() as stack:
        previous = stack.enter_context(hold_workdir(layout, run_id))
        journal = Journal(layout.events, run_id)
        stack.callback(journal.close)
        invocation = open_invocation(layout)
        observers = Observers([*standing_observers(config, layout, invocation, run_id), observer])
        # Before the observers are closed and after: a signal meanwhile must not end us with half a report.
        signals = stack.enter_context(Signals().listen())
        stack.callback(observers.close)

        def emit(event: str, **details: Any) -> None:
            journal.write(event, **details)
            observers.event(event, details)

        # What a worker has started, and has put out of its own group, ends with the run as well.
        stack.callback(end_orphans, [run_id])
        emit(
            "invoked",
            invocation=invocation.name if invocation else "",
            workdir=str(layout.workdir),
            slice=str(layout.slice or ""),
            pid=os.getpid(),
        )
        try:
            if ended := end_orphans(previous):
                emit("orphans_ended", count=len(ended), pids=ended)
            if request.from_scratch:
                _discard(config, layout)
            code = _run(request, layout, run_id, signals, emit, observers.tick)
        except Halt as halt:
            emit("halted", **halt.details())
            raise
        except OSError as error:
            if error.errno not in DISK_ERRNOS | _LIMIT_ERRNOS:
                raise
            halt_now = limit_halt(error) if error.errno in _LIMIT_ERRNOS else disk_halt(error, layout.workdir)
            emit("halted", **halt_now.details())
            raise halt_now from error
        except Exception as error:
            # Whoever reads the folder is to see that it was a bug; the traceback goes the way of every bug.
            with contextlib.suppress(Exception):
                emit("halted", code=int(ExitCode.BUG), what=f"a bug: {type(error).__name__}: {error}")
            raise
        emit("run_ended", code=int(code))
        return code


def _discard(config: Config, layout: Layout) -> None:
    """Remove state and final files of the config's outputs."""
    for name in config.outputs:
        output = layout.output(name)
        if output.state.exists():  # a final file that no run of this workdir made is not ours to remove
            # Final files go first: a state folder without them is only work to be done again.
            discard_final(output, config.outputs[name].shards)
            shutil.rmtree(output.state)
    layout.model.unlink(missing_ok=True)


def _run(
    request: Request, layout: Layout, run_id: str, signals: Signals, emit: Emit, tick: Callable[[], None]
) -> ExitCode:
    config = request.loaded.config
    on_ray = config.engine.kind is EngineKind.RAY
    devices = cluster_devices(config) if on_ray else find_devices(config.device)
    emit(
        "run_started",
        run=run_id,
        workdir=str(layout.workdir),
        device=", ".join(map(str, devices)),
        gpus=[device.uuid for device in devices],
        engine=str(config.engine.kind),
        model=config.model.name,
        outputs=list(config.outputs),
        slice=str(request.slice or ""),
    )
    budget = Budget(config.recovery.attempts, config.recovery.min_batch_size, config.recovery.wait_timeout)

    def on_wait() -> None:
        tick()
        if signals.draining:
            raise stopped(signals)

    def pause(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            signals.sleep(min(left, _PAUSE_S), [])
            on_wait()

    def take_turn() -> AbstractContextManager[None]:
        return turn(layout, pause, lambda who: emit("waiting_for_turn", who=who))

    def open_outputs(of_slice: Slice | None) -> tuple[ModelSource, list[OutputRun]]:
        source = _resolve_model(config, layout, budget, pause, emit, on_wait)
        opening = Opening(request.loaded, source, devices[0].kind, run_id, request.max_rows, of_slice, emit, on_wait)
        outputs: list[OutputRun] = []
        for name in config.outputs:
            opened = open_output(opening, layout.output(name))
            if isinstance(opened, OutputRun):
                outputs.append(opened)
            else:
                emit(
                    "output_already_complete",
                    output=name,
                    rows=opened["rows"],
                    dimension=opened["dimension"],
                    path=str(place_of(layout.output(name), config.outputs[name].shards)),
                )
        return source, outputs

    def work(source: ModelSource, outputs: list[OutputRun]) -> None:
        settings = Settings(
            per_device=config.workers.per_device,
            standby=config.workers.standby,
            budget=budget,
            bad_rows=BadRows(config.recovery.on_bad_row is OnBadRow.FAIL, config.recovery.max_bad_rows),
            patience=Patience(config.recovery.startup_timeout, config.recovery.stall_timeout),
        )
        book = _open_book(layout, config, source, devices, outputs, emit)
        engine: Engine
        if on_ray:
            engine = ray_engine(config, layout, outputs, run_id, emit)
        else:
            starter = _starter(request, layout, outputs, devices[0], run_id, emit)
            engine = LocalEngine(LocalSettings(devices, run_id, config.env, request.command), starter)
        given_up = Runner(outputs, settings, book, engine, signals, emit, tick).run()
        if signals.draining:
            raise stopped(signals)
        if given_up:
            raise gave_up(given_up)

    with take_turn():
        source, outputs = open_outputs(request.slice)
    work(source, outputs)
    if request.slice is not None:
        # The last slice finds all chunks committed, and then does what a run of the whole would do.
        with take_turn():
            done, chunks = progress_of(layout, config.outputs)
            if done == chunks:
                work(*open_outputs(None))
        if done < chunks:
            return end_slice(layout, outputs, done, chunks, emit)
    quarantined = {name: read_quarantined(layout.output(name)) or [] for name in config.outputs}
    if any(quarantined.values()):
        raise with_bad_rows(layout, quarantined)
    return ExitCode.COMPLETE


def _starter(
    request: Request, layout: Layout, outputs: Sequence[OutputRun], device: Device, run_id: str, emit: Emit
) -> Starter:
    config = request.loaded.config

    def make_template() -> Template:
        job = outputs[0].job  # all outputs have the same model
        shutil.rmtree(layout.template, ignore_errors=True)
        layout.template.mkdir(mode=0o700)
        environment = worker_environment(os.environ, device, run_id, os.getpid(), config.env, threads=job.threads)
        spec = TemplateSpec(job.model, device.kind, job.import_path)
        return Template(AttemptFiles(layout.template), spec, environment, config.recovery.startup_timeout)

    # A command line of somebody else's can only be started afresh.
    start = config.workers.start if request.command is worker_command else Start.FRESH
    return Starter(start, make_template, emit)


def _open_book(
    layout: Layout,
    config: Config,
    source: ModelSource,
    devices: Sequence[Device],
    outputs: Sequence[OutputRun],
    emit: Emit,
) -> LessonBook:
    model = config.model
    kinds = ",".join(sorted({device.name or device.kind for device in devices}))
    key = f"{kinds}|{source.revision or model.name}|{model.dtype}|{model.encoder}"
    rows = max((output.limits.rows for output in outputs), default=1)
    tokens = max((output.limits.tokens or 0 for output in outputs), default=0)

    def on_change(tier: Tier, doubted: bool) -> None:
        of_length = f" of {tier.min_length:,} tokens and more" if tier.min_length else ""
        emit("limits_widened" if doubted else "limits_lowered", of_length=of_length, **asdict(tier))

    return LessonBook(layout.lessons, key, Limits(rows, tokens or None), on_change)


def _resolve_model(
    config: Config,
    layout: Layout,
    budget: Budget,
    pause: Callable[[float], None],
    emit: Emit,
    on_wait: Callable[[], None],
) -> ModelSource:
    model = config.model
    if model.is_plugin:
        return ModelSource(None, model.revision)
    try:
        if Path(model.name).is_dir():
            emit("checking_model", model=model.name)
            return resolve_local(model, layout.model, on_wait)
    except OSError as error:
        raise config_error(f"the model folder {model.name} cannot be read: {error}") from None
    if model.name.startswith(("/", "./", "../", "~")):
        raise config_error(f"there is no model folder {model.name}", remedy="check model.name")
    emit("resolving", model=model.name)

    def wait(seconds: float, why: str) -> None:
        emit("waiting", delay_s=seconds, outcome="hub", reason=why)
        pause(seconds)

    return resolve_hub(model, layout.model, layout.fetch, budget, wait, on_wait)


def _refuse_combinations(config: Config) -> None:
    if not config.model.is_plugin:
        return
    for name in config.outputs:
        encode = config.effective_encode(name)
        if encode.prompt_name is not None:
            raise config_error(
                f"output {name}: encode.prompt_name names a prompt of the model; a plug-in has none",
                remedy="write the prompt itself: encode.prompt",
            )
        if isinstance(encode.batch_tokens, int):
            raise config_error(
                f"output {name}: encode.batch_tokens cannot hold for a plug-in encoder, whose tokens nobody can count",
                remedy="use encode.batch_size",
            )
