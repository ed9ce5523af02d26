"""What a supervisor and its template process say to each other, one JSON message a datagram.

The socket is a SOCK_SEQPACKET one; descriptors travel beside the messages.
"""

from dataclasses import dataclass, field

from chunkvisor_worker.contract.messages import ModelSpec

MESSAGE_LIMIT_BYTES = 64 << 10
"""No message is longer; a socket's buffer holds several of them (socket(7), wmem_default)."""


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """What a template loads."""

    model: ModelSpec
    device: str
    """"cpu" or "cuda", for the workers to come; the template itself touches no device."""
    import_path: tuple[str, ...] = ()
    """Folders put on sys.path for a plug-in encoder."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Start a worker; beside it come two descriptors, for its standard input and for its log."""

    folder: str
    """Of the attempt."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that the worker has and the template has not, or has with another value."""
    removed: tuple[str, ...] = ()
    """Variables that only the template has."""


@dataclass(frozen=True, slots=True)
class Order:
    """From the supervisor; one of the two."""

    fork: Fork | None = None
    reap: int | None = None
    """The pid of an ended worker: its group is dead, its number may be given away."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker is a zombie; it stays one until it is to be reaped."""

    pid: int
    returncode: int
    """As subprocess gives it: negative for a signal."""


@dataclass(frozen=True, slots=True)
class Report:
    """From the template; one of them."""

    loaded_s: float | None = None
    """How long it took to load; it forks from now on."""
    unfit: str | None = None
    """It is no template to fork from, and why; fault.json in its folder may say more."""
    forked: int | None = None
    """The pid of the worker asked for; beside it comes its pidfd."""
    not_forked: str | None = None
    """Why there is no worker."""
    ended: Ended | None = None
