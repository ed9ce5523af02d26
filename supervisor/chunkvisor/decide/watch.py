"""Decides whether a living worker has stopped making progress.

Pure: the caller says what time it is, by a clock that does not jump.
"""

from dataclasses import dataclass, replace
from typing import Self

from chunkvisor.config.model import Config
from chunkvisor_worker.contract.messages import Beat, Phase

_STARTING = frozenset(
    {Phase.START, Phase.IMPORT, Phase.MODEL_LOAD, Phase.TOKENIZE, Phase.CUDA_INIT, Phase.WEIGHTS_COPY}
)


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of the config, in seconds."""

    startup_s: float = 600
    """Until the first batch begins, the wait at the gate not counted."""
    stall_s: float = 300
    """Without progress after that; also without a sign of life while it tokenises."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """That of the config."""
        return cls(config.recovery.startup_timeout, config.recovery.stall_timeout)


_GAP_S = 1.0
"""Longer than any pause of the loop is late on a machine that is only busy."""


def gap(meant_s: float, took_s: float) -> float:
    """How long the loop stood still, from a pause that was to be so long and took so long; 0 = it was only late."""
    return took_s - meant_s if took_s - meant_s > _GAP_S else 0.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """A worker's signs of life, timed by the supervisor's own clock: the worker's may lie or stand still."""

    started_s: float
    """When the start-up time began to count."""
    changed_s: float
    """When the last new beat was seen."""
    beat: Beat | None = None

    @classmethod
    def begin(cls, now_s: float) -> "Pulse":
        """The pulse of a worker started just now."""
        return cls(now_s, now_s)

    def seen(self, beat: Beat | None, now_s: float) -> "Pulse":
        """The pulse after the beat file was read; None, or the beat seen before, is no sign of life."""
        if beat is None or (self.beat is not None and beat.seq == self.beat.seq):
            return self
        return replace(self, beat=beat, changed_s=now_s)

    def let_go(self, now_s: float, waited_s: float) -> "Pulse":
        """The pulse when the gate opens after `waited_s` at it: start-up time goes on where it stopped."""
        return replace(self, started_s=self.started_s + waited_s, changed_s=now_s)

    def forgive(self, gap_s: float) -> "Pulse":
        """The pulse after a time in which nobody could look, since the machine or its container stood still."""
        return replace(self, started_s=self.started_s + gap_s, changed_s=self.changed_s + gap_s)

    @property
    def freed(self) -> bool:
        """Whether it has given its device back."""
        return self.beat is not None and self.beat.freed

    @property
    def phase(self) -> Phase:
        """The phase last heard of."""
        return self.beat.phase if self.beat else Phase.START

    def overdue(self, now_s: float, patience: Patience, *, at_gate: bool) -> str:
        """Why the worker is to be ended, in words; empty while there is no reason."""
        silent_s, age_s = now_s - self.changed_s, now_s - self.started_s
        if at_gate:
            return ""
        if self.phase in _STARTING or self.phase is Phase.READY:
            if age_s > patience.startup_s:
                return f"no batch begun {age_s:.0f} s after its start (phase {self.phase}, startup_timeout)"
            return ""
        if silent_s > patience.stall_s:
            return f"no progress for {silent_s:.0f} s in phase {self.phase} (stall_timeout)"
        return ""
