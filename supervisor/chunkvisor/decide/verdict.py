"""What became of an attempt, and what that means for the next."""

from dataclasses import dataclass

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits, Phase
from chunkvisor_worker.contract.rule import BEFORE_WORK, OomFigures
from chunkvisor_worker.contract.rules import OF_GPUS, RULES

ONE_ROW = Limits(rows=1)

_WEIGHTS_DID_NOT_FIT = frozenset(rule.name for rule in RULES if rule.exit_code_alone is not None)
"""Rules by which the GPU had no room for the weights; other reasons to wait for a GPU say nothing of its memory."""

_CAUSES = {rule.name: rule.cause.rstrip(".") for rule in RULES}

_ON_THE_DEVICE = frozenset(
    {
        *(Outcome.GPU_OOM, Outcome.GPU_BUSY, Outcome.DEVICE_FAULT, Outcome.HARDWARE_FAULT),
        *(Outcome.CRASHED, Outcome.HUNG, Outcome.HOST_OOM, Outcome.SETUP, Outcome.INTERRUPTED),
    }
)
"""Outcomes that can leave something behind on a GPU, or come from it, where the worker had one."""


def without_cause(reason: str, rule: str) -> str:
    """What the reason of an attempt says beyond the cause that its rule gives, with which it begins."""
    cause = _CAUSES.get(rule, "")
    return reason.removeprefix(cause).lstrip(":. ") if cause else reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an attempt, and what that means for the next."""

    outcome: Outcome
    reason: str
    """One sentence for the person."""
    remedy: str = ""
    rule: str = ""
    """Which row of the taxonomy, where one matched; docs/reference/failures.md has an entry for each."""
    exit_code: int | None = None
    """With which code the run ends if this fault ends it; None = the policy's own for the outcome."""
    smaller_batch_helps: bool = True
    """Of an out-of-memory fault; False where what ran out has nothing to do with batches."""
    row_can_cause: bool = False
    bad_rows: tuple[int, ...] = ()
    """Positions, in the attempt, of rows with bad vectors, where all others are good."""
    asked_for: bool = False
    """An interruption that the supervisor itself brought about."""
    limits: Limits = ONE_ROW
    batch_rows: int = 0
    batch_tokens: int = 0
    phase: Phase | None = None
    rows_done: int = 0
    """Texts that had their vectors before it happened."""
    figures: OomFigures | None = None
    """Of the GPU's memory, where torch's message of running out of it has them."""
    on_cpu: bool = False
    """The worker was given no GPU."""
    raised_at: str = ""
    """File and line of the last frame outside of packages and of our own worker; empty where there is none."""

    @property
    def gpu_error_on_cpu(self) -> bool:
        """Whether it looks like a fault of a GPU, and there was none."""
        return self.on_cpu and self.rule in OF_GPUS

    @property
    def why(self) -> str:
        """The reason, for the end of a run; without what a rule says of a GPU that there is not."""
        if not self.gpu_error_on_cpu:
            return self.reason
        return f"in a run on the CPU, an error of a GPU: {without_cause(self.reason, self.rule) or self.reason}"

    @property
    def others_hold_memory(self) -> bool:
        """Whether others are seen to hold more of the GPU's memory than this worker did."""
        figures = self.figures
        return figures is not None and figures.others_named and figures.others_bytes > figures.ours_bytes

    @property
    def see(self) -> str:
        """The handbook's entry about it: its rule, or what became of the attempt where no rule knew it."""
        return self.rule or str(self.outcome)

    @property
    def other_dimension(self) -> bool:
        """Whether all its vectors have another dimension than those before."""
        return self.outcome is Outcome.BAD_OUTPUT and self.row_can_cause and not self.rule and not self.bad_rows

    @property
    def before_first_batch(self) -> bool:
        """Whether no batch had begun, so that no text can be the cause.

        Tokenising touches texts: a tokenizer that dies may do so over one of them.
        """
        return self.phase in BEFORE_WORK and self.phase is not Phase.TOKENIZE

    @property
    def past_its_start(self) -> bool:
        """Whether it had got to its first batch."""
        return self.phase in (Phase.FORWARD, Phase.WRITE, Phase.DONE)

    @property
    def weights_did_not_fit(self) -> bool:
        """Whether the GPU had no room for the model, whoever held it."""
        return self.rule in _WEIGHTS_DID_NOT_FIT

    @property
    def fitted_before(self) -> bool:
        """Whether as many rows as the failed batch had were done before it: longer ones, since those come first."""
        return self.rows_done >= self.batch_rows > 0

    @property
    def refused_by_encoder(self) -> bool:
        """Whether the encoder itself would not do it, by an exception of its own or by what it gave: no device's doing.

        A crash, a hang or an error of CUDA can always be.
        """
        return self.outcome is Outcome.BAD_OUTPUT or self.rule == "unknown-on-texts"

    @property
    def can_touch_gpu(self) -> bool:
        """Whether a worker that had a GPU may have left something behind on it, or failed by it."""
        return self.outcome in _ON_THE_DEVICE and not self.asked_for

    @property
    def blameless(self) -> bool:
        """Whether it says nothing of texts, config or devices, however often it comes."""
        return self.asked_for or self.outcome is Outcome.LOST
