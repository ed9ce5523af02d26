"""The doctor.

`read_case` reads the machine and the job, and each of `CHECKS` judges what was read.
"""

import math
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from chunkvisor.config.choices import EngineKind
from chunkvisor.config.load import LoadedConfig, RowChoice, load
from chunkvisor.config.model import Config, encode_spec
from chunkvisor.devices import gpu as gpus
from chunkvisor.devices.gpu import Device, ProbeReading, SmiAnswer, advised_dtype, unfit_dtype
from chunkvisor.devices.handles import Health, HealthReport, judge_gpu, read_gpu
from chunkvisor.engine.expected import Expected, read_expected
from chunkvisor.engine.modelfolder import (
    LIBRARIES_BYTES,
    ModelFolder,
    Repository,
    check_model_files,
    read_model_folder,
    repository_of,
)
from chunkvisor.engine.modelsource import (
    ModelSource,
    fetch_model,
    known_source,
    pinned_source,
    resolve_outside,
)
from chunkvisor.engine.process import worker_environment
from chunkvisor.engine.trial import Trial, try_texts
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.judge import ONE_ROW, Verdict, describe_exit
from chunkvisor.printing import Say
from chunkvisor.sources.child import request_of, try_first_row
from chunkvisor.store.attempt import last_line
from chunkvisor.store.disk import (
    free_bytes,
    nearest_existing,
    room_in_words,
    why_too_large,
)
from chunkvisor.store.layout import Layout, is_held, read_holder
from chunkvisor.supervise.session import require_extras
from chunkvisor.units import counted, human_bytes
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import ONLY_ASK, Cause, Fault, Limits, ModelSpec, Phase
from chunkvisor_worker.contract.rules import TOO_LARGE
from chunkvisor_worker.contract.taxonomy import diagnose, diagnose_log

_TEXT = "The quick brown fox jumps over the lazy dog."
# The first and the last are equal, each in a batch of one: their vectors have to be equal.
SAMPLE = (_TEXT, "Row after row, the vectors were written to the disk before dawn.", _TEXT)
# How much a finding matters; only a fault makes the command fail.
OK = "ok"
NOTE = "note"
WARNING = "warning"
FAULT = "fault"


@frozen
class Finding:
    """What one check found."""

    check: str  # a name that docs/reference/checks.md explains
    state: str
    meaning: str
    mend: str = ""  # what to do; never empty for a warning or a fault
    blame: str = "machine"  # or "config": who has to repair a fault; it decides the exit code


@dataclass(slots=True)
class Sample:
    """What a worker made of SAMPLE, and of the expected texts after it."""

    trial: Trial
    device: Device
    again: Trial | None = None  # by a second process, which has loaded the model again
    unexpected: Halt | None = None  # its vectors are not those of `model.expect`


@dataclass(slots=True)
class Case:
    """Everything that was read; None = there is none, or it is not known."""

    config: Config | None = None
    # Why a part of the config is refused, by check.
    refused: dict[str, Halt] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()  # of the job; without a config, all GPUs
    health: dict[Device, HealthReport] = field(default_factory=dict)  # of the GPUs
    smi: SmiAnswer = field(default_factory=SmiAnswer)  # to `nvidia-smi -L`
    # Files of the driver in /dev -> may this user open them?
    device_files: dict[str, bool] = field(default_factory=dict)
    probe: ProbeReading = field(default_factory=ProbeReading)
    # Bytes that are free, of how many; in a container, of its share.
    memory: tuple[float, float] = (0, 0)
    busy_pid: int | None = None  # of a run that uses the workdir now
    # Why one cannot be read, or a note on its template.
    sources: dict[str, Halt | str] = field(default_factory=dict)
    place: str = ""  # where the model's files are: plugin, folder, cache or hub
    model: ModelFolder = field(default_factory=ModelFolder)
    dtype: str | None = None
    warnings: Sequence[tuple[str, str]] = ()  # on the model's files, and what to do
    missing: str = ""  # hub id of what is not here: the model, or what its files name
    no_download: Verdict | None = None  # why the hub does not give it
    expected: Expected | None = None
    samples: list[Sample] = field(default_factory=list)

    @property
    def wanted(self) -> str:
        """Return where the job computes, "cuda" or "cpu"; empty without a job here."""
        if self.config is None or (self.config.engine.kind is EngineKind.RAY and not self.devices):
            return ""
        return self.config.device_kind

    @property
    def cards(self) -> list[Device]:
        """Return the GPUs on which torch has computed."""
        found = self.probe.report.gpus if self.probe.report else ()
        return [Device("cuda", "", gpu.name, 0, gpu.capability) for gpu in found]


def read_case(config_path: Path | None, say: Say) -> Case:
    """Read the machine and, with a config, its job. `say` gets the name of each slow step.

    Raises OSError.
    """
    case = Case()
    loaded = None
    try:
        if config_path:
            found = load(config_path)
            require_extras(found.config)
            loaded = found
            case.config = found.config
    except Halt as halt:
        case.refused["config"] = halt
    try:
        case.devices = gpus.find_devices(case.config.device if case.config else ["cuda"])
    except Halt as halt:
        # The workers of a cluster need no GPU here.
        if case.config and case.config.engine.kind is not EngineKind.RAY:
            case.refused["gpu"] = halt
    case.smi = gpus.ask_smi(("-L",))
    # As a run does before each worker; and before torch is asked, whose memory is not free at once.
    case.health = {
        each: judge_gpu(read_gpu(each.uuid), total_bytes=each.memory_bytes)
        for each in case.devices
        if each.known_to_smi
    }
    machine = psutil.virtual_memory()
    left_bytes, limit_bytes = container_memory()
    case.memory = min(machine.available, left_bytes), min(machine.total, limit_bytes)
    for pattern in ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "dxg"):
        case.device_files |= {
            str(path): os.access(path, os.R_OK | os.W_OK) for path in Path("/dev").glob(pattern)
        }
    say("asking torch")
    environment = dict(os.environ)
    if case.devices:
        env = case.config.env if case.config else {}
        environment |= worker_environment(os.environ, case.devices[0], "", env, threads=1)
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuid for device in case.devices)
    case.probe = gpus.ask_torch(environment)
    if loaded:
        with tempfile.TemporaryDirectory(prefix="chunkvisor-doctor-") as scratch:
            try:
                _read_job(case, loaded, Path(scratch), say)
            except Halt as halt:
                case.refused["expect" if case.place else "model"] = halt
    return case


def container_memory(folder: Path = Path("/sys/fs/cgroup")) -> tuple[float, float]:
    """Return how many bytes of memory this container has free, and its limit; inf = no limit."""
    with suppress(OSError, ValueError):  # "max" is not a number: no limit
        limit = float((folder / "memory.max").read_text())
        left = limit - float((folder / "memory.current").read_text())
        # The kernel takes cached pages of files back first.
        stat = (folder / "memory.stat").read_text()
        cached = re.findall(r"^inactive_file (\d+)$", stat, re.MULTILINE)
        return max(0, left + sum(map(float, cached))), limit
    return math.inf, math.inf


class _NotHereError(Exception):
    """Files of the model are not on this machine; the case says which."""


def _read_job(case: Case, loaded: LoadedConfig, scratch: Path, say: Say) -> None:
    """Read everything about the config's job, and encode on each device.

    Raises Halt if there is no model; OSError.
    """
    config = loaded.config
    model = config.model
    layout = Layout(config.workdir)
    if is_held(layout.lock):
        holder = read_holder(layout.lock)
        case.busy_pid = holder.pid if holder else None
    say("reading the first rows of each output")
    for name, output in config.outputs.items():
        case.sources[name] = output.template_note
        try:
            try_first_row(request_of(config, name, RowChoice()))
        except Halt as halt:
            if halt.code is ExitCode.CONFIG:
                case.sources[name] = halt

    def ask_hub(wanted: Repository, **variables: str) -> ModelSource | Verdict:
        """Fetch a model or ask for it, with these environment variables set."""
        folder = Path(tempfile.mkdtemp(dir=scratch))
        return fetch_model(wanted, folder, lambda: None, {**os.environ, **variables})

    def require_here(wanted: Repository, _: str) -> ModelSource:
        """Return a model whose files are on this machine.

        Else note in the case whether the hub would give it, and raise _NotHereError.
        """
        pinned = pinned_source(cache, wanted)
        found = pinned if pinned and pinned.path else ask_hub(wanted, HF_HUB_OFFLINE="1")
        if isinstance(found, ModelSource):
            return found
        say(f"asking the model hub for {wanted.name}")
        answer = ask_hub(replace(wanted, backend=ONLY_ASK))
        case.place = "hub"
        case.missing = wanted.name
        case.no_download = answer if isinstance(answer, Verdict) else None
        raise _NotHereError

    cache = layout.model
    source = ModelSource(None, model.revision)
    here = None if model.is_plugin else known_source(model, cache)
    try:
        if not model.is_plugin:
            source = here or require_here(repository_of(model), "")
            case.warnings = check_model_files(config, source.path)
            resolve_outside(source, model, require_here, scratch / "hub")
    except _NotHereError:
        return
    except Halt as halt:
        case.refused["right-vectors"] = halt
    case.place = "plugin"
    if source.path:
        case.place = "folder" if source.path == model.name else "cache"
        case.model = read_model_folder(Path(source.path))
    if model.expect:
        case.expected = read_expected(model.expect)
    case.dtype = case.model.computes_in(model)
    if not case.busy_pid and "right-vectors" not in case.refused:
        _encode_samples(case, loaded, source.spec(model), scratch, say)


def _encode_samples(
    case: Case, loaded: LoadedConfig, spec: ModelSpec, scratch: Path, say: Say
) -> None:
    """Encode SAMPLE and the expected texts on each device, and SAMPLE once more."""
    config = loaded.config
    expected = case.expected
    first = config.effective_encode(next(iter(config.outputs)))
    # Expected vectors are those of the section `encode`, without the overrides of outputs.
    encode = encode_spec(config.encode if expected else first)
    texts = expected.texts if expected else ()
    # Either makes batches of one text. If batches may have more rows, the worker also checks that
    # padding does not change the vectors.
    no_padding = config.model.is_plugin or first.batch_size == 1
    limits = ONE_ROW if no_padding else Limits(rows=2, tokens=1)

    def try_sample(texts: Sequence[str], limits: Limits = ONE_ROW) -> Trial:
        """Encode the texts in a new process on `device`."""
        folder = Path(tempfile.mkdtemp(dir=scratch))
        return try_texts(texts, spec, encode, device, loaded, folder, limits=limits)

    for device in case.devices:
        say(f"encoding a sample of texts on {device}")
        trial = try_sample((*SAMPLE, *texts), limits)
        sample = Sample(trial, device)
        case.samples.append(sample)
        if trial.vectors is None:
            continue
        if expected:
            sample.unexpected = expected.refusal(trial.vectors[len(SAMPLE) :], trial.dtype, spec)
        if device is case.devices[0]:
            say("encoding it once more in another process")
            sample.again = try_sample(SAMPLE)


# --- the checks

_ACCESS = "in a container, start it with GPU access (docker run --gpus all)"
_INSTALL = "Install a torch for this machine: https://pytorch.org/get-started/locally"


def examine(case: Case) -> list[Finding]:
    """Make all checks, in the order in which they are shown."""
    checks = [check for check in CHECKS if not (case.wanted == "cpu" and check in (_driver, _gpus))]
    refused = [_refusal(name, halt) for name, halt in case.refused.items()]
    return refused + [found for check in checks for found in check(case)]


def _refusal(check: str, halt: Halt, where: str = "") -> Finding:
    """Make a fault of the Halt with which a run would refuse the job."""
    why = f": {halt.why}" if halt.why else ""
    blame = "machine" if halt.code is ExitCode.MACHINE else "config"
    return Finding(
        check, FAULT, f"{where}{halt.what}{why}", halt.remedy or "Correct it in the config.", blame
    )


def _driver(case: Case) -> Iterator[Finding]:
    """Check that nvidia-smi answers, and that this user may open the GPUs."""
    broken = FAULT if case.wanted else WARNING
    forbidden = [path for path, may in case.device_files.items() if not may]
    if forbidden:
        meaning = f"no permission to open {', '.join(forbidden)}: CUDA will not see a GPU"
        yield Finding("driver", broken, meaning, "Join the group that owns /dev/nvidia*.")
    if case.smi.returncode == 0:
        yield Finding(
            "driver", OK, f"nvidia-smi lists {counted(case.smi.text.count('GPU '), 'GPU')}"
        )
    elif case.smi.text or case.cards or case.device_files:
        # Not more than a warning: whether CUDA works is what torch finds.
        meaning = "nvidia-smi is not on PATH"
        mend = "Add it to PATH (under WSL2 it is in /usr/lib/wsl/lib)."
        if case.smi.text:
            cause = Cause("nvidia-smi", (), case.smi.text)
            rule = diagnose(Fault(Phase.CUDA_INIT, (cause,), "")).rule
            meaning = f"nvidia-smi fails: {case.smi.line}"
            mend = f"Reboot; {_ACCESS}."
            if rule.outcome in (Outcome.SETUP, Outcome.HARDWARE_FAULT):
                meaning += f". {rule.cause.rstrip('.')}"
                mend = rule.remedy
        meaning += (
            "; CUDA may work all the same, but nothing is known of the GPU's memory and health"
        )
        yield Finding("driver", WARNING, meaning, mend)
    else:
        mend = f"Install or load the driver; {_ACCESS}; or write `device: cpu`."
        state = FAULT if case.wanted else NOTE
        yield Finding("driver", state, "this machine has no NVIDIA driver, and so no GPU", mend)


def _gpus(case: Case) -> Iterator[Finding]:
    """Check that each GPU reports no fault, and has memory that other processes do not use."""
    for device, health_report in case.health.items():
        if health_report.health is Health.BROKEN:
            mend = (
                "Ask the administrator to reset the GPU (nvidia-smi -r) or to reboot; replace it "
                "if this returns."
            )
            state = FAULT if case.wanted else WARNING
            yield Finding("gpu-health", state, f"{device}: {health_report.why}", mend)
        elif health_report.health is Health.BUSY and case.busy_pid is None:
            mend = "End what is not needed, or choose another GPU (`device: cuda:N`)."
            yield Finding("gpu-memory", WARNING, f"{device}: {health_report.why}", mend)
        elif health_report.health is Health.GOOD:
            yield Finding("gpu-health", OK, f"{device} reports no fault")


def _torch(case: Case) -> Iterator[Finding]:
    """Check that torch computes: in general, and on the GPUs if the job needs them."""
    report, returncode, log = case.probe
    fault = report.fault if report else None
    found = diagnose(fault) if fault else diagnose_log(log, returncode or 0)
    why = "it hangs"
    mend = _INSTALL
    if found:
        why = f"{found.rule.cause.rstrip('.')}: {found.headline}"
        mend = found.rule.remedy
    elif returncode is not None:
        why = f"{describe_exit(returncode)} {last_line(log)}"
    optional = case.place == "plugin"
    if report is None or report.phase in (Phase.IMPORT, Phase.FORWARD):
        what = f"torch cannot be imported, or does not compute: {why}"
        yield Finding("torch", NOTE if optional else FAULT, what, mend)
        return
    build = "the CPU only"
    if report.cuda or report.hip:
        build = f"CUDA {report.cuda}" if report.cuda else f"ROCm {report.hip}"
    yield Finding(
        "torch", OK, f"torch {report.versions.get('torch', '')} is built for {build}, and computes"
    )
    if case.wanted == "cpu" or not (case.wanted or case.device_files or case.smi.text):
        return
    if case.cards and not fault and report.phase is not Phase.CUDA_INIT:
        yield Finding("torch-gpu", OK, f"torch computes on {', '.join(map(str, case.cards))}")
        return
    if report.cuda is None:
        why = "it is not built for CUDA"
        mend = f"{_INSTALL}; or write `device: cpu`."
    state = WARNING if optional or not case.wanted else FAULT
    yield Finding("torch-gpu", state, f"torch cannot use the GPU: {why}", mend)


def _memory_and_disk(case: Case) -> Iterator[Finding]:
    """Check that the memory of the machine holds the workers, and that the workdir can grow."""
    workers = 1
    if case.config:
        each = case.config.workers
        workers = (each.per_device + each.standby) * max(1, len(case.devices))
    need = LIBRARIES_BYTES + (case.model.weights_bytes or 0)
    free, total = case.memory
    text = (
        f"{human_bytes(free)} of {human_bytes(total)} of memory are free; about "
        f"{human_bytes(workers * need)} is needed for {counted(workers, 'worker')}"
    )
    if free < workers * need and case.place != "plugin":
        mend = "Set workers.standby lower, free some memory, or raise the container's limit."
        yield Finding("memory", FAULT if free < need else WARNING, text, mend)
    else:
        yield Finding("memory", OK, text)
    if case.config is None:
        return
    path = case.config.workdir
    here = nearest_existing(path)
    room = free_bytes(here) or 0
    if not here.is_dir() or not os.access(here, os.W_OK | os.X_OK):
        mend = "Change its owner or its permissions, or choose another workdir."
        yield Finding(
            "disk", FAULT, f"no permission to write to {path}, or its disk is read-only", mend
        )
    elif room < 1 << 30:
        mend = "Free some space, or choose another workdir."
        yield Finding("disk", WARNING, room_in_words(here), mend)
    else:
        yield Finding("disk", OK, room_in_words(here))
        too_large = why_too_large(here, 4 << 30)
        if too_large:
            yield Finding("disk", WARNING, too_large, TOO_LARGE.remedy)


def _source(case: Case) -> Iterator[Finding]:
    """Check that the first rows of each output can be read."""
    for name, problem in case.sources.items():
        if isinstance(problem, Halt):
            yield _refusal("source", problem, f"{name}: ")
        elif problem:
            yield Finding(
                "source", WARNING, f"{name}: {problem}", "Correct the template.", "config"
            )
        else:
            yield Finding("source", OK, f"{name}: the first rows can be read")


def _model(case: Case) -> Iterator[Finding]:
    """Check where the model's files are, what they say, and whether its dtype suits the device."""
    if case.config is None or not case.place:
        return
    name = case.config.model.name
    missing = f"{case.missing} is not in the local cache"
    where = {
        "plugin": "is passed to the plug-in encoder unchanged",
        "folder": "is a local folder",
        "cache": "is in the local cache",
    }
    if case.place != "hub":
        text = f"{name} {where[case.place]}"
        if case.model.weights_bytes:
            text += f", {human_bytes(case.model.weights_bytes)} of weights"
        yield Finding("model", OK, text)
    elif case.no_download:
        mend = (
            case.no_download.remedy
            or f"Check the network, or run on a machine that has one: hf download {case.missing}"
        )
        blame = "machine" if case.no_download.outcome is Outcome.HUB else "config"
        yield Finding("model", FAULT, f"{missing}: {case.no_download.reason}", mend, blame)
    else:
        mend = f"To have it checked here, run first: hf download {case.missing}"
        yield Finding("model", NOTE, f"{missing}: the first run downloads it", mend)
    yield from (Finding("right-vectors", WARNING, *found) for found in case.warnings)
    if case.wanted == "cpu" and case.dtype == "bfloat16" and not gpus.has_bfloat16():
        slow = (
            "the model computes in bfloat16, for which this CPU has no instructions: slower than "
            "float32"
        )
        yield Finding("dtype", WARNING, slow, "Set model.dtype to float32.")
    if case.wanted != "cuda" or not case.dtype:
        return
    kind = case.model.model_type
    for card in sorted(set(case.cards), key=str):
        if unfit := unfit_dtype(case.dtype, kind, card):
            yield Finding("dtype", WARNING, *unfit)
            continue
        better = advised_dtype(kind, card)
        fits = f"the model computes in {case.dtype}"
        if case.dtype == "float32" != better:
            fits += (
                f" (model.dtype {better} takes less memory; it needs another workdir, since its "
                f"vectors differ)"
            )
        yield Finding("dtype", OK, f"{fits}, which suits {card}")


def _encoding(case: Case) -> Iterator[Finding]:
    """Check what workers made of the sample on each device, and of `model.expect`."""
    if case.busy_pid:
        meaning = f"no sample was encoded, because a run (pid {case.busy_pid}) uses the workdir"
        yield Finding("encoding", NOTE, meaning)
    elif not case.samples and case.config:
        yield Finding("encoding", NOTE, "no sample was encoded: fix the faults above first")
    for sample in case.samples:
        failed = [each for each in (sample.trial, sample.again) if each and each.vectors is None]
        found = _failed(case, failed[0]) if failed else _compared(case, sample)
        yield replace(found, meaning=f"on {sample.device}, {found.meaning}")
    if case.expected and case.samples:
        wrong = [sample.unexpected for sample in case.samples if sample.unexpected]
        if wrong:
            yield _refusal("expect", wrong[0])
        elif all(sample.trial.vectors is not None for sample in case.samples):
            what = (
                f"the model gives the vectors of {counted(len(case.expected.texts), 'text')} in "
                f"{case.expected.path}"
            )
            yield Finding("expect", OK, what)


def _failed(case: Case, trial: Trial) -> Finding:
    """Say why a worker could not encode the sample, and who has to repair it."""
    verdict = trial.verdict
    mend = verdict.remedy or "Correct what the log names: the encoder, torch, or another package."
    if verdict.rule == "wrong-model":
        return Finding("right-vectors", FAULT, verdict.reason, mend, "config")
    text = f"a worker got three short texts and failed: {verdict.outcome}: {verdict.reason}"
    if trial.log_line:
        text += f"\nlast line of its log: {trial.log_line}"
    # No repair of the machine changes what a plug-in raises, or vectors that are not usable.
    config = verdict.outcome in (Outcome.BAD_OUTPUT, Outcome.BAD_INPUT, Outcome.SETUP)
    config |= case.place == "plugin" and verdict.outcome is Outcome.CRASHED
    if verdict.exit_code is not None:
        config = verdict.exit_code == ExitCode.CONFIG
    return Finding("encoding", FAULT, text, mend, "config" if config else "machine")


def _compared(case: Case, sample: Sample) -> Finding:
    """Compare the vectors of equal texts, of different ones, and those of two processes."""
    assert sample.trial.vectors is not None
    vectors = sample.trial.vectors[: len(SAMPLE)]
    again = sample.again.vectors if sample.again else None
    largest = float(np.abs(vectors[0]).max())
    differ = float(np.abs(vectors[0] - vectors[2]).max()) / largest
    elsewhere = 0.0
    if again is not None:
        same = again.shape == vectors.shape
        elsewhere = float(np.abs(vectors - again).max()) / largest if same else 1.0
    if differ > 1e-3:  # half precision has about three digits
        meaning = (
            f"the same text, encoded twice, gives vectors that differ by {differ:.2g} of their size"
        )
        mend = (
            "Make the encoder deterministic: eval() on its model, no dropout; else have the GPU "
            "checked."
        )
        blame = "config" if case.place == "plugin" else "machine"
        return Finding("encoding", FAULT, meaning, mend, blame)
    if elsewhere > 0.01:
        mend = "Load all weights from a file: each process draws at random what a folder lacks."
        return Finding(
            "encoding",
            FAULT,
            "two processes that load the model give the same text vectors that differ by "
            f"{elsewhere:.2g} of their size: each has other weights",
            mend,
            "config",
        )
    if (vectors[0] == vectors[1]).all():
        mend = "Check the encoder, or download the model again with all its files."
        return Finding(
            "encoding",
            WARNING,
            "two different texts get the same vector: the texts do not reach the model",
            mend,
            "config",
        )
    return Finding(
        "encoding",
        OK,
        f"a text encoded twice gives the same vector of {vectors.shape[1]} dimensions",
    )


# In the order in which they are shown.
CHECKS = (_driver, _gpus, _torch, _memory_and_disk, _source, _model, _encoding)


def exit_code(findings: Sequence[Finding]) -> ExitCode:
    """Return 0 without a fault; 69 if the machine has one, 78 if only the config has."""
    blamed = {finding.blame for finding in findings if finding.state is FAULT}
    if "machine" in blamed:
        return ExitCode.MACHINE
    return ExitCode.CONFIG if blamed else ExitCode.COMPLETE


def doctor_lines(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each finding, what to do below it, and a last line that sums up."""
    lines = list[str]()
    for finding in findings:
        words = f"{finding.meaning}\ndo: {finding.mend}" if finding.mend else finding.meaning
        first, *others = f"{finding.state:<7}  {finding.check}: {words}".split("\n")
        lines += [first, *(f"         {other}" for other in others)]
    states = [finding.state for finding in findings]
    faults = states.count(FAULT)
    warnings = states.count(WARNING)
    end = "nothing stands in the way"
    if faults:
        end = "correct the faults before a run"
    elif warnings:
        end = "a run can do its job; read the warnings"
    return [*lines, "", f"{counted(faults, 'fault')}, {counted(warnings, 'warning')}; {end}"]


def findings_to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what `--json` prints: `ok`, and an object for each finding."""
    rows = [
        asdict(each) | {"blame": each.blame if each.state is FAULT else None} for each in findings
    ]
    return {"ok": not exit_code(findings), "findings": rows}
