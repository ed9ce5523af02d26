"""From the verdict on an attempt, and what came before it, to the next step. Pure; `LIMITS` has every number.

Whose fault is it? An attempt in doubt begins with a canary: a batch of one text that is known to be good, or, while
none is, the shortest of its own. If any text got its vector before the end, the attempt is *proven*: device and model
could do it, so it is the texts that follow. If not even the canary did, it is the device or the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from chunkvisor.errors import ExitCode
from chunkvisor.heart.memory import STARTS, Lesson
from chunkvisor.judge import BACKOFF_S, Budget, Company, Verdict, backoff_s, pause_s
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Phase
from chunkvisor_worker.contract.rule import LOAD

LOOKS = 2
"""A fault that a text can cause is taken for its doing when it comes back."""

LIMITS = {"canary": 2, "first": 3, "given up": 3, "fruitless": 20, "lost": 10, "dimension": 20}
"""How often in a row: canaries that fail at a place (known good ones; while none is known, the shortest), chunks given
up, attempts that repeat what failed, machines lost under one work, attempts all of whose vectors have another dimension
than those before. `recovery.attempts` bounds the rest."""


MEMORY_PAUSE = 64
"""So many times longer is the pause before a text is tried alone again that ran out of the host's memory."""


class Scope(Enum):
    """At what every further worker would fail."""

    DEVICE = "device"
    NODE = "node"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Commit:
    """The vectors are good."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try the work again in a new process."""

    delay_s: float = 0.0
    charge: bool = True
    """Whether it counts against the work."""
    note: str = ""
    """What is counted against the place: "start" or "canary"; or what the work is to show next: "memory", whether its
    shortest text has enough, "lacking", that it has not."""
    lesson: Lesson | None = None
    """What batches on devices of this kind are to hold from now on, at most."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The world is not ready: pause, and charge nobody."""

    delay_s: float


class How(Enum):
    """Into which pieces."""

    BAD = "keep all but the bad rows, and try each of these alone"
    SUSPECTS = "the batches under way one by one, the others by themselves"
    HALVES = "halves"


@dataclass(frozen=True, slots=True)
class Split:
    """Take the texts apart. It needs no limit: pieces get smaller."""

    how: How


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The text gets no vector."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave the work to the next run."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Do without the place, or end the run."""

    code: ExitCode
    scope: Scope = Scope.RUN
    why: str = "halted"
    """See `messages.RunHalts`."""


Step = Commit | Retry | Wait | Split | Quarantine | GiveUp | Stop


@dataclass(frozen=True, slots=True)
class History:
    """What came before the verdict."""

    texts: int = 2
    """Of the attempt that are not done."""
    tries: int = 0
    """Charged failures of this work with this outcome."""
    canary: bool = False
    """Whether the attempt began with one."""
    proven: bool = False
    """Whether any text got its vector in it."""
    good: bool = False
    """Whether any text of the output ever did."""
    worked: bool = False
    """Whether this run has stored vectors of the output; for a failed start, whether a worker has encoded there."""
    part: bool = False
    """Whether the chunk is searched for texts that fail."""
    under_way: int = 0
    """Texts of the batches that had begun; 0 = not known."""
    one_by_one: bool = False
    """Whether each batch had one text."""
    company: Company = Company.UNTOLD
    waited_s: float = 0.0
    """How long this cause is waited for while nothing has succeeded anywhere."""
    spell_s: float = 0.0
    """The same, whatever has succeeded elsewhere."""
    starts: int = 0
    """Workers in a row that failed before their first batch at the place."""
    failing_s: float = 0.0
    """How long ago the first of them failed."""
    canaries: int = 0
    """Attempts in a row whose canary failed at the place."""
    given_up: int = 0
    """Chunks given up in a row."""
    fruitless: int = 0
    """Attempts in a row that repeated what failed."""
    own: bool = False
    """Whether its canary was the shortest of its own texts."""
    chosen: bool = False
    """Whether it was that to show if the GPU's memory suffices for it, though a good text may have been known."""
    sound: bool = False
    """Whether a worker has done all it was to do on the device, be it of another output."""
    fits: bool = False
    """Whether any text of the chunk got its vector in this run."""
    lacking: bool = False
    """Whether the shortest of its texts lacked the GPU's memory, too."""
    dimension: int = 0
    """Attempts in a row all of whose vectors had another dimension than those before."""


def decide(verdict: Verdict, history: History, budget: Budget) -> Step:
    """Choose the next step; every verdict has one."""
    if verdict.before_first_batch and verdict.outcome in STARTS:
        return _start_again(verdict, history, budget)
    if verdict.other_dimension and history.dimension + 1 >= LIMITS["dimension"]:
        return Stop(ExitCode.CONFIG)  # no text has the old dimension any more: the model or the first chunk is wrong
    step = _ANSWERS[verdict.outcome](verdict, history, budget)
    if isinstance(step, GiveUp) and history.given_up + 1 >= LIMITS["given up"]:
        return Stop(ExitCode.MACHINE if verdict.outcome is Outcome.GPU_OOM else ExitCode.TRY_AGAIN)
    if fruitless(step, verdict, history.texts) and history.fruitless + 1 >= LIMITS["fruitless"]:
        nothing = verdict.row_can_cause and not history.good
        return Stop(code_of_nothing(verdict), why="first") if nothing else Stop(ExitCode.TRY_AGAIN)
    return step


def fruitless(step: Step, verdict: Verdict, texts: int) -> bool:
    """Say whether the attempt brought the run no further.

    Texts that get fewer end by themselves, the second look at a text alone ends by a verdict on it, a wait by time,
    and what is noted of a place by its limit.
    """
    second_look = texts == 1 and verdict.row_can_cause
    again = isinstance(step, Retry) and step.charge and not second_look
    return (again or isinstance(step, GiveUp)) and not verdict.blameless


def code_of_nothing(verdict: Verdict) -> ExitCode:
    """Choose the code of a run in which no text was ever encoded.

    Another run would come to the same, unless others held the memory, or ended the workers.
    """
    if verdict.exit_code is not None:
        return ExitCode(verdict.exit_code)
    if verdict.refused_by_encoder:
        return ExitCode.CONFIG
    others = verdict.others_hold_memory or verdict.outcome is Outcome.INTERRUPTED
    return ExitCode.TRY_AGAIN if others else ExitCode.MACHINE


def _code_of_canary(verdict: Verdict) -> ExitCode:
    """Choose the code of a run in which a text fails that was encoded before."""
    if verdict.exit_code is not None:
        return ExitCode(verdict.exit_code)
    if verdict.outcome is Outcome.BAD_OUTPUT:
        return ExitCode.CONFIG
    on_device = verdict.outcome in (Outcome.DEVICE_FAULT, Outcome.HARDWARE_FAULT)
    return ExitCode.MACHINE if on_device else ExitCode.TRY_AGAIN


def _commit(_verdict: Verdict, _history: History, _budget: Budget) -> Step:
    return Commit()


def _retry(verdict: Verdict, history: History, budget: Budget) -> Step:
    if verdict.row_can_cause:
        return _blame(verdict, history, budget)
    tries = history.tries + 1
    if tries >= budget.attempts:
        # A fault that names the run's exit code is not the chunk's.
        return Stop(ExitCode(verdict.exit_code)) if verdict.exit_code else GiveUp()
    return Retry(backoff_s(tries))


def _blame(verdict: Verdict, history: History, budget: Budget) -> Step:
    """Answer a fault that a text can cause: it is the place's doing, or the texts'."""
    tries, refused = history.tries + 1, verdict.outcome is Outcome.BAD_INPUT
    proven = history.proven or refused
    # A hang may always have been the machine's, even where the config wants one try.
    looks = LOOKS if verdict.outcome is Outcome.HUNG else min(LOOKS, budget.attempts)
    certain = refused or (bool(verdict.bad_rows) and proven)
    if verdict.outcome is Outcome.GPU_OOM and history.texts > 1 and not history.fits:
        # If the shortest lacks memory too, while the device has it for others, no length is the cause.
        if history.lacking and proven:
            return GiveUp()
        if not history.own and not history.lacking:
            return Retry(charge=False, note="memory")
        # Its shortest text failed, which stands alone in its batch; in a larger one it had passed.
        if history.own and not proven and history.good and verdict.batch_rows <= 1:
            return Retry(charge=False, note="lacking")
    # If one of its own was chosen though a good text is known, its failure says nothing of the place: it may be bad.
    if not proven and history.canary and not (history.chosen and history.good):
        # One of its own that was begun with before any was known to be good may be bad as well: three of them tell.
        most = LIMITS["canary" if history.good and not history.own else "first"]
        if history.canaries + 1 < most:
            return Retry(backoff_s(history.canaries + 1), charge=False, note="canary")
        if history.good:
            return Stop(_code_of_canary(verdict), Scope.DEVICE, "canary")
        of_output = history.sound and verdict.outcome is Outcome.DEVICE_FAULT  # the device has worked for another one
        return Stop(ExitCode.TRY_AGAIN if of_output else code_of_nothing(verdict), Scope.DEVICE, "first")
    if history.texts == 1:
        if verdict.outcome is Outcome.HOST_OOM:
            # The machine runs out of memory for many reasons that pass: it gets more tries, and time between them.
            given_up = proven and tries >= budget.attempts + LOOKS
            return Quarantine() if given_up else Retry(MEMORY_PAUSE * BACKOFF_S, charge=proven)
        if proven and (certain or tries >= looks):
            return Quarantine()
        # Without a proof nothing is known of the text; the next try begins with a canary, which is counted.
        return Retry(charge=proven)
    if 0 < len(verdict.bad_rows) < history.texts:
        return Split(How.BAD)
    if certain or history.part or tries >= looks:
        # More than once, one by one helps only if there are fewer each time.
        known = 0 < history.under_way < history.texts or (history.under_way > 0 and not history.one_by_one)
        return Split(How.SUSPECTS if known else How.HALVES)
    return Retry(backoff_s(tries))


def _start_again(verdict: Verdict, history: History, budget: Budget) -> Step:
    """Answer a fault before the first batch: no text can be the cause."""
    starts = history.starts + 1
    # What has worked in this run is not set up wrongly: something passing happened to it.
    wrong = verdict.outcome is Outcome.SETUP and not history.worked
    passing = history.worked and history.failing_s < budget.wait_timeout_s
    if passing or (starts < budget.attempts and not wrong):
        return Retry(backoff_s(starts), charge=False, note="start")
    return _stop(verdict, ExitCode(verdict.exit_code or _start_code(verdict)))


def _start_code(verdict: Verdict) -> ExitCode:
    """Choose the code of a run in which no worker starts."""
    if verdict.outcome is Outcome.SETUP:
        return ExitCode.CONFIG
    if verdict.outcome in (Outcome.CRASHED, Outcome.BAD_OUTPUT, Outcome.BAD_INPUT) and verdict.phase in LOAD:
        return ExitCode.CONFIG  # what fails while the model or the plug-in is loaded is theirs
    return ExitCode.MACHINE


def _stop(verdict: Verdict, code: ExitCode, why: str = "halted") -> Stop:
    """End a device or a machine where it may be the matter of one alone, else the run."""
    load = verdict.before_first_batch and code is ExitCode.CONFIG
    if code is ExitCode.DISK or verdict.outcome is Outcome.SETUP or load:
        return Stop(code, Scope.NODE, why)
    device = code is ExitCode.MACHINE or verdict.outcome is Outcome.GPU_BUSY
    return Stop(code, Scope.DEVICE if device else Scope.RUN, why)


def _shrink(verdict: Verdict, history: History, budget: Budget) -> Step:
    # While texts are tokenised no batch has begun.
    of_batches = verdict.smaller_batch_helps and verdict.phase is not Phase.TOKENIZE
    smaller = _half(verdict, budget.min_batch_size) if of_batches else None
    if verdict.outcome is Outcome.GPU_OOM and history.waited_s < budget.wait_timeout_s:
        may_be_others = smaller is None or verdict.fitted_before
        if history.company is Company.CAME or (history.company is Company.BLIND and may_be_others):
            return Wait(_pause_s(history, budget))
    if smaller is None:
        return _retry(verdict, history, budget)
    return Retry(charge=False, lesson=smaller)


def _half(verdict: Verdict, min_rows: int) -> Lesson | None:
    """Halve the batch that did not fit, in tokens where these are known: then short texts keep their batches.

    None where it was as small as is allowed.
    """
    rows, limits = verdict.batch_rows or verdict.limits.rows, verdict.limits
    if rows <= min_rows:
        return None
    if verdict.batch_tokens:
        longest = verdict.batch_tokens // rows
        return Lesson(limits.rows, max(longest * min_rows, verdict.batch_tokens // 2))
    return Lesson(max(min_rows, min(rows, limits.rows) // 2), limits.tokens and max(1, limits.tokens // 2))


def _lost(_verdict: Verdict, history: History, _budget: Budget) -> Step:
    # `tries` counts for this outcome alone: no try for another cause is spent.
    return Retry() if history.tries + 1 < LIMITS["lost"] else GiveUp()


def _interrupted(verdict: Verdict, history: History, budget: Budget) -> Step:
    return Retry(charge=False) if verdict.asked_for else _retry(verdict, history, budget)


def _hardware(verdict: Verdict, _history: History, _budget: Budget) -> Step:
    return _stop(verdict, ExitCode(verdict.exit_code or ExitCode.MACHINE))


def _setup(verdict: Verdict, history: History, budget: Budget) -> Step:
    if history.worked and history.tries + 1 < budget.attempts:
        return _retry(verdict, history, budget)
    return _stop(verdict, ExitCode(verdict.exit_code or ExitCode.CONFIG))


def _wait(default: ExitCode) -> Callable[[Verdict, History, Budget], Step]:
    def answer(verdict: Verdict, history: History, budget: Budget) -> Step:
        larger = verdict.figures is not None and verdict.figures.larger_than_gpu
        alone = history.company is Company.ALONE or (larger and history.company is not Company.OURS)
        if verdict.weights_did_not_fit and alone:
            return _stop(verdict, ExitCode.MACHINE, "too large")
        if history.waited_s >= budget.wait_timeout_s:
            return _stop(verdict, ExitCode(verdict.exit_code or default))
        return Wait(_pause_s(history, budget))

    return answer


def _pause_s(history: History, budget: Budget) -> float:
    return pause_s(max(history.spell_s, history.waited_s), budget.wait_timeout_s)


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
