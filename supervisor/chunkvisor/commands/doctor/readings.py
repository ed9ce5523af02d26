"""What the doctor reads of a machine and a job, as plain facts: `facts` gathers them, the checks judge them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from chunkvisor.decide.verdict import Verdict
from chunkvisor.devices.torchprobe import ProbeReading
from chunkvisor.engine.modelchecks import ModelFindings
from chunkvisor.engine.ray.survey import Survey
from chunkvisor.ingest.sourcesize import SourceSize
from chunkvisor_worker.contract.arithmetic import LinearKernel


class Wanted(StrEnum):
    """Where the job is to compute."""

    CUDA = "cuda"
    CPU = "cpu"
    ANYTHING = "anything"
    """No config was given."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str = ""
    used_bytes: int | None = None
    """None = the driver does not tell."""
    is_worker: bool = False
    """It belongs to a run of chunkvisor."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU as nvidia-smi describes it; what it does not tell is empty, zero, False or None."""

    uuid: str = ""
    name: str = ""
    total_bytes: int = 0
    used_bytes: int = 0
    compute_mode: str = ""
    mig: bool = False
    mig_slices: int = 0
    ecc_uncorrectable: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    remap_pending: bool = False
    remap_failed: bool = False
    recovery_action: str = ""
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class SmiReading:
    """What `nvidia-smi -q -x` answered."""

    returncode: int | None = None
    """None = it does not exist, or gave no answer in time."""
    line: str = ""
    """Its first line, where it failed."""
    driver: str = ""
    cuda: str = ""
    """Highest CUDA version that the driver serves, such as 12.9."""
    gpus: tuple[GpuReading, ...] = ()


@dataclass(frozen=True, slots=True)
class DriverReading:
    """The kernel's side of the NVIDIA driver."""

    module: str | None = None
    """Version of the loaded kernel module."""
    nodes: tuple[str, ...] = ()
    """/dev/nvidia* that are there."""
    forbidden: tuple[str, ...] = ()
    """Those of them that this user cannot open."""


@dataclass(frozen=True, slots=True)
class FolderReading:
    """A folder that a run writes into; where it does not exist yet, the rest is of the nearest one above it."""

    path: str
    free_bytes: int | None = None
    free_files: int | None = None
    """Inodes; None where the file system has no such limit."""
    writable: bool = True


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine, or the container's share of it; None = cannot be told."""

    cpus: int = 1
    memory_bytes: int | None = None
    """What may be used in all: the machine's, or the container's limit where that is lower."""
    memory_available_bytes: int | None = None
    shm_bytes: int | None = None
    """Size of /dev/shm."""
    tasks_left: int | None = None
    """Processes and threads that may still be started; None = no limit."""
    tasks_limit: str = ""
    """Where that limit stands."""
    files: int | None = None
    """Soft limit of open files of a process."""


@dataclass(frozen=True, slots=True)
class HubReading:
    """The local cache of the model hub, and how the hub would be asked."""

    cache: FolderReading
    has_token: bool = False
    offline: bool = False


class Whereabouts(StrEnum):
    """Where the model's files are."""

    PLUGIN = "plugin"
    """Whatever the plug-in makes of the name."""
    FOLDER = "folder"
    CACHED = "cached"
    HUB = "hub"
    """Not here yet: the first run downloads it."""
    NOWHERE = "nowhere"
    """A path without a model."""


@dataclass(frozen=True, slots=True)
class SampleReading:
    """What a worker made of the sample texts: the first and the last are equal, the one between differs."""

    verdict: Verdict
    dimension: int = 0
    difference: float = 0.0
    """Largest difference between the two vectors of the same text, relative to their largest component."""
    tells_apart: bool = True
    """Another text got another vector."""
    where: str = ""
    """On which device or for which outputs, where there is more than one sample."""
    log_line: str = ""
    """The last of the worker's log, where it failed."""
    linear: LinearKernel | None = None
    """What computed the linear layers on the CPU."""
    elsewhere: float = 0.0
    """Largest difference to the vectors that a second process made of the same texts, relative to their largest
    component; 0 if there was none."""
    unexpected: str = ""
    """How the vectors are not those of `model.expect`."""
    notes: tuple[str, ...] = ()
    """What the libraries warned of while they loaded the model."""


@dataclass(frozen=True, slots=True)
class SourceReading:
    """The first row of an output."""

    output: str
    problem: tuple[str, str] | None = None
    """(what, mend) where it cannot be read."""
    size: SourceSize | None = None
    """None where it cannot be told, or need not."""
    note: str = ""
    """What of its text is probably not meant."""


@dataclass(frozen=True, slots=True)
class JobReading:
    """The config's model, and what its outputs need."""

    model: str
    whereabouts: Whereabouts
    problem: str = ""
    """Why the model is nowhere."""
    findings: ModelFindings = field(default_factory=ModelFindings)
    """What its files show."""
    no_download: Verdict | None = None
    """Why the hub does not give a model that is to be downloaded; None = it has it, or was not asked."""
    weights_bytes: int | None = None
    """Of the weight files; None = unknown."""
    workers: int = 1
    """Held in memory at once: at work and on standby."""
    workdir: FolderReading = FolderReading("")
    rows: int | None = None
    """Of all outputs together that are not complete; None where no run has counted them yet."""
    dimension: int = 0
    """Of the vectors, from an earlier run; 0 = unknown."""
    busy_pid: int | None = None
    """Of a run that is at work in the workdir."""
    dtype: str | None = None
    """In which the model computes; None = not known."""
    model_type: str | None = None
    """As its config.json has it."""
    cpu_has_bfloat16: bool = True
    samples: tuple[SampleReading, ...] = ()
    sources: tuple[SourceReading, ...] = ()
    expected: tuple[str, int] | None = None
    """`model.expect`: its path, and how many texts it has."""
    expect_problem: tuple[str, str] | None = None
    """(what, mend) if that file cannot be used."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Everything that was read."""

    wanted: Wanted = Wanted.ANYTHING
    chosen: tuple[str, ...] = ()
    """UUIDs of the GPUs that the job will take; numbers, where nvidia-smi cannot tell."""
    no_device: tuple[str, str] | None = None
    """(why, mend) where the config's device is not there."""
    config_problem: tuple[str, str] | None = None
    """(what, mend) where the config cannot be read."""
    own: Mapping[str, str] = field(default_factory=dict)
    """Environment of the command; only the variables that are looked at."""
    workers: Mapping[str, str] = field(default_factory=dict)
    """Environment that its workers get."""
    from_config: frozenset[str] = frozenset()
    """Names that the config's `env` sets."""
    smi: SmiReading = SmiReading()
    driver: DriverReading = DriverReading()
    probe: ProbeReading = field(default_factory=ProbeReading)
    host: HostReading = HostReading()
    hub: HubReading = HubReading(FolderReading(""))
    job: JobReading | None = None
    cluster: Survey | None = None
    """The config's Ray cluster; None = it uses none."""
