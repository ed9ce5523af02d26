"""From the verdict on an attempt, and what is remembered of those before, to the next step. Pure.

Whose fault is it? An attempt in doubt begins with a canary: a batch of one text that is known to be
good, or, while none is, the shortest of its own. If any text got its vector before the end, the
attempt is *proven*: device and model could do it, so it is the texts that follow. If not even the
canary did, it is the device or the model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from chunkvisor.config.model import RecoveryConfig
from chunkvisor.errors import ExitCode, StopReason
from chunkvisor.judge import BACKOFF_S, OtherProcesses, Verdict, backoff_s, pause_s
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Limits, Phase
from chunkvisor_worker.contract.rules import ENCODER_BROKEN, LOAD

LOOKS = 2  # a fault that a text can cause is taken for its doing when it comes back
# so many times longer is the pause before a text alone is tried again that lacked host memory
MEMORY_PAUSE = 64

MOST_CANARIES = 2  # canaries that fail in a row at a place, known good ones
MOST_OWN_CANARIES = 3  # the same, while no text is known to be good
MOST_GIVEN_UP = 3  # chunks given up in a row
MOST_WITHOUT_PROGRESS = 20  # attempts in a row that repeat what failed
MOST_LOST = 10  # machines lost under one task
# shortest texts of a chunk that lack the GPU's memory, each alone in its batch
MOST_OOM_SINGLETONS = 3


# What, before the first batch, is a start that failed: no text can be the cause.
_STARTS = (
    *(Outcome.SETUP, Outcome.DEVICE_FAULT, Outcome.GPU_OOM, Outcome.HOST_OOM, Outcome.HUNG),
    *(Outcome.CRASHED, Outcome.BAD_OUTPUT, Outcome.BAD_INPUT),
)


@frozen
class KnownText:
    """A canary that has its vector already."""

    text: int


@frozen
class OwnText:
    """A canary out of the texts of the attempt, while no text is known to be good."""

    rank: int
    """0 = the shortest of them, 1 = the second shortest, and so on."""


Canary = KnownText | OwnText
"""The text that is encoded first, in a batch by itself, where it is in doubt whether device and
model work."""


class Repeated(Enum):
    """What is counted while it happens again and again in a row."""

    START = "start"  # workers that failed before their first batch, by device or machine
    CANARY = "canary"  # canaries that failed, by device
    OOM_SINGLETON = "oom singleton"  # short texts that lack the GPU's memory alone, by chunk
    GIVEN_UP = "given up"  # chunks
    NO_PROGRESS = "no progress"  # attempts that repeat what failed


class BatchLimit(NamedTuple):
    """What fits in a batch, at most."""

    rows: int
    tokens: int | None  # padded; None = not known


@frozen
class Retry:
    """Try the work again in a new process."""

    delay_s: float = 0.0
    charge: bool = True  # it counts against the work
    counts: Repeated | None = None  # what is counted, against the place or the chunk
    limit: BatchLimit | None = None
    """What batches on devices of this kind are to hold from now on, at most."""


@frozen
class Wait:
    """The world is not ready: pause, and charge nothing."""

    delay_s: float


class How(Enum):
    """Into which pieces, in words."""

    BAD = (
        "keeping the others, and trying the bad ones once more in one worker, each alone in its "
        "batch"
    )
    SUSPECTS = "trying the texts of that batch one by one"
    HALVES = "trying it in two halves"


@frozen
class Split:
    """Take the texts apart. It needs no limit: pieces get smaller."""

    how: How


@frozen
class Quarantine:
    """The text gets no vector; of several, those whose vectors are bad."""


@frozen
class GiveUp:
    """Leave the chunk to the next run."""


@frozen
class Stop:
    """Do without the device, or (not `local`.

    Every further worker would fail, wherever it is) end the run.
    """

    code: ExitCode
    local: bool = False
    why: StopReason = StopReason.HALTED


Step = Retry | Wait | Split | Quarantine | GiveUp | Stop


@frozen
class History:
    """What came before the verdict.

    An attempt at a chunk of 1,000 texts was killed in its second batch of 32, as another at them
    was before, and a canary had its vector in it: `History(texts=968, charged_failures=1,
    canary=KnownText(7), any_text_succeeded=True, output_has_vectors=True, in_flight=32)`.
    """

    texts: int = 2
    """Texts of the attempt that are not done."""
    charged_failures: int = 0
    """How often the task failed with this outcome, as far as that counts against it."""
    canary: Canary | None = None
    """The text that the attempt began with."""
    shortest_first: bool = False
    """The canary is one of its own texts though a good one was known: do its shortest texts lack
    memory?"""
    any_text_succeeded: bool = False
    """Any text, a canary too, got its vector in the attempt."""
    output_has_vectors: bool = False
    """Any text of the output ever did."""
    succeeded_before: bool = False
    """This run has stored vectors of the output; of a failed start: a worker has encoded on the
    device or machine."""
    bisecting: bool = False
    """The chunk is searched for texts that fail."""
    in_flight: int = 0
    """Texts of the batches that had begun; 0 = not known."""
    singly: bool = False
    """Each batch had one text."""
    others: OtherProcesses = OtherProcesses.UNKNOWN
    """Who else held memory of the device."""
    waited_s: float = 0.0
    """How long this cause is waited for while nothing has succeeded anywhere."""
    failing_s: float = 0.0
    """How long ago the first of `failed_starts` failed."""
    # In a row:
    failed_starts: int = 0
    """Workers that failed before their first batch on the device or machine."""
    failed_canaries: int = 0
    """Attempts whose canary failed on the device."""
    given_up: int = 0
    """Chunks given up."""
    without_progress: int = 0
    """Attempts that repeated what failed."""
    oom_singletons: int = 0
    """Shortest texts of the chunk that lacked the GPU's memory alone, while no other text of it had
    enough."""


def decide(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    """Choose the next step; every verdict but COMMITTED has one.

    `test_policy` has a case for each line, under the name on the left:

        first start                         Retry       no text can be the cause
        third start                         Stop        the device, or the model, is at fault
        set up wrongly                      Stop        and no worker has worked here before
        a batch is halved                   Retry       out of memory: for all devices of the kind
        others came                         Wait        other processes hold the memory
        others stay                         Retry       after the wait: with half the batch
        the model is larger than the GPU    Stop
        unproven, no canary                 Retry       the next attempt begins with a canary
        a canary failed                     Retry       again, with a canary: the place is in doubt
        two canaries failed                 Stop        the place is at fault, and no text
        three shortest failed               Stop        no text was ever encoded
        proven, first look                  Retry       chance, or a text: twice tells
        proven, second look                 Split       a text: halves are tried
        proven, batch known                 Split       a text of the batch that was in progress
        alone, second look                  Quarantine  it fails alone, where another did not
        some vectors bad                    Split       the bad ones once more, each alone
        a bad vector alone                  Quarantine
        not even its shortest has memory    Retry       another of its short texts is tried first
        three of its shortest               GiveUp      the chunk is left to the next run
        crashed, third                      GiveUp      recovery.attempts are used up
        third chunk given up in a row       Stop
        twentieth in a row                  Stop        nothing has been gained for so long
        busy for too long                   Stop        recovery.wait_timeout is over
        the tenth machine is lost           GiveUp
    """
    if verdict.before_first_batch and verdict.outcome in _STARTS:
        return _start_again(verdict, history, recovery)
    step = _answer(verdict, history, recovery)
    if isinstance(step, GiveUp) and history.given_up + 1 >= MOST_GIVEN_UP:
        return Stop(ExitCode.MACHINE if verdict.outcome is Outcome.GPU_OOM else ExitCode.TRY_AGAIN)
    if (
        fruitless(step, verdict, history.texts)
        and history.without_progress + 1 >= MOST_WITHOUT_PROGRESS
    ):
        nothing = verdict.row_can_cause and not history.output_has_vectors
        return (
            Stop(code_of_nothing(verdict), why=StopReason.NOTHING_ENCODED)
            if nothing
            else Stop(ExitCode.TRY_AGAIN)
        )
    return step


def fruitless(step: Step, verdict: Verdict, texts: int) -> bool:
    """Say whether the attempt brought the run no further.

    Texts that get fewer end by themselves, the second look at a text alone ends by a verdict on it,
    a wait by time, and what is noted of a place by its limit.
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
    # The encoder itself would not do it; a crash, a hang or an error of CUDA can always be the
    # device's.
    if verdict.outcome is Outcome.BAD_OUTPUT or verdict.rule == "unknown-on-texts":
        return ExitCode.CONFIG
    others = verdict.others_hold_memory or verdict.outcome is Outcome.INTERRUPTED
    return ExitCode.TRY_AGAIN if others else ExitCode.MACHINE


def _answer(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    tries = history.charged_failures + 1
    match verdict.outcome:
        case Outcome.GPU_BUSY | Outcome.HUB | Outcome.DISK_FULL:
            return _wait(verdict, history, recovery)
        case Outcome.HARDWARE_FAULT:
            return _stop(verdict, ExitCode(verdict.exit_code or ExitCode.MACHINE))
        case Outcome.SETUP if not history.succeeded_before or tries >= recovery.attempts:
            return _stop(verdict, ExitCode(verdict.exit_code or ExitCode.CONFIG))
        case (
            Outcome.LOST
        ):  # `tries` counts for this outcome alone: no try for another cause is spent
            return Retry() if tries < MOST_LOST else GiveUp()
        case Outcome.INTERRUPTED if verdict.asked_for:
            return Retry(charge=False)
        case Outcome.GPU_OOM | Outcome.HOST_OOM if (
            answer := _shrink(verdict, history, recovery)
        ) is not None:
            return answer
    if verdict.row_can_cause:
        return _blame(verdict, history, recovery)
    if tries < recovery.attempts:
        return Retry(backoff_s(tries))
    # A fault that names the run's exit code is not the chunk's.
    return Stop(ExitCode(verdict.exit_code)) if verdict.exit_code else GiveUp()


def _blame(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    """Answer a fault that a text can cause: it is the place's doing, or the texts'."""
    tries = history.charged_failures + 1
    refused = verdict.outcome is Outcome.BAD_INPUT
    any_text_succeeded = history.any_text_succeeded or refused
    # A hang may always have been the machine's, even if the config wants one try.
    looks = LOOKS if verdict.outcome is Outcome.HUNG else min(LOOKS, recovery.attempts)
    certain = refused or (bool(verdict.bad_rows) and any_text_succeeded)
    if not any_text_succeeded and history.canary is not None:
        if (
            verdict.outcome is Outcome.GPU_OOM
            and history.shortest_first
            and history.output_has_vectors
        ):
            # Not even its shortest texts have memory, while others had: it is not their length, so
            # none is blamed.
            if history.oom_singletons + 1 >= MOST_OOM_SINGLETONS:
                return GiveUp()
            return Retry(
                backoff_s(history.oom_singletons + 1), charge=False, counts=Repeated.OOM_SINGLETON
            )
        if not (
            history.shortest_first and history.output_has_vectors
        ):  # else the text may be bad itself: that says nothing of the place
            return _canary_failed(verdict, history)
    if verdict.rule == ENCODER_BROKEN and not (any_text_succeeded or history.output_has_vectors):
        # rather every text's fault than one's: three of them tell
        return _canary_failed(verdict, history)
    if history.texts == 1:
        return _blame_one(
            verdict,
            history,
            recovery,
            any_text_succeeded=any_text_succeeded,
            seen=certain or tries >= looks,
        )
    if verdict.bad_rows:
        # They kill no worker: one more process looks at all of them, each alone in its batch, after
        # a canary.
        return Quarantine() if history.singly and any_text_succeeded else Split(How.BAD)
    if certain or history.bisecting or tries >= looks:
        # More than once, one by one helps only if there are fewer each time.
        known = 0 < history.in_flight < history.texts or (
            history.in_flight > 0 and not history.singly
        )
        return Split(How.SUSPECTS if known else How.HALVES)
    return Retry(backoff_s(tries))


def _canary_failed(verdict: Verdict, history: History) -> Step:
    """Answer an attempt that failed at its canary: a few in a row, and it is the place's doing."""
    # One of its own that was begun with before any was known to be good may be bad as well: three
    # of them tell.
    own = isinstance(history.canary, OwnText)
    most = MOST_CANARIES if history.output_has_vectors and not own else MOST_OWN_CANARIES
    if history.failed_canaries + 1 < most:
        return Retry(backoff_s(history.failed_canaries + 1), charge=False, counts=Repeated.CANARY)
    if not history.output_has_vectors:
        return Stop(code_of_nothing(verdict), local=True, why=StopReason.NOTHING_ENCODED)
    on_device = verdict.outcome in (Outcome.DEVICE_FAULT, Outcome.HARDWARE_FAULT)
    code = ExitCode.MACHINE if on_device else ExitCode.TRY_AGAIN
    code = ExitCode.CONFIG if verdict.outcome is Outcome.BAD_OUTPUT else code
    return Stop(ExitCode(verdict.exit_code or code), local=True, why=StopReason.CANARY)


def _blame_one(
    verdict: Verdict,
    history: History,
    recovery: RecoveryConfig,
    *,
    any_text_succeeded: bool,
    seen: bool,
) -> Step:
    if verdict.outcome is Outcome.HOST_OOM:
        # The machine runs out of memory for many reasons that pass: it gets more tries, and time
        # between them.
        given_up = any_text_succeeded and history.charged_failures + 1 >= recovery.attempts + LOOKS
        return (
            Quarantine() if given_up else Retry(MEMORY_PAUSE * BACKOFF_S, charge=any_text_succeeded)
        )
    # Without a proof nothing is known of the text; the next try begins with a canary, which is
    # counted.
    return Quarantine() if any_text_succeeded and seen else Retry(charge=any_text_succeeded)


def _start_again(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    """Answer a fault before the first batch: no text can be the cause."""
    starts = history.failed_starts + 1
    # What has worked in this run is not set up wrongly: something passing happened to it.
    wrong = verdict.outcome is Outcome.SETUP and not history.succeeded_before
    passing = history.succeeded_before and history.failing_s < recovery.wait_timeout
    if passing or (starts < recovery.attempts and not wrong):
        return Retry(backoff_s(starts), charge=False, counts=Repeated.START)
    # What fails while the model or the plug-in is loaded is theirs.
    of_load = (
        verdict.outcome in (Outcome.CRASHED, Outcome.BAD_OUTPUT, Outcome.BAD_INPUT)
        and verdict.phase in LOAD
    )
    code = ExitCode.CONFIG if verdict.outcome is Outcome.SETUP or of_load else ExitCode.MACHINE
    return _stop(verdict, ExitCode(verdict.exit_code or code))


def _stop(verdict: Verdict, code: ExitCode, why: StopReason = StopReason.HALTED) -> Stop:
    local = code in (ExitCode.MACHINE, ExitCode.DISK) or verdict.outcome in (
        Outcome.GPU_BUSY,
        Outcome.SETUP,
    )
    return Stop(code, local or (verdict.before_first_batch and code is ExitCode.CONFIG), why)


def _shrink(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step | None:
    """Make batches smaller, or wait for the memory that others hold; None if neither helps."""
    smaller = None
    if (
        verdict.smaller_batch_helps and verdict.phase is not Phase.TOKENIZE
    ):  # while texts are tokenized no batch began
        smaller = _half(verdict, recovery.min_batch_size)
    came = verdict.outcome is Outcome.GPU_OOM and history.others is OtherProcesses.NEW
    if came and history.waited_s < recovery.wait_timeout:
        return Wait(pause_s(history.waited_s, recovery.wait_timeout))
    return Retry(charge=False, limit=smaller) if smaller is not None else None


def _half(verdict: Verdict, min_rows: int) -> BatchLimit | None:
    """Halve the batch that did not fit, in tokens if these are known.

    Then short texts keep their batches.

    None if it was as small as is allowed.
    """
    rows = verdict.batch_rows or verdict.limits.rows
    limits = verdict.limits
    if rows <= min_rows:
        return None
    if verdict.batch_tokens:
        longest = verdict.batch_tokens // rows
        return BatchLimit(limits.rows, max(longest * min_rows, verdict.batch_tokens // 2))
    return BatchLimit(
        max(min_rows, min(rows, limits.rows) // 2), limits.tokens and max(1, limits.tokens // 2)
    )


def _wait(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    larger = verdict.figures is not None and verdict.figures.larger_than_gpu
    alone = history.others is OtherProcesses.NONE or (
        larger and history.others is not OtherProcesses.SIBLING
    )
    if verdict.weights_did_not_fit and alone:
        return _stop(verdict, ExitCode.MACHINE, StopReason.TOO_LARGE)
    if history.waited_s >= recovery.wait_timeout:
        default = ExitCode.DISK if verdict.outcome is Outcome.DISK_FULL else ExitCode.TRY_AGAIN
        return _stop(verdict, ExitCode(verdict.exit_code or default))
    asked_s = min(verdict.wait_s, recovery.wait_timeout - history.waited_s)
    return Wait(max(asked_s, pause_s(history.waited_s, recovery.wait_timeout)))


# --- what is remembered

# a device, a machine, a chunk of an output, or (None) the run
Where = int | str | tuple[int, int] | None

_WAITS = (Outcome.GPU_BUSY, Outcome.GPU_OOM, Outcome.HUB, Outcome.DISK_FULL)


@dataclass(slots=True)
class _Streak:
    """How often in a row something happened, the first time and the last."""

    count: int
    first_s: float
    last_s: float


class FailureHistory:
    """Of one run; the lessons are those of earlier runs."""

    def __init__(self, recall: Callable[[str], tuple[int, int | None] | None]) -> None:
        """Begin with what earlier runs have learnt of each kind of device."""
        self._recall = recall
        self._lessons: dict[str, BatchLimit | None] = {}
        self._streaks: dict[tuple[Repeated | Outcome, Where], _Streak] = {}
        self.success_s = -math.inf  # when something was stored last
        self.worked: set[int] = set()  # outputs of which this run has stored vectors
        # devices and machines on which a worker has done all it was to do
        self.sound: set[Where] = set()
        self.host_ooms = 0

    # --- what repeats

    def count(
        self, what: Repeated | Outcome, where: Where = None, began_s: float = math.inf
    ) -> int:
        """Say how often it happened in a row before an attempt that began then."""
        streak = self._streaks.get((what, where))
        # An attempt that was on its way already when it happened last tells nothing more.
        return streak.count - (began_s < streak.last_s) if streak else 0

    def lasts_s(self, what: Repeated | Outcome, where: Where, now_s: float) -> float:
        """Say how long ago it happened for the first time in this row."""
        streak = self._streaks.get((what, where))
        return now_s - streak.first_s if streak else 0.0

    def note(
        self,
        what: Repeated | Outcome,
        where: Where = None,
        began_s: float = math.inf,
        now_s: float = 0.0,
    ) -> None:
        """Count it once more, unless the attempt was on its way already when it happened last."""
        streak = self._streaks.setdefault((what, where), _Streak(0, now_s, -math.inf))
        if began_s >= streak.last_s:
            streak.count += 1
            streak.last_s = now_s

    def forget(self, what: Repeated | Outcome, where: Where = None) -> None:
        """Begin to count again: it did not happen the next time."""
        self._streaks.pop((what, where), None)

    def waited_s(self, outcome: Outcome, where: Where, now_s: float) -> float:
        """Say how long it is waited for while nothing has succeeded anywhere."""
        return min(self.lasts_s(outcome, where, now_s), now_s - self.success_s)

    # --- what succeeds

    def started(self, device: int, node: str, outcome: Outcome) -> None:
        """Note that a worker got to its first batch there; `outcome` is how it ended."""
        self.forget(Repeated.START, device)
        self.forget(Repeated.START, node)
        # What is waited for may show in a batch as well: that is the same wait, not a way through
        # it.
        if outcome is not Outcome.GPU_BUSY:
            self.forget(Outcome.GPU_BUSY, device)

    def encoded(self, device: int, node: str) -> None:
        """Note that a worker did its work there."""
        self.started(device, node, Outcome.COMMITTED)
        self.sound |= {device, node}
        for what in (Repeated.CANARY, *_WAITS):
            self.forget(what, device)

    def stored(self, output: int, now_s: float) -> None:
        """Note that something is done for good."""
        self.success_s = now_s
        self.worked.add(output)
        for what in (Repeated.NO_PROGRESS, Repeated.GIVEN_UP, *_WAITS):
            self.forget(what)

    # --- what did not fit

    def lower(self, kind: str, limit: BatchLimit) -> BatchLimit | None:
        """Have batches on devices of this kind be no larger; None if they were not anyway."""
        old = self._of(kind)
        new = (
            limit
            if old is None
            else BatchLimit(min(old.rows, limit.rows), least(old.tokens, limit.tokens))
        )
        self._lessons[kind] = new
        return new if new != old else None

    def limits(self, limits: Limits, kind: str) -> Limits:
        """Narrow those of the config to what has been seen to fit."""
        limit = self._of(kind)
        if limit is None:
            return limits
        return replace(
            limits, rows=min(limits.rows, limit.rows), tokens=least(limits.tokens, limit.tokens)
        )

    def _of(self, kind: str) -> BatchLimit | None:
        if kind not in self._lessons:
            old = self._recall(kind)
            # One step wider than an earlier run had to go: its cause may have passed. That costs
            # one failure at most.
            self._lessons[kind] = old and BatchLimit(2 * old[0], old[1] and 2 * old[1])
        return self._lessons[kind]


def cause_of(verdict: Verdict, device: int, node: str) -> int | None:
    """Say who waits.

    A device for its own memory, one of a cluster for its machine's disk, or (None) all.
    """
    own = verdict.outcome in (Outcome.GPU_BUSY, Outcome.GPU_OOM)
    return device if own or (verdict.outcome is Outcome.DISK_FULL and node) else None


def start_of(verdict: Verdict, device: int, node: str) -> Where:
    """Say whose a failed start is.

    What fails while the model is loaded is the machine's, with its installation.
    """
    of_model = verdict.phase in LOAD and verdict.outcome in (
        Outcome.CRASHED,
        Outcome.BAD_OUTPUT,
        Outcome.SETUP,
    )
    return node if of_model else device


def least(one: int | None, other: int | None) -> int | None:
    """Give the smaller of two limits, where None is none."""
    return min((each for each in (one, other) if each is not None), default=None)
