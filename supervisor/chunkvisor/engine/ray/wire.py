"""The messages between parent, bridge and agents, in JSON, one a line."""

import sys
from dataclasses import field
from typing import Any

from chunkvisor.config.choices import Start
from chunkvisor.devices.gpu import Device
from chunkvisor.devices.handles import Site
from chunkvisor.version import __version__
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Beat, Limits, TemplateSpec

# It must be the same on all machines.
VERSION = f"chunkvisor {__version__} under Python {sys.version_info.major}.{sys.version_info.minor}"


@frozen
class Terms:
    """What holds for all nodes of a run: the first message to the bridge, and to each agent."""

    address: str  # of the cluster
    run_id: str
    version: str  # VERSION of the parent
    device: tuple[str, ...]  # as in the config
    per_device: int
    env: dict[str, str]
    start: Start  # the config's workers.start
    startup_s: float
    template: TemplateSpec  # the model, with its path on the parent's machine


@frozen
class NodeOrder:
    """From the parent to a node: start a worker (`folder`), or do one of the last three to it."""

    node: str  # Ray's id of the node
    worker: int = -1  # the parent's number for the worker
    folder: str = ""  # start the worker with the files in this folder on the parent's machine
    device: int = 0  # its position among the node's devices
    gate: Limits | None = None  # open the worker's gate
    leave: bool = False  # have the worker end after the batch under way
    signal: int | None = None  # send it to the worker and to all that it has started


@frozen
class Cluster:
    """How many nodes of the cluster cannot work yet, as the bridge sees it."""

    starting: int = 0  # their agent has not started: others may have the GPUs
    preparing: int = 0  # they may have to download the model
    why: str = ""  # there is nothing to work on


@frozen
class NodeReport:
    """A report of one thing, by the bridge, by a node, or of one of the node's workers.

    Which it is, the first field says that is set: up, gone, preparing, pid, beat, returncode, event
    or cluster. The fields under each belong to it.
    """

    node: str = ""
    worker: int = -1
    up: Site | None = None  # the node can work, on these devices
    devices: tuple[Device, ...] = ()
    gone: str | None = None  # the node is lost with all its workers, and why
    aside: str = ""  # this is its name, and it cannot do this job: it is not asked again
    remedy: str = ""
    code: int = 0  # with which the run ends if no node is left
    preparing: bool | None = None  # whether a template loads: nothing is to be started
    pid: int | None = None  # the worker has been started, as this process of its node
    warm: bool = False  # how that worker was started, or can be
    beat: Beat | None = None  # as it was when the worker called, or just now
    returncode: int | None = None  # the worker has ended, and its files are where they belong
    oom_kills: int = 0  # on its node, while it ran
    event: str = ""  # an event for the journal
    details: dict[str, Any] = field(default_factory=dict)
    cluster: Cluster | None = None
