"""Events of the model: it is looked for, read, converted, and what came of that."""

from chunkvisor.events.event import Event, Severity, event
from chunkvisor.units import counted


@event("asking the model hub for {model}")
class Resolving(Event):
    model: str
    near: str = ""
    """A model's folder here with nearly that name."""


@event()
class CheckingModel(Event):
    """The files of a local model are read."""

    model: str


@event("converting {model} for {backend}{in_int8}, once for this workdir")
class ConvertingModel(Event):
    model: str
    backend: str
    dtype: str = ""
    """Of the config."""

    @property
    def in_int8(self) -> str:
        """What else is done to it, in words."""
        return ", and quantising it to int8" if self.dtype == "int8" else ""


@event("{sentence}")
class ModelQuantized(Event):
    """The model is in int8 now; its vectors were compared with those in float32."""

    calibrated: int
    """Texts of the run by which it was quantised."""
    compared: int
    """Texts that were compared: other ones, unless there are very few."""
    mean_cosine: float
    least_cosine: float
    neighbours: float
    """Share of the ten nearest among these that are the same."""

    @property
    def sentence(self) -> str:
        """How near the vectors are."""
        made = f"quantised to int8 by {counted(self.calibrated, 'text')} of this run"
        cosine = f"cosine to float32 {self.mean_cosine:.4f}, least {self.least_cosine:.4f}"
        return f"{made}; vectors of {self.compared:,} others: {cosine}; {self.neighbours:.0%} of the ten nearest stay"


@event(
    "the least cosine of a vector in int8 to float32 is {least_cosine:.4f}: "
    "try how your searches do with it, or set model.dtype to float32",
    Severity.CARE,
)
class CosineLow(Event):
    """Vectors in int8 are far from those in float32."""

    least_cosine: float


@event("{reason}", Severity.CARE)
class SlowDtype(Event):
    """The model computes in a dtype for which this processor has no instructions."""

    reason: str
