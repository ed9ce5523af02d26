"""What supervisor, bridge and agents say to each other, one JSON message a line.

It never touches a socket, and nothing of Ray.
"""

from dataclasses import dataclass, field
from typing import Any

from chunkvisor.devices.gpu import Device
from chunkvisor.devices.health import Reading
from chunkvisor.errors import ExitCode
from chunkvisor_worker.contract.messages import Beat, Limits
from chunkvisor_worker.contract.template import TemplateSpec


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
    """To the bridge, first of all."""

    address: str
    terms: Terms


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a worker; what is needed for it lies in `folder`."""

    worker: int
    """Number by which both sides know it."""
    node: str
    folder: str
    """Of the attempt, on the supervisor's machine."""
    device: int
    """Position among the node's devices."""
    fresh: bool
    blocking_launches: bool


@dataclass(frozen=True, slots=True)
class Gate:
    """Open a worker's gate."""

    node: str
    worker: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to a worker and all that it has started."""

    node: str
    worker: int
    number: int


@dataclass(frozen=True, slots=True)
class Look:
    """Ask nvidia-smi of a node about one of its GPUs."""

    node: str
    device: int


@dataclass(frozen=True, slots=True)
class Demanded:
    """How much work there is for a template, see Starter.open."""

    node: str
    pending: int
    at_once: int


@dataclass(frozen=True, slots=True)
class Order:
    """Towards the workers; one of them."""

    begin: Begin | None = None
    launch: Launch | None = None
    gate: Gate | None = None
    signal: Signal | None = None
    look: Look | None = None
    demanded: Demanded | None = None
    discard: int | None = None
    """From the bridge: a worker's files are no longer needed."""
    release: str | None = None
    """Do without this node."""
    close: bool = False


@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node can work."""

    node: str
    name: str
    devices: tuple[Device, ...]
    readings: tuple[Reading, ...]
    """Of the devices that are watched GPUs, in their order."""
    threads: int
    model_path: str | None


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node is lost, with all its workers."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class NodeAside:
    """A node cannot do this job; it is not asked again."""

    node: str
    name: str
    why: str
    remedy: str
    code: int = int(ExitCode.MACHINE)
    """With which the run ends if no node is left."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """What changes while a node works."""

    node: str
    room: bool
    """Memory for one more worker."""
    holding: bool = False
    """A template is getting ready: nothing is to be started."""
    warm: bool = False
    """Whether a worker can be forked."""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker has been started."""

    worker: int
    pid: int
    """On its node."""
    warm: bool


@dataclass(frozen=True, slots=True)
class Heard:
    """A worker's beat has changed, or it has called."""

    worker: int
    beat: Beat | None
    called: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker has ended, and its files are where they belong."""

    worker: int
    returncode: int
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class Looked:
    """The answer to a Look."""

    node: str
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
    """From the workers' side; one of them."""

    up: NodeUp | None = None
    gone: NodeGone | None = None
    aside: NodeAside | None = None
    state: NodeState | None = None
    started: Started | None = None
    heard: Heard | None = None
    ended: Ended | None = None
    looked: Looked | None = None
    told: Told | None = None
    cluster: Cluster | None = None
