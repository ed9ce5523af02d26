"""Events of devices, of the nodes of a cluster, and of the template process that workers are forked from."""

from dataclasses import dataclass
from typing import ClassVar

from chunkvisor.events.event import Event, Severity


@dataclass(frozen=True, slots=True)
class NodeJoined(Event):
    """A node of the cluster works from now on."""

    words: ClassVar[str] = "node {node} works from now on, on {device}"

    node: str
    device: str
    """All its devices, with commas."""
    first: int
    """Number of the first of them."""


@dataclass(frozen=True, slots=True)
class NodeLost(Event):
    """A node is gone."""

    words: ClassVar[str] = "node {node} is lost, {left} devices go on; its chunks are done elsewhere: {why}"
    severity: ClassVar[Severity] = Severity.CARE

    node: str
    left: int = 0
    """Devices that still work."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class NodeSetAside(Event):
    """A node cannot do the job."""

    words: ClassVar[str] = "node {node} is left out from now on, {left} devices go on: {why}"
    severity: ClassVar[Severity] = Severity.LOSS

    node: str
    left: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeviceDropped(Event):
    """A device cannot do the job."""

    words: ClassVar[str] = "{device} is left out from now on, {left} go on: {why}"
    severity: ClassVar[Severity] = Severity.LOSS

    device: str
    left: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class GpuBusy(Event):
    """Somebody else uses the GPU."""

    words: ClassVar[str] = "{device}: waiting, {why}"
    severity: ClassVar[Severity] = Severity.CARE

    device: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class GpuBlind(Event):
    """Nothing can be learnt of the GPU."""

    words: ClassVar[str] = "{device}: {why}; going on without, CUDA may work all the same"

    device: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class TemplateEvent(Event):
    """About the process that warm workers are forked from."""

    pid: int = 0
    """0 = on another machine."""
    node: str = ""
    """Empty = on this one."""


@dataclass(frozen=True, slots=True)
class TemplateStarted(TemplateEvent):
    """It begins to load the model."""


@dataclass(frozen=True, slots=True)
class TemplateReady(TemplateEvent):
    """Workers can be forked from it."""

    loaded_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TemplateFailed(TemplateEvent):
    """It has died, hung or refused."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class WarmGivenUp(TemplateEvent):
    """Every worker is started fresh from now on."""

    words: ClassVar[str] = "from now on every worker is a new interpreter; the template process failed: {reason}"
    severity: ClassVar[Severity] = Severity.CARE

    reason: str = ""
