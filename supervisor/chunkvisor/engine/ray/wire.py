"""What supervisor, bridge and agents say to each other, one JSON message a line."""

from dataclasses import dataclass, field
from typing import Any

from chunkvisor.devices.gpu import Device
from chunkvisor.devices.health import Reading
from chunkvisor.errors import ExitCode
from chunkvisor_worker.contract.messages import Beat, Limits, TemplateSpec

NO_WORKER = -1


@dataclass(frozen=True, slots=True)
class Model:
    """Which model's files a node must have."""

    name: str
    """Hub id, or local folder."""
    path: str | None
    """Where they are on the supervisor's machine; None for a plug-in, which needs none."""
    revision: str | None
    """Commit hash of the hub, or `sha256:…` of a local folder."""
    backend: str = "torch"


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for all nodes of a run."""

    run_id: str
    version: str
    """Of chunkvisor."""
    machine: str
    """The supervisor's, as `readiness.this_machine` names it."""
    workdir: str
    shared: bool
    """Whether the nodes see the supervisor's folders."""
    device: tuple[str, ...]
    """As in the config."""
    per_device: int
    env: dict[str, str]
    start: str
    """A config.Start."""
    startup_s: float
    model: Model
    template: TemplateSpec


@dataclass(frozen=True, slots=True)
class Begin:
    """The first line to the bridge; the others are orders."""

    address: str
    terms: Terms


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a worker; what it needs lies in `folder`."""

    folder: str
    """Of the attempt, on the supervisor's machine."""
    device: int
    """Position among the node's devices."""
    fresh: bool
    blocking_launches: bool


@dataclass(frozen=True, slots=True)
class Demanded:
    """How much work there is for a template, see Starter.expect."""

    pending: int
    at_once: int


@dataclass(frozen=True, slots=True)
class Order:
    """Towards the workers: to the bridge, to a node, or to one of its workers. It says one thing."""

    node: str = ""
    """By Ray's number; empty = the bridge itself, which knows but `close`."""
    worker: int = NO_WORKER
    """By the supervisor's number."""
    launch: Launch | None = None
    gate: Limits | None = None
    """Open the worker's gate."""
    leave: bool = False
    """Have the worker end after the batch under way."""
    signal: int | None = None
    """Send it to the worker and to all that it has started."""
    look: int | None = None
    """Ask nvidia-smi about the GPU at this position among the node's devices."""
    demanded: Demanded | None = None
    discard: bool = False
    """From the bridge: the worker's files are no longer needed."""
    release: bool = False
    """Do without the node."""
    close: bool = False


@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node can work."""

    name: str
    """For people."""
    devices: tuple[Device, ...]
    readings: tuple[Reading, ...]
    """Of the devices that are watched GPUs, in their order."""
    threads: int
    model_path: str | None


@dataclass(frozen=True, slots=True)
class NodeAside:
    """A node cannot do this job; it is not asked again."""

    name: str
    why: str
    remedy: str
    code: int = int(ExitCode.MACHINE)
    """With which the run ends if no node is left."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """What changes while a node works."""

    room: bool
    """Memory for one more worker."""
    holding: bool = False
    """A template is getting ready: nothing is to be started."""
    warm: bool = False
    """Whether a worker can be forked."""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker has been started."""

    pid: int
    """On its node."""
    warm: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker has ended, and its files are where they belong."""

    returncode: int
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class Looked:
    """The answer to a look."""

    device: int
    reading: Reading


@dataclass(frozen=True, slots=True)
class Told:
    """An event for the journal."""

    event: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cluster:
    """How the bridge gets on with the cluster."""

    starting: int = 0
    """Nodes on which there is no agent yet: Ray is asked for one, or others have the GPUs."""
    preparing: int = 0
    """Nodes that get ready; the model may have to be downloaded."""
    without: int = 0
    """Nodes without such a device as the config asks for."""
    down: str = ""
    """Why the cluster cannot be reached now."""
    refused: str = ""
    """Why it will not be, whatever one waits for."""


@dataclass(frozen=True, slots=True)
class Report:
    """From the bridge, a node, or one of its workers. It says one thing."""

    node: str = ""
    worker: int = NO_WORKER
    up: NodeUp | None = None
    gone: str | None = None
    """The node is lost with all its workers, and why."""
    aside: NodeAside | None = None
    state: NodeState | None = None
    started: Started | None = None
    heard: bool = False
    """The worker has called, or its beat has changed."""
    beat: Beat | None = None
    ended: Ended | None = None
    looked: Looked | None = None
    told: Told | None = None
    cluster: Cluster | None = None
