"""The doctor: `gather` reads the machine and the job, and each of `CHECKS` judges what was read."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from chunkvisor.config.choices import EngineKind
from chunkvisor.config.load import LoadedConfig, load
from chunkvisor.config.model import Config, encode_spec
from chunkvisor.devices import gpu as gpus
from chunkvisor.devices.gpu import Device, ProbeReading, SmiAnswer, advised_dtype, unfit_dtype
from chunkvisor.devices.stations import Health, Opinion, judge_gpu, read_gpu
from chunkvisor.engine import modelfolder
from chunkvisor.engine.modelfolder import ModelFolder, Repository, repository_of
from chunkvisor.engine.modelsource import (
    ModelSource,
    fetch_model,
    pinned_source,
    source_at_hand,
    take_outside,
)
from chunkvisor.engine.process import worker_environment
from chunkvisor.engine.trial import Expected, Trial, read_expected, try_texts
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.judge import ONE_ROW, Verdict, describe_exit
from chunkvisor.sources.child import request_of, try_first_row
from chunkvisor.store.attempt import last_line
from chunkvisor.store.disk import free_bytes
from chunkvisor.store.layout import Layout, is_held, read_holder
from chunkvisor.supervise.session import require_extras
from chunkvisor.units import counted, human_bytes
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import ONLY_ASK, Cause, Fault, Limits, Phase
from chunkvisor_worker.contract.taxonomy import diagnose, diagnose_log

_TEXT = "The quick brown fox jumps over the lazy dog."
# The first and the last are equal: their vectors come from two passes of the same shape.
SAMPLE = (_TEXT, "Row after row, the vectors were written to the disk before dawn.", _TEXT)
# How much a finding matters; only a fault makes the command fail.
OK, NOTE, WARNING, FAULT = "ok", "note", "warning", "fault"


@dataclass(frozen=True, slots=True)
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
    refused: dict[str, Halt] = field(
        default_factory=dict
    )  # why a part of the config is refused, by check
    devices: tuple[Device, ...] = ()  # of the job; without a config, all GPUs
    opinions: dict[Device, Opinion] = field(default_factory=dict)  # of the GPUs
    smi: SmiAnswer = field(default_factory=lambda: SmiAnswer(None, ""))  # to `nvidia-smi -L`
    nodes: dict[str, bool] = field(
        default_factory=dict
    )  # files of the driver in /dev -> may this user open them?
    probe: ProbeReading = field(default_factory=ProbeReading)
    memory: tuple[float, float] = (
        0,
        0,
    )  # bytes that are free, of how many; in a container, of its share
    busy_pid: int | None = None  # of a run that uses the workdir now
    sources: dict[str, Halt | str] = field(
        default_factory=dict
    )  # why one cannot be read, or a note on its template
    place: str = ""  # where the model's files are: plugin, folder, cache or hub
    model: ModelFolder = field(default_factory=ModelFolder)
    dtype: str | None = None
    doubts: Sequence[tuple[str, str]] = ()  # on the model's files, and what to do
    missing: str = ""  # hub id of what is not here: the model, or what its files name
    no_download: Verdict | None = None  # why the hub does not give it
    expected: Expected | None = None
    samples: list[Sample] = field(default_factory=list)

    @property
    def wanted(self) -> str:
        """Return where the job computes, "cuda" or "cpu"; empty without a job for this machine."""
        if self.config is None or (self.config.engine.kind is EngineKind.RAY and not self.devices):
            return ""
        return "cpu" if "cpu" in self.config.device else "cuda"

    @property
    def cards(self) -> list[Device]:
        """Return the GPUs on which torch has computed."""
        report = self.probe.report
        return (
            [Device("cuda", "", gpu.name, 0, gpu.capability) for gpu in report.gpus]
            if report is not None
            else []
        )


def gather(config_path: Path | None, say: Callable[[str], None]) -> Case:
    """Read everything; with a config, its job as well. `say` gets the steps that take a while. Raises OSError."""
    case, loaded, environment = Case(), None, dict(os.environ)
    try:
        if config_path is not None:
            found = load(config_path)
            require_extras(found.config)
            loaded, case.config = found, found.config
    except Halt as halt:
        case.refused["config"] = halt
    try:
        case.devices = gpus.find_devices(["cuda"] if case.config is None else case.config.device)
    except Halt as halt:
        if (
            case.config is not None and case.config.engine.kind is not EngineKind.RAY
        ):  # its workers need no GPU here
            case.refused["gpu"] = halt
    case.smi = gpus.ask_smi(("-L",))
    # As before each worker, and before torch is asked, whose memory is not free at once.
    watched = [device for device in case.devices if device.watched]
    case.opinions = {
        each: judge_gpu(read_gpu(each.uuid), total_bytes=each.memory_bytes) for each in watched
    }
    machine, (left_bytes, limit_bytes) = psutil.virtual_memory(), container_memory()
    case.memory = min(machine.available, left_bytes), min(machine.total, limit_bytes)
    for pattern in ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "dxg"):
        case.nodes |= {
            str(path): os.access(path, os.R_OK | os.W_OK) for path in Path("/dev").glob(pattern)
        }
    say("asking torch")
    if case.devices:
        env = loaded.config.env if loaded is not None else {}
        environment |= worker_environment(os.environ, case.devices[0], "", env, threads=1)
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuid for device in case.devices)
    case.probe = gpus.ask_torch(environment)
    if loaded is not None:
        with tempfile.TemporaryDirectory(prefix="chunkvisor-doctor-") as scratch:
            try:
                _read_job(case, loaded, Path(scratch), say)
            except Halt as halt:
                case.refused["expect" if case.place else "model"] = halt
    return case


def container_memory(folder: Path = Path("/sys/fs/cgroup")) -> tuple[float, float]:
    """Return how many bytes of memory this container has free, of how many; inf = no limit."""
    with suppress(OSError, ValueError):  # "max" is not a number: no limit
        limit, used = (
            float((folder / f"memory.{name}").read_text()) for name in ("max", "current")
        )
        # The kernel takes cached pages of files back first.
        cached = re.search(
            r"^inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE
        )
        return max(0, limit - used + float(cached[1] if cached else 0)), limit
    return float("inf"), float("inf")


def _read_job(case: Case, loaded: LoadedConfig, scratch: Path, say: Callable[[str], None]) -> None:
    """Read everything about the config's job, and encode on each device. Raises Halt if there is no model; OSError."""
    config, model = loaded.config, loaded.config.model
    lock = Layout(config.workdir).lock
    case.busy_pid = (
        holder.pid if is_held(lock) and (holder := read_holder(lock)) is not None else None
    )
    say("reading the first rows of each output")
    for name, output in config.outputs.items():
        case.sources[name] = output.template_note
        try:
            try_first_row(request_of(config, name, None))
        except Halt as halt:
            if halt.code is ExitCode.CONFIG:
                case.sources[name] = halt

    def ask_hub(wanted: Repository, **variables: str) -> ModelSource | Verdict:
        folder, environment = Path(tempfile.mkdtemp(dir=scratch)), {**os.environ, **variables}
        return fetch_model(wanted, folder, lambda: None, environment)

    class NotHereError(Exception):
        """It has been said what is not."""

    def at_hand(wanted: Repository, _: str) -> ModelSource:
        pinned = pinned_source(cache, wanted)
        found = pinned if pinned and pinned.path else ask_hub(wanted, HF_HUB_OFFLINE="1")
        if isinstance(found, ModelSource):
            return found
        say(f"asking the model hub for {wanted.name}")
        answer = ask_hub(replace(wanted, backend=ONLY_ASK))
        case.place, case.missing = "hub", wanted.name
        case.no_download = answer if isinstance(answer, Verdict) else None
        raise NotHereError

    cache, source = Layout(config.workdir).model, ModelSource(None, model.revision)
    here = None if model.is_plugin else source_at_hand(model, cache)
    try:
        if not model.is_plugin:
            source = here or at_hand(repository_of(model), "")
            case.doubts = modelfolder.check_model_files(config, source.path)
            take_outside(source, model, at_hand, scratch / "hub")
    except NotHereError:
        return
    except Halt as halt:
        case.refused["right-vectors"] = halt
    case.place = (
        "plugin" if source.path is None else "folder" if source.path == model.name else "cache"
    )
    case.expected = expected = read_expected(model.expect) if model.expect is not None else None
    case.model = modelfolder.read_model_folder(Path(source.path)) if source.path else case.model
    case.dtype = case.model.computes_in(model)
    if case.busy_pid is not None or "right-vectors" in case.refused:
        return
    # As `encode` of the config says if its vectors are expected, else as the first output is encoded.
    first = config.effective_encode(next(iter(config.outputs)))
    encode = encode_spec(first if expected is None else config.encode)
    spec = source.spec(model)
    texts = () if expected is None else expected.texts
    # Each text is a batch all the same; whether padding changes vectors is tried if there will be any.
    limits = ONE_ROW if model.is_plugin or first.batch_size == 1 else Limits(rows=2, tokens=1)
    for device in case.devices:
        say(f"encoding a sample of texts on {device}")
        folder = Path(tempfile.mkdtemp(dir=scratch))
        trial = try_texts((*SAMPLE, *texts), spec, encode, device, loaded, folder, limits=limits)
        case.samples.append(sample := Sample(trial, device))
        if trial.vectors is not None and expected is not None:
            sample.unexpected = expected.refusal(trial.vectors[len(SAMPLE) :], trial.dtype, spec)
        if trial.vectors is not None and device is case.devices[0]:
            say("encoding it once more in another process")
            sample.again = try_texts(
                SAMPLE, spec, encode, device, loaded, Path(tempfile.mkdtemp(dir=scratch))
            )


# --- the checks

_ACCESS = "in a container, start it with GPU access (docker run --gpus all)"
_INSTALL = "Install a torch for this machine: https://pytorch.org/get-started/locally"


def examine(case: Case) -> list[Finding]:
    """Make all checks, in the order in which they are shown."""
    checks = [check for check in CHECKS if not (case.wanted == "cpu" and check in (_driver, _gpus))]
    refused = [_refusal(name, halt) for name, halt in case.refused.items()]
    return refused + [found for check in checks for found in check(case)]


def _refusal(check: str, halt: Halt, where: str = "") -> Finding:
    why = f": {halt.why}" if halt.why else ""
    blame = "machine" if halt.code is ExitCode.MACHINE else "config"
    return Finding(
        check, FAULT, f"{where}{halt.what}{why}", halt.remedy or "Correct it in the config.", blame
    )


def _driver(case: Case) -> Iterator[Finding]:
    broken = FAULT if case.wanted else WARNING
    if forbidden := [path for path, may in case.nodes.items() if not may]:
        meaning = f"no permission to open {', '.join(forbidden)}: CUDA will not see a GPU"
        yield Finding("driver", broken, meaning, "Join the group that owns /dev/nvidia*.")
    if case.smi.returncode == 0:
        yield Finding(
            "driver", OK, f"nvidia-smi lists {counted(case.smi.text.count('GPU '), 'GPU')}"
        )
    elif case.smi.text or case.cards or case.nodes:
        # Not more than a warning: whether CUDA works is what torch finds.
        means, mend = (
            "nvidia-smi is not on PATH",
            "Add it to PATH (under WSL2 it is in /usr/lib/wsl/lib).",
        )
        if case.smi.text:
            rule = diagnose(
                Fault(Phase.CUDA_INIT, (Cause("nvidia-smi", (), case.smi.text),), "")
            ).rule
            known = rule.outcome in (Outcome.SETUP, Outcome.HARDWARE_FAULT)
            means = f"nvidia-smi fails: {case.smi.line}" + f". {rule.cause.rstrip('.')}" * known
            mend = rule.remedy if known else f"Reboot; {_ACCESS}."
        means += "; CUDA may work all the same, but nothing is known of the GPU's memory and health"
        yield Finding("driver", WARNING, means, mend)
    else:
        mend = f"Install or load the driver; {_ACCESS}; or write `device: cpu`."
        state = FAULT if case.wanted else NOTE
        yield Finding("driver", state, "this machine has no NVIDIA driver, and so no GPU", mend)


def _gpus(case: Case) -> Iterator[Finding]:
    for device, opinion in case.opinions.items():
        if opinion.health is Health.BROKEN:
            mend = "Ask the administrator to reset the GPU (nvidia-smi -r) or to reboot; replace it if this returns."
            state = FAULT if case.wanted else WARNING
            yield Finding("gpu-health", state, f"{device}: {opinion.why}", mend)
        elif opinion.health is Health.BUSY and case.busy_pid is None:
            mend = "End what is not needed, or choose another GPU (`device: cuda:N`)."
            yield Finding("gpu-memory", WARNING, f"{device}: {opinion.why}", mend)
        elif opinion.health is Health.GOOD:
            yield Finding("gpu-health", OK, f"{device} reports no fault")


def _torch(case: Case) -> Iterator[Finding]:
    report, failed = case.probe.report, NOTE if case.place == "plugin" else FAULT
    fault, mend, log = (
        report.fault if report is not None else None,
        _INSTALL,
        last_line(case.probe.log_tail),
    )
    why = (
        f"{describe_exit(case.probe.returncode)} {log}"
        if case.probe.returncode is not None
        else "it hangs"
    )
    found = (
        diagnose(fault)
        if fault is not None
        else diagnose_log(case.probe.log_tail, case.probe.returncode or 0)
    )
    if found is not None:
        why, mend = f"{found.rule.cause.rstrip('.')}: {found.headline}", found.rule.remedy
    if report is None or report.phase in (Phase.IMPORT, Phase.FORWARD):
        yield Finding(
            "torch", failed, f"torch cannot be imported, or does not compute: {why}", mend
        )
        return
    build = (
        f"CUDA {report.cuda}"
        if report.cuda
        else f"ROCm {report.hip}"
        if report.hip
        else "the CPU only"
    )
    yield Finding(
        "torch", OK, f"torch {report.versions.get('torch', '')} is built for {build}, and computes"
    )
    if case.wanted == "cpu" or not (case.wanted or case.nodes or case.smi.text):
        return
    if case.cards and fault is None and report.phase is not Phase.CUDA_INIT:
        yield Finding("torch-gpu", OK, f"torch computes on {', '.join(map(str, case.cards))}")
        return
    if report.cuda is None:
        why, mend = "it is not built for CUDA", f"{_INSTALL}; or write `device: cpu`."
    state = WARNING if case.place == "plugin" or not case.wanted else FAULT
    yield Finding("torch-gpu", state, f"torch cannot use the GPU: {why}", mend)


def _memory_and_disk(case: Case) -> Iterator[Finding]:
    workers = 1
    if case.config is not None:
        workers = (case.config.workers.per_device + case.config.workers.standby) * max(
            1, len(case.devices)
        )
    need, (free, total) = (
        (1 << 30) + (case.model.weights_bytes or 0),
        case.memory,
    )  # the libraries take about a GiB
    text = f"{human_bytes(free)} of {human_bytes(total)} of memory are free; "
    text += f"about {human_bytes(workers * need)} is needed for {counted(workers, 'worker')}"
    state, mend = OK, "Set workers.standby lower, free some memory, or raise the container's limit."
    if free < workers * need and case.place != "plugin":
        state = FAULT if free < need else WARNING
    yield Finding("memory", state, text, mend * (state is not OK))
    if case.config is None:
        return
    path = case.config.workdir
    here = next(each for each in (path, *path.parents) if each.exists())
    room = free_bytes(here) or 0
    state, text, mend = OK, f"{path} has {human_bytes(room)} free", ""
    if not here.is_dir() or not os.access(here, os.W_OK | os.X_OK):
        state, text = FAULT, f"no permission to write to {path}"
        mend = "Change its owner or its permissions, or choose another workdir."
    elif room < 1 << 30:
        state, mend = WARNING, "Free some space, or choose another workdir."
    yield Finding("disk", state, text, mend)


def _source(case: Case) -> Iterator[Finding]:
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
    if case.config is None or not case.place:
        return
    name, weights_bytes = case.config.model.name, case.model.weights_bytes
    fetch, missing = f"hf download {case.missing}", f"{case.missing} is not in the local cache"
    where = {"plugin": "is passed to the plug-in encoder unchanged", "folder": "is a local folder"}
    size = f", {human_bytes(weights_bytes)} of weights" if weights_bytes else ""
    if case.place != "hub":
        yield Finding("model", OK, f"{name} {where.get(case.place, 'is in the local cache')}{size}")
    elif case.no_download is not None:
        mend = (
            case.no_download.remedy
            or f"Check the network, or run on a machine that has one: {fetch}"
        )
        blame = "machine" if case.no_download.outcome is Outcome.HUB else "config"
        yield Finding("model", FAULT, f"{missing}: {case.no_download.reason}", mend, blame)
    else:
        mend = f"To have it checked here, run first: {fetch}"
        yield Finding("model", NOTE, f"{missing}: the first run downloads it", mend)
    yield from (Finding("right-vectors", WARNING, *found) for found in case.doubts)
    if case.wanted == "cpu" and case.dtype == "bfloat16" and not gpus.has_bfloat16():
        slow = "the model computes in bfloat16, for which this CPU has no instructions: slower than float32"
        yield Finding("dtype", WARNING, slow, "Set model.dtype to float32.")
    for card in (
        sorted(set(case.cards), key=str) if case.wanted == "cuda" and case.dtype is not None else ()
    ):
        if (unfit := unfit_dtype(case.dtype, case.model.model_type, card)) is not None:
            yield Finding("dtype", WARNING, *unfit)
        else:
            better, fits = (
                advised_dtype(case.model.model_type, card),
                f"the model computes in {case.dtype}",
            )
            if case.dtype == "float32" != better:
                fits += f" (model.dtype {better} takes less memory; it needs another workdir, since its vectors differ)"
            yield Finding("dtype", OK, f"{fits}, which suits {card}")


def _encoding(case: Case) -> Iterator[Finding]:
    if case.busy_pid is not None:
        meaning = f"no sample was encoded, because a run (pid {case.busy_pid}) uses the workdir"
        yield Finding("encoding", NOTE, meaning)
    elif not case.samples and case.config is not None:
        yield Finding("encoding", NOTE, "no sample was encoded: fix the faults above first")
    for sample in case.samples:
        trials = (sample.trial, sample.again)
        failed = next((each for each in trials if each is not None and each.vectors is None), None)
        found = _failed(case, failed) if failed is not None else _compared(case, sample)
        yield replace(found, meaning=f"on {sample.device}, {found.meaning}")
    if case.expected is not None and case.config is not None and case.samples:
        if wrong := next((sample.unexpected for sample in case.samples if sample.unexpected), None):
            yield _refusal("expect", wrong)
        elif all(sample.trial.vectors is not None for sample in case.samples):
            what = f"the model gives the vectors of {counted(len(case.expected.texts), 'text')} in {case.expected.path}"
            yield Finding("expect", OK, what)


def _failed(case: Case, trial: Trial) -> Finding:
    verdict = trial.verdict
    mend = verdict.remedy or "Correct what the log names: the encoder, torch, or another package."
    if verdict.rule == "wrong-model":
        return Finding("right-vectors", FAULT, verdict.reason, mend, "config")
    text = f"a worker got three short texts and failed: {verdict.outcome}: {verdict.reason}"
    text += f"\nlast line of its log: {trial.log_line}" if trial.log_line else ""
    # No repair of the machine changes what a plug-in raises, or vectors that are not usable.
    config = verdict.outcome in (Outcome.BAD_OUTPUT, Outcome.BAD_INPUT, Outcome.SETUP)
    config |= case.place == "plugin" and verdict.outcome is Outcome.CRASHED
    if verdict.exit_code is not None:
        config = verdict.exit_code == ExitCode.CONFIG
    return Finding("encoding", FAULT, text, mend, "config" if config else "machine")


def _compared(case: Case, sample: Sample) -> Finding:
    """Compare the vectors of equal texts, of different ones, and those of two processes."""
    assert sample.trial.vectors is not None
    vectors, elsewhere = sample.trial.vectors[: len(SAMPLE)], 0.0
    largest = float(np.abs(vectors[0]).max())
    differ = float(np.abs(vectors[0] - vectors[2]).max()) / largest
    if sample.again is not None and (again := sample.again.vectors) is not None:
        elsewhere = (
            float(np.abs(vectors - again).max()) / largest if again.shape == vectors.shape else 1.0
        )
    if differ > 1e-3:  # half precision has about three digits
        meaning = (
            f"the same text, encoded twice, gives vectors that differ by {differ:.2g} of their size"
        )
        mend = "Make the encoder deterministic: eval() on its model, no dropout; else have the GPU checked."
        return Finding(
            "encoding", FAULT, meaning, mend, "config" if case.place == "plugin" else "machine"
        )
    if elsewhere > 0.01:
        meaning = "two processes that load the model give the same text vectors that differ by "
        meaning += f"{elsewhere:.2g} of their size: each has other weights"
        mend = "Load all weights from a file: each process draws at random what a folder lacks."
        return Finding("encoding", FAULT, meaning, mend, "config")
    if (vectors[0] == vectors[1]).all():
        meaning = "two different texts get the same vector: the texts do not reach the model"
        mend = "Check the encoder, or download the model again with all its files."
        return Finding("encoding", WARNING, meaning, mend, "config")
    return Finding(
        "encoding",
        OK,
        f"a text encoded twice gives the same vector of {vectors.shape[1]} dimensions",
    )


# In the order in which they are shown.
CHECKS: tuple[Callable[[Case], Iterator[Finding]], ...]
CHECKS = (_driver, _gpus, _torch, _memory_and_disk, _source, _model, _encoding)


def exit_code(findings: Sequence[Finding]) -> ExitCode:
    """Return 0 without a fault; 69 if one of the faults is the machine's, else 78."""
    blamed = {finding.blame for finding in findings if finding.state is FAULT}
    return (
        ExitCode.MACHINE
        if "machine" in blamed
        else ExitCode.CONFIG
        if blamed
        else ExitCode.COMPLETE
    )


def render(findings: Sequence[Finding]) -> list[str]:
    """Write a line for each finding, what to do below it, and a last line that sums up."""
    lines = list[str]()
    for finding in findings:
        words = finding.meaning + f"\ndo: {finding.mend}" * bool(finding.mend)
        lines += f"{finding.state:<7}  {finding.check}: {words}".replace(
            "\n", f"\n{' ' * 9}"
        ).split("\n")
    states = [finding.state for finding in findings]
    faults, warnings = states.count(FAULT), states.count(WARNING)
    end = "a run can do its job; read the warnings" if warnings else "nothing stands in the way"
    end = "correct the faults before a run" if faults else end
    return [*lines, "", f"{counted(faults, 'fault')}, {counted(warnings, 'warning')}; {end}"]


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what `--json` prints: `ok`, and an object for each finding."""
    rows = [
        asdict(each) | {"blame": each.blame if each.state is FAULT else None} for each in findings
    ]
    return {"ok": not any(each.state is FAULT for each in findings), "findings": rows}
