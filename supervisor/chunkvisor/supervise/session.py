"""One invocation of `chunkvisor run`: holds the workdir, lets the observers hear of it, and ends with its exit code.

The work itself is done by `work`.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack

from chunkvisor.engine.process import end_orphans
from chunkvisor.errors import KEPT, ExitCode, Halt
from chunkvisor.events.event import Emit, Event
from chunkvisor.events.journal import Journal, speed_of_trials
from chunkvisor.events.run import Halted, Invoked, OrphansEnded, RunEnded
from chunkvisor.heart.signals import Signals
from chunkvisor.show.observer import Observer, Observers, observers_of_run
from chunkvisor.show.record import open_invocation
from chunkvisor.store.disk import memory_halt, refusal, workdir_gone
from chunkvisor.store.layout import Layout
from chunkvisor.store.leftovers import anything_kept
from chunkvisor.store.lock import hold
from chunkvisor.store.mark import claim
from chunkvisor.supervise.extras import require_extras
from chunkvisor.supervise.means import Means
from chunkvisor.supervise.request import Request, Run
from chunkvisor.words import Troubles


def run(request: Request, observer: Observer) -> ExitCode:
    """Do the job, and let the observer hear of it.

    Raises Halt with the exit code and the words where it does not end well.
    """
    config = request.loaded.config
    require_extras(config)
    layout, run_id = Layout(config.workdir), secrets.token_hex(8)
    with ExitStack() as stack:
        stack.enter_context(_refusals_in_words(layout))
        claim(layout, [*config.outputs, *config.combine])
        previous = stack.enter_context(hold(layout.lock, run_id))
        journal = Journal(layout.events, run_id)
        stack.callback(journal.close)
        speed = journal.state.texts_per_s or speed_of_trials(layout.workdir, layout.events)
        invocation = open_invocation(layout)
        observers = Observers(observer, guarded=observers_of_run(config, layout, invocation, run_id))
        # Before the observers are closed and after: a signal meanwhile must not end us with half a report.
        signals = Signals(config.recovery.grace, request.stop_after_s, drains=request.keeps)
        stack.enter_context(signals.listen())
        stack.callback(observers.close)
        troubles = Troubles()

        def emit(event: Event, /) -> None:
            troubles.heed(event, time.monotonic())
            journal.write(event)
            observers.event(event, journal.state)

        # What a worker has started, and has put out of its own group, ends with the run as well.
        stack.callback(end_orphans, run_id)
        emit(
            Invoked(
                workdir=str(layout.workdir),
                invocation=invocation.name if invocation else "",
                pid=os.getpid(),
                command=request.typed,
            )
        )
        with _failures_told(emit, layout, troubles):
            if previous is not None and previous.over and (ended := end_orphans(previous.run_id)):
                emit(OrphansEnded(len(ended), tuple(ended)))
            code = _work(request, Run(layout, run_id, signals, emit, observers.tick, speed))
        emit(RunEnded(int(code)))
        return code


def _work(request: Request, run: Run) -> ExitCode:
    with Means(request, run) as means:
        means.begin()
        from chunkvisor.supervise.work import Work  # beside the model, which loads by now

        return Work(request, run, means).do()


@contextlib.contextmanager
def _failures_told(emit: Emit, layout: Layout, troubles: Troubles) -> Iterator[None]:
    """Tell of whatever ends the run; what the machine refuses to the supervisor itself becomes a Halt."""
    try:
        yield
    except Halt as halt:
        # Whatever ended the run then, a child that found no folder, say, this is why.
        told = workdir_gone(layout) or _only_if_kept(troubles.added_to(halt, time.monotonic()), layout)
        emit(Halted(**told.details()))
        if told is halt:
            raise
        raise told from None
    except OSError as error:
        halt_now = workdir_gone(layout) or refusal(error, layout.workdir)
        if halt_now is None:
            _tell_bug(emit, error)
            raise
        emit(Halted(**_only_if_kept(halt_now, layout).details()))
        raise halt_now from error
    except MemoryError as error:
        halt_now = _only_if_kept(memory_halt(), layout)
        emit(Halted(**halt_now.details()))
        raise halt_now from error
    except Exception as error:
        _tell_bug(emit, error)
        raise


def _tell_bug(emit: Emit, error: Exception) -> None:
    # Whoever reads the folder is to see that it was a bug; the traceback goes the way of every bug.
    with contextlib.suppress(Exception):
        emit(Halted(int(ExitCode.BUG), f"a bug: {type(error).__name__}: {error}"))


@contextlib.contextmanager
def _refusals_in_words(layout: Layout) -> Iterator[None]:
    """What the machine refuses before anything can be told, or after: a workdir of somebody else's, say."""
    try:
        yield
    except OSError as error:
        if (halt := refusal(error, layout.workdir)) is None:
            raise
        raise _only_if_kept(halt, layout) from error


def _only_if_kept(halt: Halt, layout: Layout) -> Halt:
    """The Halt; without a word of finished work where there is none."""
    if KEPT in halt.remedy and not anything_kept(layout):
        halt.remedy = halt.remedy.replace(KEPT, "")
    return halt
