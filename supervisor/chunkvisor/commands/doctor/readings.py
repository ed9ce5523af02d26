"""Reads what the doctor needs to know of a machine and a job; `checks` judges it."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import psutil

from chunkvisor.config.choices import EngineKind
from chunkvisor.config.load import LoadedConfig, load
from chunkvisor.config.model import Config, encode_spec, model_spec
from chunkvisor.devices.gpu import Device, ProbeReading, SmiAnswer, ask_smi, ask_torch, find_devices
from chunkvisor.engine.modelfolder import (
    ModelFindings,
    ModelFolder,
    check_model_files,
    computed_dtype,
    read_model_folder,
)
from chunkvisor.engine.modelsource import ModelSource, fetch_model, source_at_hand
from chunkvisor.engine.ray.wire import Survey, survey
from chunkvisor.engine.trial import Conditions, Expected, Trial, environment_of, read_expected, try_texts
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.judge import Patience, Verdict
from chunkvisor.show.status import State, read_status
from chunkvisor.sources.child import request_of, try_first_row
from chunkvisor.store.layout import Layout
from chunkvisor.supervise.session import require_extras
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import ONLY_ASK, EncodeSpec, ProbedGpu

_TEXT = "The quick brown fox jumps over the lazy dog."
SAMPLE = (_TEXT, "Row after row, the vectors were written to the disk before dawn.", _TEXT)
"""The first and the last are equal: their vectors come from two passes of the same shape."""


@dataclass(slots=True)
class Sample:
    """What a worker made of SAMPLE, and of the expected texts after it."""

    trial: Trial
    where: str = ""
    """The device or the outputs, if there is more than one sample."""
    again: Trial | None = None
    """By a second process, which has loaded the model anew."""
    unexpected: str = ""
    """How the vectors are not those of `model.expect`."""


@dataclass(slots=True)
class Readings:
    """Everything that was read; None = there is none, or it is not known."""

    config: Config | None = None
    refused: dict[str, Halt] = field(default_factory=dict)
    """Why a part of the config is refused, by the name of the check."""
    cluster: Survey | None = None
    devices: tuple[Device, ...] = ()
    own: Mapping[str, str] = field(default_factory=dict)
    """Environment of the command."""
    workers: Mapping[str, str] = field(default_factory=dict)
    """Environment that its workers get."""
    smi: SmiAnswer = field(default_factory=lambda: SmiAnswer(None, ""))
    """What `nvidia-smi -q -x` answered."""
    module: str = ""
    """Version of the driver's kernel module."""
    nodes: dict[str, bool] = field(default_factory=dict)
    """Files of the driver in /dev -> whether this user may open them."""
    probe: ProbeReading = field(default_factory=ProbeReading)
    memory: tuple[float, float] = (0, 0)
    """Bytes that are free, of how many; in a container, of its share."""
    tasks_left: float = float("inf")
    """Processes and threads that the container may still start."""
    busy_pid: int | None = None
    """Of a run that is at work in the workdir."""
    sources: dict[str, Halt | str] = field(default_factory=dict)
    """Why an output's source cannot be read, or a note on its template."""
    place: str = ""
    """Where the model's files are: plugin, folder, cache or hub."""
    model: ModelFolder = field(default_factory=ModelFolder)
    dtype: str | None = None
    findings: ModelFindings = field(default_factory=ModelFindings)
    no_download: Verdict | None = None
    """Why the hub does not give the model."""
    expected: Expected | None = None
    samples: tuple[Sample, ...] = ()

    @property
    def wanted(self) -> str:
        """Return where the job computes, "cuda" or "cpu"; empty without a job for this machine."""
        if self.config is None or (self.cluster is not None and not self.devices):
            return ""
        return "cpu" if "cpu" in self.config.device else "cuda"

    @property
    def gpus(self) -> tuple[ProbedGpu, ...]:
        """Return the GPUs on which torch has computed."""
        return self.probe.report.gpus if self.probe.report is not None else ()

    @property
    def hub_cache(self) -> Path:
        """Return the folder of downloaded models, as huggingface_hub finds it (its constants.py)."""
        home = self.own.get("HF_HOME") or f"{self.own.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
        return Path(self.own.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()

    @property
    def is_offline(self) -> bool:
        """Return whether the hub must not be asked: the first of two variables that is not empty decides."""
        value = self.own.get("HF_HUB_OFFLINE") or self.own.get("TRANSFORMERS_OFFLINE") or ""
        return value.upper() in ("1", "ON", "YES", "TRUE")


def gather(config_path: Path | None, say: Callable[[str], None]) -> Readings:
    """Read everything; with a config, its job as well. `say` gets the steps that take a while. Raises OSError."""
    found, loaded = Readings(own=os.environ), None
    if config_path is not None:
        try:
            loaded = load(config_path)
            require_extras(loaded.config)
            found.config = loaded.config
        except Halt as halt:
            found.refused["config"] = halt
    if found.config is not None:
        if found.config.engine.kind is EngineKind.RAY:
            say("asking the cluster")
            found.cluster = survey(found.config.engine.address)
        try:
            found.devices = find_devices(found.config.device)
        except Halt as halt:
            if found.cluster is None:  # the workers of a cluster need no GPU here
                found.refused["gpu"] = halt
    found.workers = environment_of(os.environ, found.devices, found.config.env if found.config is not None else {})
    # First, because the memory of a process that has just ended is not free at once.
    found.smi = ask_smi(("-q", "-x"))
    machine, (left_bytes, limit_bytes, found.tasks_left) = psutil.virtual_memory(), read_cgroup()
    found.memory = min(machine.available, left_bytes), min(machine.total, limit_bytes)
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.51.02  Fri Apr 25 …
    version = re.search(r"\b\d{3}\.\d[\d.]*", _text_of(Path("/proc/driver/nvidia/version")))
    found.module = version[0] if version else ""
    for pattern in ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "dxg"):
        found.nodes |= {str(path): os.access(path, os.R_OK | os.W_OK) for path in Path("/dev").glob(pattern)}
    say("asking torch")
    found.probe = ask_torch(found.workers)
    if loaded is not None and found.config is not None:
        with tempfile.TemporaryDirectory(prefix="chunkvisor-doctor-") as scratch:
            _read_job(found, loaded, Path(scratch), say)
    return found


def read_cgroup(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> tuple[float, float, float]:
    """Return how much memory is free, of how much, and the tasks that may still be started; inf = no limit.

    The tightest limit of our cgroup and those above it counts, in version 1 and 2. Cached pages of files are free: the
    kernel takes them back first.
    """
    memory = left_tasks = (float("inf"), float("inf"))
    for line in _text_of(own).splitlines():
        _, controllers, group = line.split(":", 2)
        below = PurePosixPath(group.lstrip("/"))
        for each in (below, *below.parents):
            folder = root / controllers / each  # version 2 has no name of a controller here
            limit = _number(folder, "memory.max", "memory.limit_in_bytes")
            cached = re.search(r"^(?:total_)?inactive_file (\d+)$", _text_of(folder / "memory.stat"), re.MULTILINE)
            used = _number(folder, "memory.current", "memory.usage_in_bytes", default=0)
            memory = min(memory, (max(0, limit - used + (int(cached[1]) if cached else 0)), limit))
            most = _number(folder, "pids.max")
            left_tasks = min(left_tasks, (max(0, most - _number(folder, "pids.current", default=0)), most))
    return *memory, left_tasks[0]


def _number(folder: Path, *names: str, default: float = float("inf")) -> float:
    text = "".join(_text_of(folder / name) for name in names).strip()
    number = float(text) if text.isdecimal() else default
    return number if number < 1 << 60 else default  # "max", or in version 1 nearly 2**63, means no limit


def _text_of(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def _read_job(found: Readings, loaded: LoadedConfig, scratch: Path, say: Callable[[str], None]) -> None:
    """Read everything about the config's job; for samples, device and model have to be here. Raises OSError."""
    config = loaded.config
    with suppress(Halt, OSError):
        status = read_status(config.workdir)
        found.busy_pid = status.pid if status.state is State.RUNNING else None
    say("reading the first rows of each output")
    for name, output in config.outputs.items():
        found.sources[name] = output.template_note
        try:
            try_first_row(request_of(config, name, None))
        except Halt as halt:
            if halt.code is ExitCode.CONFIG:
                found.sources[name] = halt
    try:
        source = _find_model(found, config, scratch, say)
        found.expected = read_expected(config.model.expect) if config.model.expect is not None else None
    except Halt as halt:
        found.refused["expect" if found.place else "model"] = halt
        return
    if source is None:
        return
    found.findings, found.dtype = check_model_files(config, source.path), computed_dtype(config.model, source.path)
    found.model = read_model_folder(Path(source.path)) if source.path else found.model
    if found.devices and found.busy_pid is None and not found.findings.faults:
        found.samples = tuple(_samples(found, loaded, source, scratch, say))


def _find_model(found: Readings, config: Config, scratch: Path, say: Callable[[str], None]) -> ModelSource | None:
    """Return the model's files; None if they are on the hub. Raises Halt if they are nowhere."""
    model = config.model

    def ask(backend: str, timeout_s: float, **variables: str) -> ModelSource | Verdict:
        folder, environment = Path(tempfile.mkdtemp(dir=scratch)), {**os.environ, **variables}
        try:
            return fetch_model(model.name, model.revision, backend, folder, lambda: None, environment, timeout_s)
        except TimeoutError:
            return Verdict(Outcome.HUB, f"it has given no answer within {timeout_s:.0f} s")

    source: ModelSource | Verdict | None = ModelSource(None, model.revision)
    if not model.is_plugin:
        source = source_at_hand(model, Layout(config.workdir).model)
        source = source or ask(str(model.kwargs.get("backend", "torch")), 120.0, HF_HUB_OFFLINE="1")
    if isinstance(source, ModelSource):
        found.place = "plugin" if source.path is None else "folder" if source.path == model.name else "cache"
        return source
    found.place = "hub"
    if not found.is_offline:
        say(f"asking the model hub for {model.name}")
        answer = ask(ONLY_ASK, 30.0)
        found.no_download = answer if isinstance(answer, Verdict) else None
    return None


def _samples(
    found: Readings, loaded: LoadedConfig, source: ModelSource, scratch: Path, say: Callable[[str], None]
) -> Iterator[Sample]:
    """Encode in every way of the config on the first device, and in the first way on the others."""
    config, expected = loaded.config, found.expected
    model, general = model_spec(config.model, source.path, source.revision), encode_spec(config.encode)
    # The expected vectors are those of `encode`, without the overrides of outputs.
    ways: dict[EncodeSpec, list[str]] = {general: []} if expected is not None else {}
    for name in config.outputs:
        ways.setdefault(encode_spec(config.effective_encode(name)), []).append(name)
    first, *others = [(device, way) for device in found.devices[:1] for way in ways]
    others += [(device, first[1]) for device in found.devices[1:]]
    for device, way in (first, *others):
        environment = {**found.workers, "CUDA_VISIBLE_DEVICES": device.uuid}
        conditions = Conditions(device.kind, environment, (str(loaded.folder),), Patience.of(config))
        asked = expected if device is first[0] and way == general else None
        texts = (*SAMPLE, *(asked.texts if asked is not None else ()))
        say(f"encoding a sample of texts on {device}")
        sample = Sample(try_texts(texts, model, way, conditions, Path(tempfile.mkdtemp(dir=scratch))))
        sample.where = f"outputs {', '.join(ways[way]) or 'none'} on {device}" if others else ""
        vectors, dtype = sample.trial.vectors, sample.trial.dtype
        if vectors is not None and asked is not None:
            quantized = "quantization_config" in model.kwargs
            sample.unexpected = asked.problem(vectors[len(SAMPLE) :], dtype, quantized=quantized)
        if vectors is not None and (device, way) == first:
            say("encoding it once more in another process")
            sample.again = try_texts(SAMPLE, model, way, conditions, Path(tempfile.mkdtemp(dir=scratch)))
        yield sample
