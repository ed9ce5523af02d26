"""Decides what follows a failed attempt, from its verdict and from what happened before. Pure.

Whose fault is it, a text's, or that of the device or the model? After a failure that a text can
cause, the next attempt begins with a canary: a batch of one text that is known to be good, or,
while none is, of the shortest text of the attempt. If any text got its vector, the attempt is
*proven*: device and model work, and the texts that came next are the cause. If not even the canary
got one, the device or the model is.
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
from chunkvisor_worker.contract.rules import ENCODER_BROKEN, LOAD, NO_ROOM

LOOKS = 2  # proven attempts in which a text fails before it is blamed
MEMORY_PAUSE_S = (
    64 * BACKOFF_S
)  # before a single text that lacked the machine's memory is tried again

# At this many in a row, it ends:
MOST_CANARIES = 2  # known good canaries that fail on a device
MOST_OWN_CANARIES = 3  # the same, of canaries that may be bad themselves
MOST_GIVEN_UP = 3  # chunks given up
MOST_WITHOUT_PROGRESS = 20  # attempts that repeat what failed
MOST_LOST = 10  # machines lost under one task
MOST_OOM_SINGLETONS = 3  # shortest texts of a chunk that lack the GPU's memory, each alone

# Before the first batch these mean that the start failed: no text can be the cause.
_FAILED_STARTS = (
    Outcome.SETUP,
    Outcome.DEVICE_FAULT,
    Outcome.GPU_OOM,
    Outcome.HOST_OOM,
    Outcome.HUNG,
    Outcome.CRASHED,
    Outcome.BAD_OUTPUT,
    Outcome.BAD_INPUT,
)


@frozen
class KnownText:
    """A canary that is known to be good, since it has its vector already."""

    text: int


@frozen
class OwnText:
    """A canary out of the texts of the attempt itself, while no text is known to be good."""

    rank: int
    """0 = the shortest of them, 1 = the second shortest, and so on."""


Canary = KnownText | OwnText
"""The text that an attempt encodes first, in a batch by itself: does it work at all?"""


class Repeated(Enum):
    """What is counted while it happens in a row."""

    START = "start"  # workers that failed before their first batch, by device or machine
    CANARY = "canary"  # canaries that failed, by device
    OOM_SINGLETON = "oom singleton"  # short texts that lacked the GPU's memory alone, by chunk
    GIVEN_UP = "given up"  # chunks that were given up
    NO_PROGRESS = "no progress"  # attempts that repeated what failed


class BatchLimit(NamedTuple):
    """The most that fits in a batch."""

    rows: int
    tokens: int | None  # padded tokens; None = not known


@frozen
class Retry:
    """Try the same texts again in a new process."""

    delay_s: float = 0.0
    charge: bool = True  # the failure counts against the texts
    counts: Repeated | None = None  # or what it counts as, against the device or the chunk
    limit: BatchLimit | None = None
    """The most that a batch may hold from now on, on devices of this kind."""


@frozen
class Wait:
    """Pause, since something outside is not ready; it counts against nothing."""

    delay_s: float


class How(Enum):
    """Into which pieces texts are taken apart, in words for the person."""

    BAD = (
        "keeping the others, and trying the bad ones once more in one worker, each alone in its "
        "batch"
    )
    SUSPECTS = "trying the texts of that batch one by one"
    HALVES = "trying it in two halves"


@frozen
class Split:
    """Take the texts apart. Pieces get smaller each time, so it ends without a limit."""

    how: How


@frozen
class Quarantine:
    """Give the text up: its rows get no vector. Of several texts, those whose vectors are bad."""


@frozen
class GiveUp:
    """Give the chunk up: it is left to the next run."""


@frozen
class Stop:
    """End the run, since every further worker would fail; if `local`, do without the device."""

    code: ExitCode
    local: bool = False  # the fault is of this device or machine: others may go on
    why: StopReason = StopReason.HALTED


Step = Retry | Wait | Split | Quarantine | GiveUp | Stop


@frozen
class History:
    """What is known besides the verdict: about the attempt, and about what happened before.

    Example: an attempt at 1,000 texts began with a canary, encoded a batch of 32, and was killed in
    its second batch; so was an attempt at the same texts before:

        History(
            texts=968,
            charged_failures=1,
            canary=KnownText(7),
            any_text_succeeded=True,
            output_has_vectors=True,
            in_flight=32,
        )
    """

    texts: int = 2
    """Texts of the attempt that have no vector yet."""
    charged_failures: int = 0
    """How often the texts failed with this outcome before, as far as that counts against them."""
    canary: Canary | None = None
    """The text that the attempt began with."""
    shortest_first: bool = False
    """The canary was the shortest of its own texts, after a lack of GPU memory: do even they lack
    it?"""
    any_text_succeeded: bool = False
    """Any text, a canary too, got its vector in the attempt."""
    output_has_vectors: bool = False
    """Any text of the output has a vector."""
    succeeded_before: bool = False
    """This run has stored vectors of the output; for a failed start: a worker has encoded on the
    device or machine."""
    bisecting: bool = False
    """Texts of the chunk that fail are being looked for."""
    in_flight: int = 0
    """Texts of the batches that had begun and were not finished; 0 = not known."""
    singly: bool = False
    """Each batch had one text."""
    others: OtherProcesses = OtherProcesses.UNKNOWN
    """Who else held memory of the device."""
    waited_s: float = 0.0
    """For how long this cause has been waited for without a success anywhere."""
    failing_s: float = 0.0
    """How long ago the first of `failed_starts` failed."""
    # In a row, before this attempt:
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
    """Choose the next step after any verdict but COMMITTED.

    The rules, each with its case in `test_policy` under the name on the left:

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
    if verdict.before_first_batch and verdict.outcome in _FAILED_STARTS:
        return _answer_failed_start(verdict, history, recovery)
    step = _answer(verdict, history, recovery)
    if isinstance(step, GiveUp) and history.given_up + 1 >= MOST_GIVEN_UP:
        return Stop(ExitCode.MACHINE if verdict.outcome is Outcome.GPU_OOM else ExitCode.TRY_AGAIN)
    at_limit = history.without_progress + 1 >= MOST_WITHOUT_PROGRESS
    if at_limit and fruitless(step, verdict, history.texts):
        if verdict.row_can_cause and not history.output_has_vectors:
            return Stop(code_if_nothing_encoded(verdict), why=StopReason.NOTHING_ENCODED)
        return Stop(ExitCode.TRY_AGAIN)
    return step


def fruitless(step: Step, verdict: Verdict, texts: int) -> bool:
    """Say whether the attempt brought the run no further.

    Everything else ends by itself: pieces get smaller, a second look at a single text ends with a
    verdict on it, a wait after its time, and what is counted against a device or a chunk at its
    limit.
    """
    second_look = texts == 1 and verdict.row_can_cause
    again = isinstance(step, Retry) and step.charge and not second_look
    return (again or isinstance(step, GiveUp)) and not verdict.blameless


def code_if_nothing_encoded(verdict: Verdict) -> ExitCode:
    """Choose the exit code of a run in which no text was ever encoded.

    Another run would end in the same way, unless others held the memory or ended the workers.
    """
    if verdict.exit_code:
        return ExitCode(verdict.exit_code)
    # These are the encoder's; a crash, a hang or an error of CUDA may be the device's.
    if verdict.outcome is Outcome.BAD_OUTPUT or verdict.rule == "unknown-on-texts":
        return ExitCode.CONFIG
    others = verdict.others_hold_memory or verdict.outcome is Outcome.INTERRUPTED
    return ExitCode.TRY_AGAIN if others else ExitCode.MACHINE


def _answer(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    tries = history.charged_failures + 1
    match verdict.outcome:
        case Outcome.GPU_BUSY | Outcome.HUB | Outcome.DISK_FULL:
            return _wait_or_stop(verdict, history, recovery)
        case Outcome.HARDWARE_FAULT:
            return _stop(verdict, ExitCode.MACHINE)
        case Outcome.SETUP if not history.succeeded_before or tries >= recovery.attempts:
            return _stop(verdict, ExitCode.CONFIG)
        case Outcome.LOST:
            # Failures are counted by outcome: this takes no try from another cause.
            return Retry() if tries < MOST_LOST else GiveUp()
        case Outcome.INTERRUPTED if verdict.asked_for:
            return Retry(charge=False)
        case Outcome.GPU_OOM | Outcome.HOST_OOM:
            step = _answer_lack_of_memory(verdict, history, recovery)
            if step:
                return step
    if verdict.row_can_cause:
        return _answer_fault_of_texts(verdict, history, recovery)
    if tries < recovery.attempts:
        return Retry(backoff_s(tries))
    # A fault that has an exit code for the run is not the chunk's.
    return Stop(ExitCode(verdict.exit_code)) if verdict.exit_code else GiveUp()


def _answer_fault_of_texts(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    """Answer a fault that a text can cause: it is the texts' fault, or the device's."""
    tries = history.charged_failures + 1
    refused = verdict.outcome is Outcome.BAD_INPUT
    proven = history.any_text_succeeded or refused
    # A hang may have been the machine's, even if the config wants one try.
    looks = LOOKS if verdict.outcome is Outcome.HUNG else min(LOOKS, recovery.attempts)
    certain = refused or (bool(verdict.bad_rows) and proven) or tries >= looks
    if not proven and history.canary:
        # The shortest of its own texts may be bad itself, while others had a vector: that says
        # nothing of the device.
        if not (history.shortest_first and history.output_has_vectors):
            return _answer_failed_canary(verdict, history)
        if verdict.outcome is Outcome.GPU_OOM:
            # Even its shortest texts lack memory: it is not their length, and none is blamed.
            singletons = history.oom_singletons + 1
            if singletons >= MOST_OOM_SINGLETONS:
                return GiveUp()
            return Retry(backoff_s(singletons), charge=False, counts=Repeated.OOM_SINGLETON)
    if verdict.rule == ENCODER_BROKEN and not (proven or history.output_has_vectors):
        # Every text's fault rather than one's: it is counted as if canaries failed.
        return _answer_failed_canary(verdict, history)
    if history.texts == 1:
        return _answer_single_text(verdict, history, recovery, proven=proven, certain=certain)
    if verdict.bad_rows:
        # Bad vectors end no worker: one more process tries all such texts, each alone in its batch,
        # after a canary.
        return Quarantine() if history.singly and proven else Split(How.BAD)
    if certain or history.bisecting:
        # One by one a second time helps only if there are fewer of them.
        known = history.in_flight > 0
        fewer = history.in_flight < history.texts or not history.singly
        return Split(How.SUSPECTS if known and fewer else How.HALVES)
    return Retry(backoff_s(tries))


_CODES_OF_CANARIES = {
    Outcome.DEVICE_FAULT: ExitCode.MACHINE,
    Outcome.HARDWARE_FAULT: ExitCode.MACHINE,
    Outcome.BAD_OUTPUT: ExitCode.CONFIG,
}


def _answer_failed_canary(verdict: Verdict, history: History) -> Step:
    """Answer an attempt whose canary failed: a few in a row show that the device is at fault."""
    failed = history.failed_canaries + 1
    # A canary that is not known to be good may be bad itself.
    own = isinstance(history.canary, OwnText)
    most = MOST_CANARIES if history.output_has_vectors and not own else MOST_OWN_CANARIES
    if failed < most:
        return Retry(backoff_s(failed), charge=False, counts=Repeated.CANARY)
    if not history.output_has_vectors:
        return Stop(code_if_nothing_encoded(verdict), local=True, why=StopReason.NOTHING_ENCODED)
    code = verdict.exit_code or _CODES_OF_CANARIES.get(verdict.outcome, ExitCode.TRY_AGAIN)
    return Stop(ExitCode(code), local=True, why=StopReason.CANARY)


def _answer_single_text(
    verdict: Verdict, history: History, recovery: RecoveryConfig, *, proven: bool, certain: bool
) -> Step:
    """Answer a fault in an attempt at one text; `certain` if it has failed often enough."""
    delay_s = 0.0
    if verdict.outcome is Outcome.HOST_OOM:
        # The machine runs out of memory for many reasons that pass: it gets more tries, and time
        # between them.
        certain = history.charged_failures + 1 >= recovery.attempts + LOOKS
        delay_s = MEMORY_PAUSE_S
    # If not proven, nothing is known of the text; the next attempt begins with a canary, which is
    # counted.
    return Quarantine() if proven and certain else Retry(delay_s, charge=proven)


def _answer_failed_start(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    """Answer a start that failed: no text can be the cause."""
    starts = history.failed_starts + 1
    # What has worked in this run is not set up wrongly: something that passes happened to it.
    wrong = verdict.outcome is Outcome.SETUP and not history.succeeded_before
    passing = history.succeeded_before and history.failing_s < recovery.wait_timeout
    if passing or (starts < recovery.attempts and not wrong):
        return Retry(backoff_s(starts), charge=False, counts=Repeated.START)
    # What fails while the model or the plug-in is loaded is theirs.
    of_encoder = verdict.outcome in (Outcome.CRASHED, Outcome.BAD_OUTPUT, Outcome.BAD_INPUT)
    wrong = verdict.outcome is Outcome.SETUP or (of_encoder and verdict.phase in LOAD)
    return _stop(verdict, ExitCode.CONFIG if wrong else ExitCode.MACHINE)


def _stop(verdict: Verdict, code: ExitCode) -> Stop:
    """Stop with the verdict's exit code, or else with this one."""
    code = ExitCode(verdict.exit_code or code)
    local = (
        code in (ExitCode.MACHINE, ExitCode.DISK)
        or verdict.outcome in (Outcome.GPU_BUSY, Outcome.SETUP)
        or (code is ExitCode.CONFIG and verdict.before_first_batch)
    )
    return Stop(code, local)


def _answer_lack_of_memory(
    verdict: Verdict, history: History, recovery: RecoveryConfig
) -> Step | None:
    """Wait for the memory that others hold, or halve the batch; None if neither helps."""
    came = verdict.outcome is Outcome.GPU_OOM and history.others is OtherProcesses.NEW
    if came and history.waited_s < recovery.wait_timeout:
        return Wait(pause_s(history.waited_s, recovery.wait_timeout))
    rows = verdict.batch_rows or verdict.limits.rows
    # While texts are tokenized, no batch has begun.
    helps = verdict.smaller_batch_helps and verdict.phase is not Phase.TOKENIZE
    if helps and rows > recovery.min_batch_size:
        return Retry(charge=False, limit=_half(verdict, rows, recovery.min_batch_size))
    return None


def _half(verdict: Verdict, rows: int, min_rows: int) -> BatchLimit:
    """Halve a batch of so many rows; in tokens if they are known, as short texts need no less."""
    limits = verdict.limits
    if verdict.batch_tokens:
        longest = verdict.batch_tokens // rows
        return BatchLimit(limits.rows, max(longest * min_rows, verdict.batch_tokens // 2))
    tokens = limits.tokens and max(1, limits.tokens // 2)
    return BatchLimit(max(min_rows, min(rows, limits.rows) // 2), tokens)


def _wait_or_stop(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    """Answer what passes by itself: pause, until it has been waited for long enough."""
    if verdict.rule == NO_ROOM:  # for the weights, whoever holds the memory
        larger = verdict.figures is not None and verdict.figures.larger_than_gpu
        sole = history.others is OtherProcesses.NONE
        if sole or (larger and history.others is not OtherProcesses.SIBLING):
            return Stop(ExitCode.MACHINE, local=True, why=StopReason.TOO_LARGE)
    if history.waited_s >= recovery.wait_timeout:
        full = verdict.outcome is Outcome.DISK_FULL
        return _stop(verdict, ExitCode.DISK if full else ExitCode.TRY_AGAIN)
    asked_s = min(verdict.wait_s, recovery.wait_timeout - history.waited_s)
    return Wait(max(asked_s, pause_s(history.waited_s, recovery.wait_timeout)))


# --- what is remembered

Where = int | str | tuple[int, int] | None
"""A device by its number, a machine by its name, (output, chunk), or None for the whole run."""

_WAITS = (Outcome.GPU_BUSY, Outcome.GPU_OOM, Outcome.HUB, Outcome.DISK_FULL)


@dataclass(slots=True)
class _Streak:
    """How often something happened in a row, and when for the first and the last time."""

    count: int
    first_s: float
    last_s: float


class FailureHistory:
    """What one run remembers of failures and successes, and of batches that did not fit.

    Example: two canaries in a row have failed on device 0, and then a worker encodes its texts
    there:

        history.record(Repeated.CANARY, 0, now_s=10.0)
        history.record(Repeated.CANARY, 0, now_s=20.0)
        history.count(Repeated.CANARY, 0)  # 2
        history.note_encoded(0, "")
        history.count(Repeated.CANARY, 0)  # 0
    """

    def __init__(self, recall: Callable[[str], tuple[int, int | None] | None]) -> None:
        """`recall` gives the batch limit that earlier runs have learnt for a kind of device."""
        self._recall = recall
        self._lessons = dict[str, BatchLimit | None]()
        self._streaks = dict[tuple[Repeated | Outcome, Where], _Streak]()
        self.success_s = -math.inf  # when something was stored last
        self.worked = set[int]()  # outputs of which this run has stored vectors
        self.sound = set[Where]()  # devices and machines on which a worker has done its work
        self.host_ooms = 0  # how often the machine's memory ran out

    # --- what repeats

    def count(
        self, what: Repeated | Outcome, where: Where = None, began_s: float = math.inf
    ) -> int:
        """Say how often it happened in a row, before an attempt that began then."""
        streak = self._streaks.get((what, where))
        # An attempt that had begun before the last time proves nothing more.
        return streak.count - (began_s < streak.last_s) if streak else 0

    def lasts_s(self, what: Repeated | Outcome, where: Where, now_s: float) -> float:
        """Say how long ago it happened for the first time in this row."""
        streak = self._streaks.get((what, where))
        return now_s - streak.first_s if streak else 0.0

    def record(
        self,
        what: Repeated | Outcome,
        where: Where = None,
        began_s: float = math.inf,
        now_s: float = 0.0,
    ) -> None:
        """Count it once more, unless the attempt had begun before the last time."""
        streak = self._streaks.setdefault((what, where), _Streak(0, now_s, -math.inf))
        if began_s >= streak.last_s:
            streak.count += 1
            streak.last_s = now_s

    def forget(self, what: Repeated | Outcome, where: Where = None) -> None:
        """Begin to count anew: it did not happen this time."""
        self._streaks.pop((what, where), None)

    def waited_s(self, outcome: Outcome, where: Where, now_s: float) -> float:
        """Say for how long it has been waited for without a success anywhere."""
        return min(self.lasts_s(outcome, where, now_s), now_s - self.success_s)

    # --- what succeeds

    def note_start(self, device: int, node: str, outcome: Outcome) -> None:
        """Note that a worker got to its first batch there; `outcome` is how it ended."""
        self.forget(Repeated.START, device)
        self.forget(Repeated.START, node)
        # A GPU may be found busy in a batch as well: then the wait continues.
        if outcome is not Outcome.GPU_BUSY:
            self.forget(Outcome.GPU_BUSY, device)

    def note_encoded(self, device: int, node: str) -> None:
        """Note that a worker has encoded all of its texts there."""
        self.note_start(device, node, Outcome.COMMITTED)
        self.sound |= {device, node}
        for what in (Repeated.CANARY, *_WAITS):
            self.forget(what, device)

    def note_stored(self, output: int, now_s: float) -> None:
        """Note that vectors or verdicts of the output are on the disk."""
        self.success_s = now_s
        self.worked.add(output)
        for what in (Repeated.NO_PROGRESS, Repeated.GIVEN_UP, *_WAITS):
            self.forget(what)

    # --- what did not fit

    def lower_limit(self, kind: str, limit: BatchLimit) -> BatchLimit | None:
        """Lower the limit of batches on devices of this kind; None if it was as low already."""
        old = self._lesson(kind)
        new = limit
        if old:
            new = BatchLimit(min(old.rows, limit.rows), smaller_limit(old.tokens, limit.tokens))
        self._lessons[kind] = new
        return new if new != old else None

    def limits(self, limits: Limits, kind: str) -> Limits:
        """Lower the limits of the config to what fits on devices of this kind."""
        lesson = self._lesson(kind)
        if not lesson:
            return limits
        tokens = smaller_limit(limits.tokens, lesson.tokens)
        return replace(limits, rows=min(limits.rows, lesson.rows), tokens=tokens)

    def _lesson(self, kind: str) -> BatchLimit | None:
        if kind not in self._lessons:
            old = self._recall(kind)
            # One step wider than in an earlier run, since the cause may have passed. That costs one
            # failure at most.
            self._lessons[kind] = old and BatchLimit(2 * old[0], old[1] and 2 * old[1])
        return self._lessons[kind]


def waiting_device(verdict: Verdict, device: int, node: str) -> int | None:
    """Say who has to wait: the device, or (None) all devices.

    A device waits alone for its own memory, and for the disk of its machine in a cluster.
    """
    own = verdict.outcome in (Outcome.GPU_BUSY, Outcome.GPU_OOM)
    return device if own or (verdict.outcome is Outcome.DISK_FULL and node) else None


def place_of_failed_start(verdict: Verdict, device: int, node: str) -> Where:
    """Say whether a failed start counts against the device or the machine.

    A model that cannot be loaded is the machine's fault, where it is installed.
    """
    outcomes = (Outcome.CRASHED, Outcome.BAD_OUTPUT, Outcome.SETUP)
    return node if verdict.phase in LOAD and verdict.outcome in outcomes else device


def smaller_limit(one: int | None, other: int | None) -> int | None:
    """Give the smaller of two limits; None is no limit."""
    return min((each for each in (one, other) if each is not None), default=None)
