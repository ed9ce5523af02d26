"""Events of the model: it is looked for and read."""

from chunkvisor.events.event import Event, Severity, event


@event("asking the model hub for {model}")
class Resolving(Event):
    model: str
    near: str = ""
    """A model's folder here with nearly that name."""


@event()
class CheckingModel(Event):
    """The files of a local model are read."""

    model: str


@event("{reason}", Severity.CARE)
class UnfitDtype(Event):
    """The model computes in a dtype that does not suit the device: why, and which one to take."""

    reason: str


@event("{text}", Severity.CARE)
class ModelWarning(Event):
    """What the model's files, or the libraries while they loaded it, warn of; each once a run."""

    text: str
