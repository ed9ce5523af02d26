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
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chunkvisor.aftermath import GivenUp
from chunkvisor.config import Config, EngineKind, OnBadRow, Start
from chunkvisor.configfile import LoadedConfig
from chunkvisor.diskneed import DISK_ERRNOS
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
from chunkvisor.lastwords import BadRows, last_remedy
from chunkvisor.layout import Layout
from chunkvisor.lessonbook import LessonBook
from chunkvisor.lock import hold
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


def run(request: Request, observer: Observer) -> ExitCode:
    """Do the job, and let the observer hear of it.

    Raises Halt with the exit code and the words where it does not end well.
    """
    config = request.loaded.config
    _refuse_combinations(config)
    require_extras(config)
    layout, run_id = Layout(config.workdir), secrets.token_hex(8)
    try:
        layout.workdir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise config_error(
            f"the workdir {layout.workdir} cannot be made: {error.strerror}", remedy="check the key workdir"
        ) from None
    with ExitStack() as stack:
        previous = stack.enter_context(hold(layout.lock, run_id))
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
        stack.callback(end_orphans, run_id)
        emit("invoked", invocation=invocation.name if invocation else "", workdir=str(layout.workdir), pid=os.getpid())
        try:
            if previous is not None and (ended := end_orphans(previous.run_id)):
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
            halt_now = _limit_halt(error) if error.errno in _LIMIT_ERRNOS else _disk_halt(error, layout.workdir)
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
    )
    budget = Budget(config.recovery.attempts, config.recovery.min_batch_size, config.recovery.wait_timeout)

    def on_wait() -> None:
        tick()
        if signals.draining:
            raise stopped(signals)

    source = _resolve_model(config, layout, budget, signals, emit, on_wait)
    opening = Opening(request.loaded, source, devices[0].kind, run_id, request.max_rows, emit, on_wait)
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
        raise _gave_up(given_up)
    quarantined = {name: read_quarantined(layout.output(name)) or [] for name in config.outputs}
    if any(quarantined.values()):
        raise _quarantined(layout, quarantined)
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
    config: Config, layout: Layout, budget: Budget, signals: Signals, emit: Emit, on_wait: Callable[[], None]
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

    def pause(seconds: float, why: str) -> None:
        emit("waiting", delay_s=seconds, outcome="hub", reason=why)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            signals.sleep(min(left, _PAUSE_S), [])
            on_wait()

    return resolve_hub(model, layout.model, layout.fetch, budget, pause, on_wait)


def stopped(signals: Signals) -> Halt:
    """The end of a run that was asked to stop."""
    assert signals.first is not None
    code = ExitCode.INTERRUPTED if signals.first.name == "SIGINT" else ExitCode.TERMINATED
    return Halt(code, f"stopped by {signals.first.name}", remedy="run the same command again to go on; nothing is lost")


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


def _quarantined(layout: Layout, quarantined: dict[str, list[dict[str, Any]]]) -> Halt:
    rows = [f"{name} row {each['row']} ({each['place']})" for name, found in quarantined.items() for each in found]
    more = f" and {len(rows) - 10} more" if len(rows) > 10 else ""
    first = next(each for found in quarantined.values() for each in found)
    return Halt(
        ExitCode.QUARANTINED,
        f"finished, but {len(rows)} row{'s' * (len(rows) != 1)} could not be encoded and are NaN: "
        + ", ".join(rows[:10])
        + more,
        why=f"{first['outcome']}: {first['reason']}",
        remedy=f"the manifests list them; after a mend: chunkvisor retry {layout.workdir}, then run again; "
        "a mended source needs --from-scratch instead",
    )


def _limit_halt(error: OSError) -> Halt:
    return Halt(
        ExitCode.MACHINE,
        "the supervisor itself has met a limit of this machine",
        why=str(error),
        remedy="raise the limits of open files and processes (ulimit -n, ulimit -u; `chunkvisor doctor` shows them); "
        "then run the same command again; what is done stays done",
    )


def _disk_halt(error: OSError, workdir: Path) -> Halt:
    return Halt(
        ExitCode.DISK,
        f"the disk of {workdir} is full or failing",
        why=str(error),
        remedy="free some space, or move the workdir; then run the same command again; what is done stays done",
    )


def _gave_up(given_up: Sequence[GivenUp]) -> Halt:
    chunks = list(dict.fromkeys(f"{each.output} chunk {each.chunk}" for each in given_up))  # each may be in parts
    names = ", ".join(chunks[:10])
    more = f" and {len(chunks) - 10} more" if len(chunks) > 10 else ""
    last = given_up[-1]
    return Halt(
        ExitCode.TRY_AGAIN,
        f"not complete: {names}{more} failed in every try; everything else is done",
        why=f"{last.verdict.outcome}: {last.verdict.reason}",
        remedy=f"{last_remedy(last.verdict)} Then run the same command again.",
        log=last.files.log,
    )
