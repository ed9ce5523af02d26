"""Decides what follows a failed attempt, from its verdict and from what happened before. Pure.

The question is whose fault it was: a text's, or that of the device or the model. After a failure
that a text can cause, the next attempt begins with a *canary*: a batch of one text that is known to
be good, or, while none is known, of the shortest text of the attempt. An attempt in which any text
got its vector is *proven*: device and model work, so the texts that came next are the cause. If not
even the canary got its vector, the device or the model is.
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

# A text is blamed when it has failed in this many proven attempts: one failure may be chance.
PROVEN_FAILURES = 2
# Before a single text that lacked the machine's memory is tried again.
MEMORY_PAUSE_S = 64 * BACKOFF_S

# At this many in a row the run, the device or the chunk is given up:
MOST_CANARIES = 2  # failed canaries on one device, of texts that are known to be good
MOST_OWN_CANARIES = 3  # the same, of texts that may be bad themselves
MOST_GIVEN_UP = 3  # chunks given up
MOST_WITHOUT_PROGRESS = 20  # attempts that got no text further; see `fruitless`
MOST_LOST = 10  # machines that were lost while they had the same texts
MOST_OOM_SINGLETONS = 3  # of a chunk's shortest texts, each alone, that lack the GPU's memory

# With these outcomes before the first batch, the start of the worker failed, and no text is the
# cause. The other outcomes mean the same before the first batch as after it.
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
    """What the run counts as long as it happens again and again without a success between."""

    START = "start"  # workers that failed before their first batch, by device or machine
    CANARY = "canary"  # canaries that failed, by device
    UNANSWERED = "unanswered"  # canaries, not known to be good, for which a server failed
    OOM_SINGLETON = "oom singleton"  # short texts that lacked the GPU's memory alone, by chunk
    GIVEN_UP = "given up"  # chunks that were given up
    NO_PROGRESS = "no progress"  # attempts that got no text further; see `fruitless`


class BatchLimit(NamedTuple):
    """The most that fits in a batch."""

    rows: int
    tokens: int | None  # padded tokens; None = not known


@frozen
class Retry:
    """Try the same texts again in a new process."""

    delay_s: float = 0.0
    charge: bool = True
    """Whether the failure counts against the texts, which brings them nearer to being blamed."""
    counts: Repeated | None = None
    """If it does not: what is counted instead, of the device or the chunk."""
    limit: BatchLimit | None = None
    """The most that a batch may hold from now on, on devices of this kind."""


@frozen
class Wait:
    """Pause, since something outside is not ready, such as a full disk. No failure is counted."""

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
    """Take the texts apart. This needs no limit: the pieces get smaller each time."""

    how: How


@frozen
class Quarantine:
    """Give the text up: its rows get no vector. Of several, give up those with bad vectors."""


@frozen
class GiveUp:
    """Give the chunk up: it is left to the next run."""


@frozen
class Stop:
    """End the run, since every further worker would fail."""

    code: ExitCode
    local: bool = False
    """The fault is of this device or machine: the run continues on others if it has any."""
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
    """After a lack of GPU memory, the attempt began with its own shortest text: if even that lacks
    memory, the length of the texts is not the cause."""
    any_text_succeeded: bool = False
    """Any text, a canary too, got its vector in the attempt."""
    output_has_vectors: bool = False
    """Any text of the output has a vector."""
    succeeded_before: bool = False
    """This run has stored vectors of the output; for a failed start: a worker has encoded on the
    device or machine."""
    bisecting: bool = False
    """The chunk is taken apart to find the texts that fail."""
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
    """Attempts that got no text further; see `fruitless`."""
    oom_singletons: int = 0
    """Short texts of the chunk that lacked the GPU's memory in a batch by themselves, each tried in
    the place of the one before."""


def decide(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    """Choose the next step after any verdict but COMMITTED.

    The cases with their steps and the reasons; `test_policy` has each under the name on the left:

        first start                         Retry       no text can be the cause
        third start                         Stop        the device, or the model, is at fault
        set up wrongly                      Stop        no worker has worked here before
        a batch is halved                   Retry       out of memory: for all devices of the kind
        others came                         Wait        other processes hold the memory
        others stay                         Retry       after the wait: with half the batch
        the model is larger than the GPU    Stop
        unproven, no canary                 Retry       the next attempt begins with a canary
        a canary failed                     Retry       with a canary again: is it the device?
        two canaries failed                 Stop        the device is at fault, and no text
        three shortest failed               Stop        no text was ever encoded
        proven, first failure               Retry       it may have been chance
        proven, second failure              Split       a text is the cause: halves are tried
        proven, batch known                 Split       a text of the batch that was in progress
        alone, second failure               Quarantine  it fails alone, where another did not
        some vectors bad                    Split       the bad ones once more, each alone
        a bad vector alone                  Quarantine
        not even its shortest has memory    Retry       another of its short texts is tried first
        three of its shortest               GiveUp      the chunk is left to the next run
        crashed, third                      GiveUp      recovery.attempts are used up
        third chunk given up in a row       Stop
        twentieth in a row                  Stop        nothing has been gained for so long
        busy for too long                   Stop        recovery.wait_timeout is over
        the server fails, unproven          Wait        the next attempt begins with a canary
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
    """Say whether an attempt at this many texts brought the run no further.

    A run could repeat such attempts for ever, so that they are counted. Every other step has an
    end: pieces get smaller, a single text that fails again is given up, a wait has its time limit,
    and what is counted of a device or a chunk has its own.
    """
    decides_on_text = texts == 1 and verdict.row_can_cause
    repeats = isinstance(step, Retry) and step.charge and not decides_on_text
    return (repeats or isinstance(step, GiveUp)) and not verdict.blameless


def code_if_nothing_encoded(verdict: Verdict) -> ExitCode:
    """Choose the exit code of a run in which no text was ever encoded.

    Another run would end in the same way, unless others held the memory or ended the workers.
    """
    if verdict.exit_code:
        return ExitCode(verdict.exit_code)
    # These come from the encoder. A crash, a hang or an error of CUDA may come from the device.
    if verdict.outcome is Outcome.BAD_OUTPUT or verdict.rule == "unknown-on-texts":
        return ExitCode.CONFIG
    others = verdict.others_hold_memory or verdict.outcome is Outcome.INTERRUPTED
    return ExitCode.TRY_AGAIN if others else ExitCode.MACHINE


def _answer(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    tries = history.charged_failures + 1
    match verdict.outcome:
        case Outcome.HUB if verdict.row_can_cause and history.any_text_succeeded:
            pass  # the server that the encoder asks answers, but not for these texts
        case Outcome.GPU_BUSY | Outcome.HUB | Outcome.DISK_FULL:
            return _wait_or_stop(verdict, history, recovery)
        case Outcome.HARDWARE_FAULT:
            return _stop(verdict, ExitCode.MACHINE)
        case Outcome.SETUP if not history.succeeded_before or tries >= recovery.attempts:
            return _stop(verdict, ExitCode.CONFIG)
        case Outcome.LOST:
            # `tries` counts this outcome alone, so that a lost machine spends none of the tries
            # that `recovery.attempts` allows for other outcomes.
            return Retry() if tries < MOST_LOST else GiveUp()
        case Outcome.INTERRUPTED if verdict.asked_for:
            return Retry(charge=False)
        case Outcome.GPU_OOM | Outcome.HOST_OOM | Outcome.BAD_INPUT:
            step = _answer_lack_of_memory(verdict, history, recovery)
            if step:
                return step
    if verdict.row_can_cause:
        return _answer_fault_of_texts(verdict, history, recovery)
    if tries < recovery.attempts:
        return Retry(backoff_s(tries))
    # A fault that has an exit code of the run comes from the config or the machine: another chunk
    # would meet it as well.
    return Stop(ExitCode(verdict.exit_code)) if verdict.exit_code else GiveUp()


def _answer_fault_of_texts(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    """Answer a fault that a text can cause: it is the texts' fault, or the device's."""
    tries = history.charged_failures + 1
    refused = verdict.outcome is Outcome.BAD_INPUT
    proven = history.any_text_succeeded or refused
    # With `recovery.attempts: 1` the first failure blames the text, except for a hang: the machine
    # may have stalled.
    enough = (
        PROVEN_FAILURES
        if verdict.outcome is Outcome.HUNG
        else min(PROVEN_FAILURES, recovery.attempts)
    )
    certain = refused or (bool(verdict.bad_rows) and proven) or tries >= enough
    if not proven and history.canary:
        # If the canary was the shortest of its own texts, it may be bad itself; since the output
        # has vectors, that says nothing of the device.
        if not (history.shortest_first and history.output_has_vectors):
            return _answer_failed_canary(verdict, history)
        if verdict.outcome is Outcome.GPU_OOM:
            # Even its shortest texts lack memory: it is not their length, and none is blamed.
            singletons = history.oom_singletons + 1
            if singletons >= MOST_OOM_SINGLETONS:
                return GiveUp()
            return Retry(backoff_s(singletons), charge=False, counts=Repeated.OOM_SINGLETON)
    if verdict.rule == ENCODER_BROKEN and not (proven or history.output_has_vectors):
        # No text has ever been encoded, and the encoder is said to be broken for all: this is
        # counted as a failed canary.
        return _answer_failed_canary(verdict, history)
    if history.texts == 1:
        return _answer_single_text(verdict, history, recovery, proven=proven, certain=certain)
    if verdict.bad_rows:
        # Bad vectors end no worker: one more process tries all such texts, each alone in its batch,
        # after a canary.
        return Quarantine() if history.singly and proven else Split(How.BAD)
    if certain or history.bisecting:
        # Texts that were already tried one by one are so again only if they are fewer now.
        known = history.in_flight > 0
        fewer = history.in_flight < history.texts or not history.singly
        return Split(How.SUSPECTS if known and fewer else How.HALVES)
    return Retry(max(backoff_s(tries), min(verdict.wait_s, recovery.wait_timeout)))


_CODES_OF_CANARIES = {
    Outcome.DEVICE_FAULT: ExitCode.MACHINE,
    Outcome.HARDWARE_FAULT: ExitCode.MACHINE,
    Outcome.BAD_OUTPUT: ExitCode.CONFIG,
}


def _answer_failed_canary(verdict: Verdict, history: History) -> Step:
    """Answer an attempt whose canary failed; a few in a row show that the device is at fault."""
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
    if verdict.outcome in (Outcome.HOST_OOM, Outcome.HUB):
        # Machines run out of memory, and servers fail, for many reasons that pass: the text gets
        # more tries, and time between them.
        tries = history.charged_failures + 1
        certain = tries >= recovery.attempts + PROVEN_FAILURES
        delay_s = max(backoff_s(tries), min(verdict.wait_s, recovery.wait_timeout))
        if verdict.outcome is Outcome.HOST_OOM:
            delay_s = MEMORY_PAUSE_S
    # An attempt that is not proven says nothing of the text, so that its failure is not charged. It
    # cannot be repeated for ever: the next attempt begins with a canary, and canaries are counted.
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
    """Stop with the verdict's exit code; if it has none, with `code`.

    What comes from the machine, its disk or its installation is `local`.
    """
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
    """Return half of a batch of that many rows as the new limit.

    If its padded tokens are known, they are halved, and the rows stay: a batch of short texts may
    have as many rows as before.
    """
    limits = verdict.limits
    if verdict.batch_tokens:
        longest = verdict.batch_tokens // rows
        return BatchLimit(limits.rows, max(longest * min_rows, verdict.batch_tokens // 2))
    tokens = limits.tokens and max(1, limits.tokens // 2)
    return BatchLimit(max(min_rows, min(rows, limits.rows) // 2), tokens)


def _wait_or_stop(verdict: Verdict, history: History, recovery: RecoveryConfig) -> Step:
    """Answer what passes with time: pause, until `recovery.wait_timeout` is over."""
    if verdict.rule == NO_ROOM:  # the weights did not fit into what was free
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
"""Where something is counted: on a device (its number), on a machine of a cluster (its name, empty
for our own), at a chunk (output, chunk), or in the whole run (None)."""

_WAITS = (Outcome.GPU_BUSY, Outcome.GPU_OOM, Outcome.HUB, Outcome.DISK_FULL)


Recall = Callable[[str], tuple[int, int | None] | None]
"""Gives (rows, padded tokens) of the batches that earlier runs have learnt for a kind of device."""


@dataclass(slots=True)
class _Streak:
    """How often something has happened since the last success, and when first and last."""

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

    def __init__(self, recall: Recall) -> None:
        self._recall = recall
        self._lessons = dict[str, BatchLimit | None]()
        self._streaks = dict[tuple[Repeated | Outcome, Where], _Streak]()
        self.success_s = -math.inf  # when something was stored last
        self.stored_outputs = set[int]()  # numbers of outputs of which this run has stored vectors
        self.working_places = set[
            Where
        ]()  # devices and machines on which a worker has done its work
        self.host_ooms = 0  # how often the machine's memory ran out

    # --- what repeats

    def count(
        self, what: Repeated | Outcome, where: Where = None, began_s: float = math.inf
    ) -> int:
        """Say how often it happened in a row; `began_s` is when the attempt in question began.

        If it began before the last time, both may have the same cause: that time does not count.
        """
        streak = self._streaks.get((what, where))
        return streak.count - (began_s < streak.last_s) if streak else 0

    def since_first_s(self, what: Repeated | Outcome, where: Where, now_s: float) -> float:
        """Say for how many seconds it has been happening: since the first time in this row."""
        streak = self._streaks.get((what, where))
        return now_s - streak.first_s if streak else 0.0

    def record(
        self,
        what: Repeated | Outcome,
        where: Where = None,
        began_s: float = math.inf,
        now_s: float = 0.0,
    ) -> None:
        """Count it once more, unless the attempt began before the last time; see `count`."""
        streak = self._streaks.setdefault((what, where), _Streak(0, now_s, -math.inf))
        if began_s >= streak.last_s:
            streak.count += 1
            streak.last_s = now_s

    def forget(self, what: Repeated | Outcome, where: Where = None) -> None:
        """Count from 0 again: it did not happen this time."""
        self._streaks.pop((what, where), None)

    def waited_s(self, outcome: Outcome, where: Where, now_s: float) -> float:
        """Say for how many seconds the run has waited for it without any success in between."""
        return min(self.since_first_s(outcome, where, now_s), now_s - self.success_s)

    # --- what succeeds

    def note_start(self, device: int, node: str, outcome: Outcome) -> None:
        """Note that a worker got to its first batch on the device; `outcome` is how it ended."""
        self.forget(Repeated.START, device)
        self.forget(Repeated.START, node)
        # A GPU may be found busy in a batch as well: then the wait continues.
        if outcome is not Outcome.GPU_BUSY:
            self.forget(Outcome.GPU_BUSY, device)

    def note_encoded(self, device: int, node: str) -> None:
        """Note that a worker has encoded all of its texts on the device."""
        self.note_start(device, node, Outcome.COMMITTED)
        self.working_places |= {device, node}
        for what in (Repeated.CANARY, *_WAITS):
            self.forget(what, device)

    def note_stored(self, output: int, now_s: float) -> None:
        """Note that vectors or verdicts of the output are on the disk."""
        self.success_s = now_s
        self.stored_outputs.add(output)
        for what in (Repeated.NO_PROGRESS, Repeated.GIVEN_UP, Repeated.UNANSWERED, *_WAITS):
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
            # Twice what an earlier run has learnt, since its cause may have passed. If it has not,
            # that costs one failure.
            self._lessons[kind] = old and BatchLimit(2 * old[0], old[1] and 2 * old[1])
        return self._lessons[kind]


def waiting_device(verdict: Verdict, device: int, node: str) -> int | None:
    """Return the device if it alone has to wait; None if all have to.

    A device waits alone for its own memory, and for the disk of its machine in a cluster.
    """
    own = verdict.outcome in (Outcome.GPU_BUSY, Outcome.GPU_OOM)
    return device if own or (verdict.outcome is Outcome.DISK_FULL and node) else None


def place_of_failed_start(verdict: Verdict, device: int, node: str) -> Where:
    """Return where a failed start is counted: on the device, or on its machine.

    A model that cannot be loaded is a matter of the machine on which it is installed.
    """
    outcomes = (Outcome.CRASHED, Outcome.BAD_OUTPUT, Outcome.SETUP)
    return node if verdict.phase in LOAD and verdict.outcome in outcomes else device


def smaller_limit(one: int | None, other: int | None) -> int | None:
    """Give the smaller of two limits; None is no limit."""
    return min((each for each in (one, other) if each is not None), default=None)
