"""Turns the verdict on an attempt, and the history around it, into the next step.

Pure. The table at the end of the module is the whole policy.
"""

from collections.abc import Callable

from chunkvisor.decide.history import Budget, Company, History
from chunkvisor.decide.lessons import smaller
from chunkvisor.decide.steps import Commit, EndRun, Isolate, Quarantine, Retry, SetAside, Split, StartAgain, Step, Wait
from chunkvisor.decide.verdict import Verdict
from chunkvisor.errors import ExitCode
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Phase
from chunkvisor_worker.contract.rule import LOAD

BACKOFF_S = 0.5
"""Pause before the second try; it doubles with each further one."""

BACKOFF_MAX_S = 60.0

MEMORY_BACKOFFS = 64
"""So many times longer is the pause before a text is tried alone again that ran out of the host's memory."""

SEEN_TWICE = 2
"""A fault that a text can cause is taken for its doing when it comes back."""

FRUITLESS_ATTEMPTS = 20
"""So many failed attempts in a row, whatever they were at, end the run: it is not the texts."""

LOST_MACHINES = 10
"""A chunk under which so many machines were lost is given up: it may be what kills them."""

BARREN_CHUNKS = 3
"""So many chunks given up in a row, without a commit between them, are no fault of the chunks: the run stops."""


def decide(verdict: Verdict, history: History, budget: Budget) -> Step:
    """The next step; total: every verdict has one."""
    if verdict.before_first_batch and verdict.outcome in _START_CODES:
        return _start_again(verdict, history, budget)
    if verdict.other_dimension and history.other_dimension + 1 >= FRUITLESS_ATTEMPTS:
        return EndRun(ExitCode.CONFIG)  # no text has the old dimension any more: the model or the first chunk is wrong
    step = _ANSWERS[verdict.outcome](verdict, history, budget)
    if isinstance(step, SetAside) and history.barren_chunks + 1 >= BARREN_CHUNKS:
        return EndRun(ExitCode.TRY_AGAIN)
    if is_fruitless(step, verdict, history.texts) and history.fruitless + 1 >= FRUITLESS_ATTEMPTS:
        return EndRun(ExitCode.TRY_AGAIN)
    return step


def is_fruitless(step: Step, verdict: Verdict, texts: int) -> bool:
    """Whether the attempt, at so many texts, brought the run no further.

    A batch or a range of texts that gets smaller ends by itself, the second look at a text alone by a verdict on it,
    and a wait by time.
    """
    second_look = texts == 1 and verdict.row_can_cause
    repeated = isinstance(step, SetAside) or (isinstance(step, Retry) and step.charged and not second_look)
    return repeated and not verdict.blameless


def backoff_s(tries: int) -> float:
    """Pause after the given number of failures, seconds."""
    return float(min(BACKOFF_MAX_S, BACKOFF_S * 2 ** max(0, tries - 1)))


def _commit(_verdict: Verdict, _history: History, _budget: Budget) -> Step:
    return Commit()


def _retry(verdict: Verdict, history: History, budget: Budget) -> Step:
    if verdict.row_can_cause:
        return _suspect_rows(verdict, history, budget)
    tries = history.tries.get(verdict.outcome, 0) + 1
    if tries >= budget.attempts:
        # A fault that names the run's exit code is not the chunk's.
        return EndRun(ExitCode(verdict.exit_code)) if verdict.exit_code else SetAside()
    return Retry(backoff_s(tries), blocking_launches=verdict.outcome is Outcome.DEVICE_FAULT)


def _suspect_rows(verdict: Verdict, history: History, budget: Budget) -> Step:
    """The answer to a fault that a text can cause."""
    tries = history.tries.get(verdict.outcome, 0) + 1
    certain = verdict.outcome is Outcome.BAD_INPUT or bool(verdict.bad_rows)
    # A hang may always have been the machine's, even where the config wants one try.
    looks = SEEN_TWICE if verdict.outcome is Outcome.HUNG else min(SEEN_TWICE, budget.attempts)
    if history.texts == 1 and verdict.outcome is Outcome.HOST_OOM:
        # The machine runs out of memory for many reasons that pass. Some of the tries may have been workers that could
        # not even be started, so that two more, with time between them, have to show that it is the text.
        return Quarantine() if tries >= budget.attempts + SEEN_TWICE else Retry(MEMORY_BACKOFFS * BACKOFF_S)
    if history.texts == 1:
        # What may have been chance is looked at twice before a row is lost to it.
        return Quarantine() if certain or tries >= looks else Retry()
    if verdict.bad_rows and len(verdict.bad_rows) == history.texts and tries < SEEN_TWICE:
        return Retry(backoff_s(tries))  # not one good row: hardly the doing of each of them
    if verdict.bad_rows:
        return Split(verdict.bad_rows)
    # One by one, the one that ends its worker is known; more than once that helps only if there are fewer each time.
    if 0 < history.under_way < history.texts or (history.under_way and not verdict.one_by_one):
        return (
            Isolate()
            if certain or history.taken_apart or tries >= looks
            else Retry(backoff_s(tries), blocking_launches=verdict.outcome is Outcome.DEVICE_FAULT)
        )
    if certain or history.taken_apart or tries >= max(looks, budget.attempts):
        return Split()
    if verdict.outcome is Outcome.HUNG and tries >= looks:
        return Split()  # each further try costs a whole stall_timeout
    if tries >= SEEN_TWICE:
        tier = smaller(verdict, budget.min_batch_size) if verdict.smaller_batch_helps else None
        # For this try alone: one bad row must not make the batches of a whole night smaller.
        return Split() if tier is None else Retry(backoff_s(tries), tier, lesson=False)
    return Retry(backoff_s(tries), blocking_launches=verdict.outcome is Outcome.DEVICE_FAULT)


def _start_again(verdict: Verdict, history: History, budget: Budget) -> Step:
    """The answer to a fault before the first batch: no text can be the cause, so none is charged."""
    starts = history.failed_starts + 1
    certain = verdict.outcome is Outcome.SETUP and not history.worked_before
    # What worked a minute ago is not set up wrongly: something passing happened to it, and it is waited out.
    passing = history.worked_before and history.failing_s < budget.wait_timeout_s
    if certain or (starts >= budget.attempts and not passing):
        default = _START_CODES[verdict.outcome]
        if default is None:
            default = ExitCode.CONFIG if verdict.phase in LOAD else ExitCode.MACHINE
        return EndRun(ExitCode(verdict.exit_code or default))
    return StartAgain(backoff_s(starts))


_START_CODES: dict[Outcome, ExitCode | None] = {
    Outcome.SETUP: ExitCode.CONFIG,
    Outcome.DEVICE_FAULT: ExitCode.MACHINE,
    Outcome.GPU_OOM: ExitCode.MACHINE,
    Outcome.HOST_OOM: ExitCode.MACHINE,
    Outcome.HUNG: ExitCode.MACHINE,
    Outcome.CRASHED: None,
    Outcome.BAD_OUTPUT: None,
    Outcome.BAD_INPUT: None,
}
"""With which code the run ends if such a fault before the first batch comes back; None = the phase decides: what fails
while the model or the plug-in is loaded is theirs, what fails on the device is the machine's."""


def _shrink(verdict: Verdict, history: History, budget: Budget) -> Step:
    # Before the first batch none can have been too large; while texts are tokenised none has begun.
    of_batches = verdict.smaller_batch_helps and verdict.phase is not Phase.TOKENIZE
    tier = smaller(verdict, budget.min_batch_size) if of_batches else None
    if verdict.outcome is Outcome.GPU_OOM and history.waited_s < budget.wait_timeout_s:
        may_be_others = tier is None or verdict.fitted_before
        if history.company is Company.CAME or (history.company is Company.BLIND and may_be_others):
            return Wait(_pause_s(history, budget))
    if tier is None:
        return _retry(verdict, history, budget)
    return Retry(tier=tier, charged=False)


def _lost(_verdict: Verdict, history: History, _budget: Budget) -> Step:
    # At once and as often as it takes: `charged` counts for this outcome alone, no try for another cause is spent.
    return Retry() if history.tries.get(Outcome.LOST, 0) + 1 < LOST_MACHINES else SetAside()


def _interrupted(verdict: Verdict, history: History, budget: Budget) -> Step:
    return Retry(charged=False) if verdict.asked_for else _retry(verdict, history, budget)


def _hardware(verdict: Verdict, _history: History, _budget: Budget) -> Step:
    return EndRun(ExitCode(verdict.exit_code or ExitCode.MACHINE))


def _setup(verdict: Verdict, history: History, budget: Budget) -> Step:
    # What worked a minute ago is not set up wrongly: something passing happened to it.
    if history.worked_before and history.tries.get(verdict.outcome, 0) + 1 < budget.attempts:
        return _retry(verdict, history, budget)
    return EndRun(ExitCode(verdict.exit_code or ExitCode.CONFIG))


def _wait(default: ExitCode) -> Callable[[Verdict, History, Budget], Step]:
    def answer(verdict: Verdict, history: History, budget: Budget) -> Step:
        if _is_too_large(verdict, history):
            return EndRun(ExitCode.MACHINE, too_large=True)
        if history.waited_s >= budget.wait_timeout_s:
            return EndRun(ExitCode(verdict.exit_code or default))
        return Wait(_pause_s(history, budget))

    return answer


def _pause_s(history: History, budget: Budget) -> float:
    # A tenth more each time: seconds at first, a minute when it lasts, and never past the limit.
    pause_s = min(BACKOFF_MAX_S, 1 + max(history.spell_s, history.waited_s) / 10)
    return min(pause_s, max(0.1, budget.wait_timeout_s - history.waited_s))


def _is_too_large(verdict: Verdict, history: History) -> bool:
    """Whether the model did not fit on a GPU on which nobody else was."""
    if not verdict.weights_did_not_fit or history.company is Company.OURS:
        return False
    larger = verdict.figures is not None and verdict.figures.larger_than_gpu
    return larger or history.company is Company.ALONE


_ANSWERS: dict[Outcome, Callable[[Verdict, History, Budget], Step]] = {
    Outcome.COMMITTED: _commit,
    Outcome.GPU_OOM: _shrink,
    Outcome.HOST_OOM: _shrink,
    Outcome.DEVICE_FAULT: _retry,
    Outcome.CRASHED: _retry,
    Outcome.HUNG: _retry,
    Outcome.BAD_OUTPUT: _retry,
    Outcome.BAD_INPUT: _retry,
    Outcome.INTERRUPTED: _interrupted,
    Outcome.LOST: _lost,
    Outcome.SETUP: _setup,
    Outcome.HARDWARE_FAULT: _hardware,
    Outcome.GPU_BUSY: _wait(ExitCode.TRY_AGAIN),
    Outcome.HUB: _wait(ExitCode.TRY_AGAIN),
    Outcome.DISK_FULL: _wait(ExitCode.DISK),
}
