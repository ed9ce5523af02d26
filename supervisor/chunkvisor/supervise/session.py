"""One invocation of `chunkvisor run`: holds the workdir, reports, and ends with an exit code.

It is imported before the model begins to load. What a run needs besides, above all numpy, is
imported while the model loads.
"""

import secrets
from contextlib import ExitStack, closing, suppress
from importlib.util import find_spec

from chunkvisor.config.choices import EngineKind, FinalFormat
from chunkvisor.config.model import Config
from chunkvisor.core.run import Run, Signals
from chunkvisor.engine.process import end_orphans
from chunkvisor.errors import KEPT, ExitCode, Halt, config_error
from chunkvisor.events.event import Emit, Event, Halted, Invoked, Note, RunEnded
from chunkvisor.events.journal import Journal
from chunkvisor.messages import Troubles
from chunkvisor.show.invocation import observers_of_run, open_invocation
from chunkvisor.show.lines import Observer, Observers
from chunkvisor.show.notices import sender_to
from chunkvisor.store.disk import check_target, halt_for, memory_halt
from chunkvisor.store.layout import Layout, anything_kept, claim, workdir_gone
from chunkvisor.supervise.resources import Request, RunResources
from chunkvisor.units import counted
from chunkvisor_worker.contract.secrets import masked_values


def run(request: Request, observer: Observer) -> ExitCode:
    """Run what the request asks for, and have the observer show it.

    Raises Halt, with exit code and message, if it does not end well.
    """
    config = request.loaded.config
    layout = Layout(config.workdir)
    run_id = secrets.token_hex(8)
    require_extras(config)
    troubles = Troubles()
    emit: Emit | None = None
    with ExitStack() as stack:
        try:
            names = [*config.outputs, *config.combine]
            # From here on no other run can touch the workdir. Workers that an earlier one has left
            # are ended below.
            previous = stack.enter_context(claim(layout, names, run_id))
            journal = Journal(layout.events, run_id)
            stack.callback(journal.close)
            # An estimate from the first minute on, before this run has measured anything.
            last = journal.state.last_commit
            speed = last.texts_per_s if last is not None else None
            invocation = open_invocation(layout)
            observers = Observers(observer, guarded=observers_of_run(config, layout, invocation))
            # Signals are caught until the observers are closed: none can cut a report in half.
            signals = Signals(config.recovery.grace, request.stop_after_s, drains=request.keeps)
            stack.enter_context(signals.listen())
            stack.callback(observers.close)

            def report(event: Event, /) -> None:
                event = type(event)(**masked_values(event.details()))
                troubles.observe(event)
                journal.write(event)
                observers.event(event)

            emit = report
            # At the end: what workers have started in other process groups is ended as well.
            stack.callback(end_orphans, layout.hidden, run_id)
            observers.watch(journal.state)
            emit(Invoked(str(layout.workdir), request.typed))
            if previous and previous.has_ended:
                orphans = end_orphans(layout.hidden, previous.run_id)
                if orphans:
                    ended = counted(len(orphans), "worker")
                    emit(Note(f"ended {ended} left behind by an earlier run"))
            this = Run(layout, run_id, signals, emit, observers.tick, speed)
            with closing(RunResources(request, this)) as resources:
                source = resources.source()
                from chunkvisor.supervise.work import work  # next to the model, which loads by now

                work(resources, source)
            emit(RunEnded(int(ExitCode.COMPLETE)))
        except Exception as error:
            halt = _report_end(error, layout, troubles, emit)
            if not halt or halt is error:
                raise
            raise halt from (None if isinstance(error, Halt) else error)
    return ExitCode.COMPLETE


def _report_end(
    error: Exception, layout: Layout, troubles: Troubles, emit: Emit | None
) -> Halt | None:
    """Report what ends the run, if it can report yet; return the Halt, or None for a bug."""
    # If the workdir is gone, this error only follows from that: a child found no folder, say.
    gone = workdir_gone(layout) if emit and isinstance(error, Halt | OSError) else None
    if isinstance(error, Halt):
        halt: Halt | None = gone or troubles.add_reasons_to(error)
    elif isinstance(error, OSError):
        halt = gone or halt_for(error, layout.workdir)
    else:
        halt = memory_halt() if isinstance(error, MemoryError) else None
    if not halt:
        # The journal says that it was a bug; the caller prints the traceback.
        with suppress(Exception):
            if emit:
                emit(Halted(int(ExitCode.BUG), f"a bug: {type(error).__name__}: {error}"))
        return None
    if KEPT in halt.remedy and not anything_kept(layout):
        halt.remedy = halt.remedy.replace(KEPT, "")
    if emit:
        emit(Halted(**halt.details()))
    return halt


def require_extras(config: Config) -> None:
    """Raise Halt (78) if a key needs a package that is not installed, or its value cannot work."""
    textfile = config.metrics.textfile
    if textfile:
        if not textfile.parent.is_dir() or Layout(config.workdir).owns(textfile):
            raise config_error(
                f"metrics.textfile: there is no folder {textfile.parent}, or it belongs to the "
                "workdir's state",
                "Name a file in the folder that node_exporter reads "
                "(--collector.textfile.directory).",
            )
        check_target(textfile, "metrics.textfile", lambda head: b"# HELP chunkvisor_" in head)
    needed = [("engine.kind: ray", "ray", "ray")] if config.engine.kind is EngineKind.RAY else []
    for name, output in config.outputs.items():
        if output.format is FinalFormat.PARQUET:
            needed.append((f"outputs.{name}.format: {output.format}", "pyarrow", "parquet"))
    needed += [("notify", "apprise", "notify")] if config.notify else []
    for key, package, extra in needed:
        if not find_spec(package):
            raise config_error(
                f"the key {key} needs the package {package}, which is not installed",
                f"In the checkout of chunkvisor, run `pip install '.[{extra}]'`. Or remove the "
                "key.",
            )
    urls = [url.get_secret_value() for url in config.notify]
    wrong = sender_to(urls)[1] if urls else []
    if wrong:
        raise config_error(
            f"{', '.join(f'notify[{number}]' for number in wrong)}: apprise does not understand "
            "this address",
            "Look up its form in apprise's list of services, and test it: apprise -b test ADDRESS",
        )
