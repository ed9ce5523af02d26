"""Reads what the doctor needs to know of a machine and a job, as plain facts; the checks judge them."""

import os
import re
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import psutil

from chunkvisor.assemble.manifest import read_done_manifest
from chunkvisor.config.choices import EngineKind
from chunkvisor.config.load import LoadedConfig, load
from chunkvisor.config.model import Config, ModelConfig, encode_spec, model_spec
from chunkvisor.devices.gpu import Device, ProbeReading, ask_smi, ask_torch, find_devices, has_bfloat16, processor_flags
from chunkvisor.engine.modelchecks import ModelFindings, check_model_files
from chunkvisor.engine.modelfolder import ModelFolder, computed_dtype, read_model_folder
from chunkvisor.engine.modelsource import ModelSource, fetch_model, source_at_hand
from chunkvisor.engine.ray.wire import Survey, survey
from chunkvisor.engine.trial import Conditions, Expected, environment_of, read_expected, try_texts
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import plain
from chunkvisor.judge import Patience, Verdict
from chunkvisor.show.status import State, read_status
from chunkvisor.sources.child import SourceSize, measure_source, try_first_row
from chunkvisor.store.artifact import Vectors
from chunkvisor.store.identity import read_facts, read_staged
from chunkvisor.store.layout import Layout
from chunkvisor.store.records import DamagedError
from chunkvisor.supervise.session import require_extras
from chunkvisor.supervise.staging import request_of
from chunkvisor_worker.contract.exits import RUN_ID, Outcome
from chunkvisor_worker.contract.messages import ONLY_ASK, EncodeSpec, LinearKernel

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Both work in torch 2.9 and later; the first wins where both are set (seen with 2.14)."""
UNREAD = ("PYTORCH_NO_NVML", "C10_DISABLE_NVML", "CUDA_DISABLE_NVML", "C10_CUDA_USE_NVML")
"""No library of torch 2.14 holds these names."""
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
SEGMENTS_IPC = "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"
TF32 = "NVIDIA_TF32_OVERRIDE"
READ = (
    *ALLOCATOR, *UNREAD, UNCACHED, SEGMENTS_IPC, TF32,
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "LD_LIBRARY_PATH",
)  # fmt: skip
"""The variables that are looked at; no other is handed in, so that none can be shown by accident."""


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


_SHM = Path("/dev/shm")  # noqa: S108 - its size is read, nothing is put there
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" of memory as a number near 2**63."""
_MEMORY_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""(limit, in use), of cgroup v2 and of v1."""


def read_host() -> HostReading:
    """Memory and limits of the machine, or of the container where that has less."""
    machine = psutil.virtual_memory()
    memory_bytes, available_bytes = int(machine.total), int(machine.available)
    if (share := memory_limit()) is not None:
        memory_bytes, available_bytes = min(memory_bytes, share[0]), min(available_bytes, share[1])
    left, limit = _tasks()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shm_bytes = None
    with suppress(OSError):
        shm = os.statvfs(_SHM)
        shm_bytes = shm.f_blocks * shm.f_frsize
    return HostReading(
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes,
        memory_available_bytes=available_bytes,
        shm_bytes=shm_bytes,
        tasks_left=left,
        tasks_limit=limit,
        files=None if files == resource.RLIM_INFINITY else files,
    )


def read_folder(path: Path) -> FolderReading:
    """The folder; where it does not exist yet, what holds of the nearest one above it."""
    wanted = str(path)
    while not path.exists() and path != path.parent:
        path = path.parent
    writable = path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    try:
        stat = os.statvfs(path)
    except OSError:
        return FolderReading(wanted, writable=writable)
    # btrfs and others have no fixed number of inodes, and say 0.
    free_files = stat.f_favail if stat.f_files else None
    return FolderReading(wanted, stat.f_bavail * stat.f_frsize, free_files, writable)


def read_hub(environment: Mapping[str, str]) -> HubReading:
    """The cache and the token, found as huggingface_hub finds them (its constants.py)."""
    cache_home = environment.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    home = Path(environment.get("HF_HOME") or Path(cache_home) / "huggingface").expanduser()
    cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or home / "hub"
    has_token = any(environment.get(name) for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
    with suppress(OSError):
        has_token |= Path(environment.get("HF_TOKEN_PATH") or home / "token").expanduser().stat().st_size > 0
    # The first of the two that is not empty decides (huggingface_hub reads both as one).
    offline = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    folder = read_folder(Path(cache).expanduser())
    return HubReading(folder, has_token, offline.upper() in ("1", "ON", "YES", "TRUE"))


def tasks_left(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int | None:
    """Processes and threads that our cgroup, or one above it, still admits; None = no limit."""
    left = [
        limit - (_number(folder / "pids.current") or 0)
        for folder in _cgroups("pids", root, own)
        if (limit := _number(folder / "pids.max")) is not None
    ]
    return max(0, min(left)) if left else None


def memory_limit(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> tuple[int, int] | None:
    """(limit, what of it is free) in bytes, of the tightest cgroup; None = no limit.

    Pages of files that were read and are not in use count as free, as the kernel takes them back first.
    """
    found = []
    for folder in _cgroups("memory", root, own):
        for limit_name, used_name in _MEMORY_FILES:
            limit = _number(folder / limit_name)
            if limit is not None and limit < _UNLIMITED:
                used = (_number(folder / used_name) or 0) - _reclaimable(folder / "memory.stat")
                found.append((max(0, limit - max(0, used)), limit))
    return min(found)[::-1] if found else None


def _cgroups(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Our group and all above it: each may have a limit. In a container, /proc may name a group that is not mounted."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controller if controllers else root
        folder = top / group.lstrip("/")
        while folder != top and top in folder.parents:
            yield folder
            folder = folder.parent
        yield top


def _reclaimable(path: Path) -> int:
    with suppress(OSError, ValueError):
        pairs = dict(line.split(" ", 1) for line in path.read_text().splitlines() if " " in line)
        return int(pairs.get("total_inactive_file", pairs.get("inactive_file", "0")))
    return 0


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):  # no such file, or `max`: no limit
        return int(path.read_text())
    return None


def _tasks() -> tuple[int | None, str]:
    """(how many more may be started, where the limit stands): the tighter one of cgroup and ulimit."""
    found = []
    if (left := tasks_left()) is not None:
        found.append((left, "pids.max of the container or unit"))
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # Root is not held to it (setrlimit(2)).
    if limit != resource.RLIM_INFINITY and os.geteuid() != 0:
        user, count = os.getuid(), 0
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                count += process.num_threads() if process.uids().real == user else 0
        found.append((max(0, limit - count), "ulimit -u"))
    return min(found) if found else (None, "")


_FETCH_TIMEOUT_S = 120.0
_ASK_TIMEOUT_S = 30.0
_TEXT = "The quick brown fox jumps over the lazy dog."
_TEXTS = (_TEXT, "Row after row, the vectors were written to the disk before dawn.", _TEXT)
"""The first and the last are equal; with a batch for each, their vectors come from two passes of the same shape."""


def read_job(
    loaded: LoadedConfig,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    scratch: Path,
    say: Callable[[str], None],
) -> JobReading:
    """Everything about the config's job; the samples need device and model to be there. Raises OSError."""
    config, layout = loaded.config, Layout(loaded.config.workdir)
    whereabouts, source, problem = _find_model(loaded, layout, scratch)
    folder = read_model_folder(Path(source.path)) if source is not None and source.path else ModelFolder()
    found = check_model_files(config, source.path if source is not None else None)
    rows, dimension = _known_size(layout, list(config.outputs))
    reading = JobReading(
        model=config.model.name,
        whereabouts=whereabouts,
        problem=problem,
        findings=found,
        no_download=_ask_hub(config.model, scratch, say) if whereabouts is Whereabouts.HUB else None,
        weights_bytes=folder.weights_bytes,
        workers=max(1, len(devices)) * (config.workers.per_device + config.workers.standby),
        workdir=read_folder(config.workdir),
        rows=rows,
        dimension=dimension,
        busy_pid=_busy_pid(config.workdir),
        sources=tuple(_sources(config, layout, say)),
        dtype=computed_dtype(config.model, source.path) if source is not None else None,
        model_type=folder.model_type,
        cpu_has_bfloat16=has_bfloat16(processor_flags()),
    )
    if reading.busy_pid is not None or source is None or found.faults:
        return reading
    expected: Expected | None = None
    if config.model.expect is not None:
        try:
            expected = read_expected(config.model.expect)
        except Halt as halt:
            return replace(reading, expect_problem=(halt.what, halt.remedy))
        reading = replace(reading, expected=(str(expected.path), len(expected.texts)))
    return replace(reading, samples=tuple(_samples(loaded, source, devices, environment, scratch, say, expected)))


def _sources(config: Config, layout: Layout, say: Callable[[str], None]) -> Iterator[SourceReading]:
    say("reading the first rows of each output")
    for name in config.outputs:
        size = None
        try:
            request = request_of(config, name, None)
            with suppress(DamagedError, OSError):
                size = measure_source(request) if read_staged(layout.output(name)) is None else None
            if size is None:
                try_first_row(request)
        except Halt as halt:
            if halt.code is ExitCode.CONFIG:
                words = f"{halt.what} {halt.why}".strip()
                yield SourceReading(name, (words, halt.remedy or "correct it in the config"))
                continue
        yield SourceReading(name, size=size, note=config.outputs[name].template_note)


def _find_model(loaded: LoadedConfig, layout: Layout, scratch: Path) -> tuple[Whereabouts, ModelSource | None, str]:
    """(where the model is, its files, why it is nowhere)."""
    model = loaded.config.model
    if model.is_plugin:
        return Whereabouts.PLUGIN, ModelSource(None, model.revision), ""
    try:
        if (source := source_at_hand(model, layout.model)) is not None:
            return Whereabouts.FOLDER if source.path == model.name else Whereabouts.CACHED, source, ""
    except Halt as halt:
        return Whereabouts.NOWHERE, None, halt.what
    offline, backend = {**os.environ, "HF_HUB_OFFLINE": "1"}, str(model.kwargs.get("backend", "torch"))
    with suppress(TimeoutError):
        found = fetch_model(
            model.name, model.revision, backend, scratch / "fetch", lambda: None, offline, _FETCH_TIMEOUT_S
        )
        if isinstance(found, ModelSource):
            return Whereabouts.CACHED, found, ""
    return Whereabouts.HUB, None, ""


def _ask_hub(model: ModelConfig, scratch: Path, say: Callable[[str], None]) -> Verdict | None:
    """Why it would not give the model; None where it would, or may not be asked."""
    if read_hub(os.environ).offline:
        return None
    say(f"asking the model hub for {model.name}")
    try:
        found = fetch_model(
            model.name, model.revision, ONLY_ASK, scratch / "ask", lambda: None, timeout_s=_ASK_TIMEOUT_S
        )
    except TimeoutError:
        return Verdict(Outcome.HUB, f"it has given no answer within {_ASK_TIMEOUT_S:.0f} s")
    return found if isinstance(found, Verdict) else None


def _samples(
    loaded: LoadedConfig,
    source: ModelSource,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    scratch: Path,
    say: Callable[[str], None],
    expected: Expected | None,
) -> Iterator[SampleReading]:
    """Every way of encoding on the first device, and the first of them on the others.

    The first is done by two processes, each of which loads the model.
    """
    config = loaded.config
    model = model_spec(config.model, source.path, source.revision)
    patience = Patience.of(config)
    outputs_of: dict[EncodeSpec, list[str]] = {}
    for name in config.outputs:
        outputs_of.setdefault(encode_spec(config.effective_encode(name)), []).append(name)
    general = encode_spec(config.encode)
    if expected is not None:  # its vectors are those of `encode`, without the overrides of outputs
        outputs_of.setdefault(general, [])
    encodes = list(outputs_of)
    todo = [(device, encode) for device in devices for encode in (encodes if device is devices[0] else encodes[:1])]
    for number, (device, encode) in enumerate(todo):
        say(f"encoding a sample of texts on {device}")
        folder = scratch / f"sample{number}"
        folder.mkdir(mode=0o700)
        on_device = {**environment, "CUDA_VISIBLE_DEVICES": device.uuid}
        conditions = Conditions(device.kind, on_device, (str(loaded.folder),), patience)
        asked = expected if expected is not None and device is devices[0] and encode == general else None
        texts = (*_TEXTS, *asked.texts) if asked else _TEXTS
        trial = try_texts(texts, model, encode, conditions, folder)
        sample = SampleReading(trial.verdict, log_line=trial.log_line, linear=trial.linear, notes=trial.notes)
        if trial.vectors is not None:
            sample = measure(sample, trial.vectors[: len(_TEXTS)])
            if asked is not None:
                quantized = "quantization_config" in model.kwargs
                wrong = asked.problem(trial.vectors[len(_TEXTS) :], trial.dtype, quantized=quantized)
                sample = replace(sample, unexpected=wrong)
        if trial.vectors is not None and number == 0:
            say("encoding it once more in another process")
            folder = scratch / "again"
            folder.mkdir(mode=0o700)
            again = try_texts(_TEXTS, model, encode, conditions, folder)
            if again.vectors is None:
                sample = SampleReading(again.verdict, log_line=again.log_line)
            else:
                sample = replace(sample, elsewhere=_distance(trial.vectors[: len(_TEXTS)], again.vectors))
        outputs = f"outputs {', '.join(outputs_of[encode]) or 'none'}" if len(encodes) > 1 else ""
        where = ", ".join(filter(None, [outputs, str(device) if len(devices) > 1 else ""]))
        yield replace(sample, where=where)


def _distance(one: Vectors, other: Vectors) -> float:
    """The largest difference, relative to the largest component; 1 for vectors of another dimension."""
    return float(np.abs(one - other).max()) / float(np.abs(one).max()) if one.shape == other.shape else 1.0


def measure(reading: SampleReading, vectors: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> SampleReading:
    """The reading with what the vectors of the sample, shape (3, dimension), tell."""
    first, other, again = vectors
    return replace(
        reading,
        dimension=vectors.shape[1],
        difference=float(np.abs(first - again).max()) / float(np.abs(first).max()),
        tells_apart=bool((first != other).any()),
    )


def _known_size(layout: Layout, names: list[str]) -> tuple[int | None, int]:
    """(rows of the outputs that are not complete, dimension) from earlier runs; None, 0 = unknown."""
    rows: int | None = 0
    dimension = 0
    for output in map(layout.output, names):
        try:
            if read_done_manifest(output) is not None:
                continue
            record, facts = read_staged(output), read_facts(output)
        except (DamagedError, OSError):
            return None, dimension
        dimension = max(dimension, facts.dimension if facts is not None else 0)
        rows = None if record is None or rows is None else rows + record.staged.rows
    return rows, dimension


def _busy_pid(workdir: Path) -> int | None:
    try:
        status = read_status(workdir)
    except (Halt, OSError):
        return None
    return status.pid if status.state is State.RUNNING else None


_MODULE = Path("/proc/driver/nvidia/version")
_NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "dxg")
_NAME_CHARS = 60


def read_smi() -> SmiReading:
    """Ask nvidia-smi for everything at once; waits no longer than `gpu.ask_smi` does."""
    answer = ask_smi(("-q", "-x"))
    if answer.returncode != 0:
        return SmiReading(answer.returncode, answer.text.strip().partition("\n")[0][:200])
    try:
        return parse(answer.text)
    except ElementTree.ParseError:
        return SmiReading(answer.returncode)


def parse(xml: str) -> SmiReading:
    """The answer to `nvidia-smi -q -x`, element names as of driver 575. Raises ElementTree.ParseError."""
    root = ElementTree.fromstring(xml)  # noqa: S314 - the driver's own tool wrote it; expat loads no external entity
    gpus = tuple(map(_gpu, root.findall("gpu")))
    return SmiReading(0, "", _text(root, "driver_version"), _text(root, "cuda_version"), gpus)


def read_driver(module: Path = _MODULE, dev: Path = Path("/dev")) -> DriverReading:
    """The kernel module and its device files."""
    try:
        # NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.51.02  Fri Apr 25 …
        match = re.search(r"\b\d{3}\.\d[\d.]*\b", module.read_text())
        version = match[0] if match else ""
    except OSError:
        version = None
    nodes = sorted(path for pattern in _NODES for path in dev.glob(pattern))
    forbidden = tuple(str(path) for path in nodes if not os.access(path, os.R_OK | os.W_OK))
    return DriverReading(version, tuple(map(str, nodes)), forbidden)


def _gpu(node: ElementTree.Element) -> GpuReading:
    volatile = node.find("ecc_errors/volatile")
    errors = (
        [_number_smi(each.text) for each in volatile if "uncorrectable" in each.tag] if volatile is not None else []
    )
    known = [number for number in errors if number is not None]
    return GpuReading(
        uuid=_text(node, "uuid"),
        name=_text(node, "product_name"),
        total_bytes=_mebibytes(_text(node, "fb_memory_usage/total")) or 0,
        used_bytes=_mebibytes(_text(node, "fb_memory_usage/used")) or 0,
        compute_mode=_text(node, "compute_mode"),
        mig=_text(node, "mig_mode/current_mig") == "Enabled",
        mig_slices=len(node.findall("mig_devices/mig_device")),
        ecc_uncorrectable=sum(known) if known else None,
        remap_pending=_text(node, "remapped_rows/remapped_row_pending") == "Yes",
        remap_failed=_text(node, "remapped_rows/remapped_row_failure") == "Yes",
        recovery_action=_text(node, "gpu_recovery_action"),
        processes=tuple(_process(each) for each in node.findall("processes/process_info")),
    )


def _process(node: ElementTree.Element) -> GpuProcess:
    pid = _number_smi(_text(node, "pid")) or 0
    name = Path(_text(node, "process_name").partition(" ")[0]).name[:_NAME_CHARS]
    is_worker = False
    with suppress(
        psutil.Error, OSError, ValueError
    ):  # another user's, or the host's, whose pids a container does not know
        is_worker = RUN_ID in psutil.Process(pid).environ()
    return GpuProcess(pid, plain(name), _mebibytes(_text(node, "used_memory")), is_worker)


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _number_smi(text: str | None) -> int | None:
    match = re.match(r"\s*(\d+)", text or "")
    return int(match[1]) if match else None


def _mebibytes(text: str) -> int | None:
    number = _number_smi(text)
    return number << 20 if number is not None else None


def gather(config_path: Path | None, say: Callable[[str], None]) -> Readings:
    """Read everything; with a config, its job, too. `say` is told of the steps that take a while.

    Raises OSError where not even a temporary folder or a child process is to be had.
    """
    loaded: LoadedConfig | None = None
    config_problem = no_device = cluster = None
    devices: tuple[Device, ...] = ()
    if config_path is not None:
        try:
            loaded = load(config_path)
            require_extras(loaded.config)
        except Halt as halt:
            config_problem = (halt.what, halt.remedy)
    if loaded is not None:
        if loaded.config.engine.kind is EngineKind.RAY:
            say("asking the cluster")
            cluster = survey(loaded.config.engine.address)
        try:
            devices = find_devices(loaded.config.device)
        except Halt as halt:
            # The workers of a cluster need none here.
            no_device = (f"{halt.what}: {halt.why}", halt.remedy) if cluster is None else None
    extra = loaded.config.env if loaded is not None else {}
    environment = environment_of(os.environ, devices, extra)
    # Before the children: the memory of a process that has just ended is not free at once.
    smi, driver = read_smi(), read_driver()
    with tempfile.TemporaryDirectory(prefix="chunkvisor-doctor-") as scratch:
        say("asking torch")
        probe = ask_torch(environment)
        job = read_job(loaded, devices, environment, Path(scratch), say) if loaded is not None else None
    wanted = Wanted.ANYTHING
    if loaded is not None and (devices or cluster is None):
        wanted = Wanted.CPU if "cpu" in loaded.config.device else Wanted.CUDA
    return Readings(
        wanted=wanted,
        chosen=tuple(device.uuid for device in devices if device.uuid),
        no_device=no_device,
        config_problem=config_problem,
        own={name: os.environ[name] for name in READ if name in os.environ},
        workers={name: environment[name] for name in READ if name in environment},
        from_config=frozenset(extra),
        smi=smi,
        driver=driver,
        probe=probe,
        host=read_host(),
        hub=read_hub(os.environ),
        job=job,
        cluster=cluster,
    )
