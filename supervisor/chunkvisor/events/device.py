"""Events of devices, of the nodes of a cluster, and of the template process that workers are forked from."""

from chunkvisor.events.event import Event, Severity, event


@event()
class LookingForGpus(Event):
    """nvidia-smi is asked which GPUs there are."""


@event(
    "nvidia-smi does not list the GPUs: the run goes on with {count:GPU}, whose memory and health it cannot look at. "
    "`chunkvisor doctor` says more",
    Severity.CARE,
)
class GpusGuessed(Event):
    count: int


@event("a GPU has fallen off the bus, and the run uses the others; nvidia-smi says: {why}", Severity.LOSS)
class GpuLost(Event):
    why: str = ""


@event()
class CheckingDevice(Event):
    """nvidia-smi is asked how a device is, before the first worker."""

    device: str


@event()
class DevicesChecked(Event):
    """Workers can be started."""

    count: int = 0


@event("node {node} has joined, with {device}")
class NodeJoined(Event):
    node: str
    device: str
    """All its devices, with commas."""
    first: int
    """Number of the first of them."""


@event("node {node} is lost, {left:device} left; its chunks are done elsewhere: {why}", Severity.CARE)
class NodeLost(Event):
    node: str
    left: int = 0
    """Devices that still work."""
    why: str = ""


@event("node {node} is left out, {left:device} left: {why}", Severity.LOSS)
class NodeSetAside(Event):
    """A node cannot do the job."""

    node: str
    left: int = 0
    why: str = ""


@event("{device} is left out, {left:device} left: {why}", Severity.LOSS)
class DeviceDropped(Event):
    device: str
    left: int = 0
    why: str = ""


@event("{device}: waiting, {why}", Severity.CARE)
class GpuBusy(Event):
    device: str
    why: str = ""


@event("{device}: {why}; going on without its readings, CUDA may work all the same")
class GpuBlind(Event):
    """Nothing can be learnt of the GPU."""

    device: str
    why: str = ""


@event()
class TemplateEvent(Event):
    """About the process that warm workers are forked from."""

    pid: int = 0
    """0 = on another machine."""
    node: str = ""
    """Empty = on this one."""


@event()
class TemplateStarted(TemplateEvent):
    """It begins to load the model."""


@event()
class TemplateReady(TemplateEvent):
    """Workers can be forked from it."""

    loaded_s: float = 0.0


@event()
class TemplateFailed(TemplateEvent):
    """It has died, hung or refused."""

    reason: str = ""


@event(
    "from now on every worker starts afresh: the template process, from which they were forked, failed: {reason}",
    Severity.CARE,
)
class WarmGivenUp(TemplateEvent):
    reason: str = ""
