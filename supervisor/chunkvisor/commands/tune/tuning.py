"""What was tried, and what came of it."""

from dataclasses import dataclass

from chunkvisor.commands.tune.candidates import Candidate
from chunkvisor.commands.tune.compare import Measured


@dataclass(frozen=True, slots=True)
class Tuning:
    """All that was tried."""

    measured: tuple[Measured, ...]
    """In the order in which it was tried; the first is float32."""
    best: Measured | None
    sample: int
    """Texts that each was tried on."""
    texts: int
    """Distinct texts of the whole job."""
    devices: int
    configured: Candidate
    """What the config asks for now."""
    note: str = ""
    vectors_fixed: bool = False
    """Outputs have begun: the recommended setting is one that makes their vectors, however near to float32."""

    @property
    def changes(self) -> dict[tuple[str, str], int | str]:
        """Section and key -> the recommended value, where the config has another."""
        if self.best is None:
            return {}
        now = self.configured.values()
        return {place: value for place, value in self.best.candidate.values().items() if now[place] != value}

    def hours(self, measured: Measured) -> float | None:
        """What the whole job would take at that rate."""
        rate = measured.texts_per_s * self.devices
        return self.texts / rate / 3600 if rate else None
