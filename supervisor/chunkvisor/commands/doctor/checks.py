"""The doctor's checks: each judges what `readings` has read, and yields what it finds."""

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from chunkvisor.commands.doctor import Finding, Severity
from chunkvisor.commands.doctor.readings import SAMPLE, Readings, Sample
from chunkvisor.devices.dtypes import Card, advised_dtype, less_memory, unfit_dtype
from chunkvisor.devices.gpu import SLOW_BFLOAT16, Device, has_bfloat16, select_visible
from chunkvisor.devices.health import asks_for_recovery
from chunkvisor.engine.trial import wrong_vectors
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.judge import describe_exit
from chunkvisor.store.attempt import last_line
from chunkvisor.store.disk import free_bytes
from chunkvisor.units import counted, human_bytes, listed
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Phase
from chunkvisor_worker.contract.taxonomy import diagnose, diagnose_log

OK, NOTE, WARNING, FAULT = Severity
_Found = Iterator[Finding]
_ACCESS = "in a container, start it with GPU access (docker run --gpus all); else ask the administrator"
_REBOOT = "reboot, or unload and load the nvidia kernel modules"
_INSTALL = "install a torch for this machine: https://pytorch.org/get-started/locally"
_SMI = (
    ("insufficient permissions", "this user may not ask the driver", "join the group that owns /dev/nvidia*"),
    ("no devices were found", "there is no GPU", _ACCESS),
    ("communicate with the nvidia driver", "the driver is not loaded", "load it: modprobe nvidia; or install it again"),
    ("gpu is lost", "a GPU has fallen off the bus", "reboot; if it comes again, have the GPU and its power checked"),
    ("version mismatch", "the driver's libraries and its kernel module are of different versions", _REBOOT),
    ("unknown error", "the container has lost its access to the GPU", f"create it again; on the host: {_REBOOT}"),
    ("no answer", "the driver is stuck", "reboot; if it comes again, have the GPU checked"),
)
"""What nvidia-smi prints, what that means, what to do."""
_UNREAD = "no part of torch reads it, so it neither helps nor harms"
_VARIABLES = {
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (WARNING, "every allocation asks the driver, which is very slow"),
    "CUDA_LAUNCH_BLOCKING": (WARNING, "the GPU waits after every kernel, which is slow"),
    "NVIDIA_TF32_OVERRIDE": (NOTE, "it changes the last digits of the vectors; a workdir is bound to it"),
    **dict.fromkeys(("PYTORCH_NO_NVML", "C10_DISABLE_NVML", "CUDA_DISABLE_NVML"), (NOTE, _UNREAD)),
}
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def examine(r: Readings) -> list[Finding]:
    """Make all checks, in the order in which they are shown."""
    on_cpu = r.wanted == "cpu"
    checks = {name: check for name, check in CHECKS.items() if not (on_cpu and name in _OF_GPUS)}
    found = [replace(each, check=each.check or name) for name, check in checks.items() for each in check(r)]
    return [replace(_refusal(halt), check=name) for name, halt in r.refused.items()] + found


def _refusal(halt: Halt, what: str = "") -> Finding:
    why = f": {halt.why}" if halt.why else ""
    blame = "machine" if halt.code is ExitCode.MACHINE else "config"
    return Finding(FAULT, f"{what}{halt.what}{why}", halt.remedy or "correct it in the config", blame)


def _broken(r: Readings, meaning: str, mend: str) -> Finding:
    """Find a GPU broken: a fault only if the config asks for one."""
    return Finding(FAULT if r.wanted else WARNING, meaning, mend)


def _cluster(r: Readings) -> _Found:
    if (cluster := r.cluster) is None:
        return
    has = f"{counted(cluster.nodes, 'node')} with {counted(cluster.processors, 'processor')} and "
    has += counted(cluster.gpus, "GPU")
    if cluster.problem:
        mend = "start it: ray start --head; or correct engine.address; or, without Ray: pip install 'chunkvisor[ray]'"
        yield Finding(FAULT, f"no Ray cluster answers: {cluster.problem}", mend)
    elif r.wanted != "cpu" and not cluster.gpus:
        yield Finding(WARNING, f"{has}; a run would wait for a GPU", "start a node with a GPU: ray start --address")
    else:
        yield Finding(OK, f"{has}; the other findings are about this machine")


def _driver(r: Readings) -> _Found:
    forbidden = [path for path, may in r.nodes.items() if not may]
    version, cuda = _smi(r).findtext("driver_version") or r.module, _smi(r).findtext("cuda_version")
    if r.gpus or (r.nodes and not forbidden):
        yield Finding(OK, f"NVIDIA driver {version or 'of unknown version'}" + (f", for CUDA {cuda}" if cuda else ""))
    elif forbidden:
        yield _broken(r, f"this user cannot open {', '.join(forbidden)}: CUDA will see no GPU", _SMI[0][2])
    elif version:
        yield _broken(r, f"the driver {version} is loaded, but there is no /dev/nvidia* here", _ACCESS)
    elif not r.smi.text:
        mend = f"install or load the driver; {_ACCESS}; or write `device: cpu`"
        yield Finding(FAULT if r.wanted else NOTE, "there is no NVIDIA driver, and so no GPU, here", mend)


def _smi(r: Readings) -> ElementTree.Element:
    """Parse what nvidia-smi answered, element names as of driver 575."""
    try:
        return ElementTree.fromstring(r.smi.text)  # noqa: S314 - of the driver's own tool; expat loads no other entity
    except ElementTree.ParseError:
        return ElementTree.Element("nothing")


def _nvml(r: Readings) -> _Found:
    if r.smi.returncode == 0:
        yield Finding(OK, f"nvidia-smi answers, and lists {counted(len(_smi(r).findall('gpu')), 'GPU')}")
    elif r.smi.text or r.gpus or r.nodes:
        what = "nvidia-smi fails" if r.smi.text else "nvidia-smi is not on PATH (under WSL2 it is in /usr/lib/wsl/lib)"
        _, means, mend = next((each for each in _SMI if each[0] in r.smi.text.lower()), ("", "", _REBOOT))
        what += "".join(f": {words}" for words in (means, r.smi.text and r.smi.line) if words)
        # Not more than a warning: whether CUDA works is what torch finds.
        yield Finding(WARNING, f"{what}; CUDA may work all the same, but who holds the GPU's memory is not known", mend)


def _visible(r: Readings) -> _Found:
    value = r.own.get(_VISIBLE)
    if value is None or r.smi.returncode != 0:
        return
    entries = [part.strip() for part in value.split(",")]
    seen = select_visible([Device("cuda", each.findtext("uuid", "")) for each in _smi(r).iterfind("gpu")], value)
    if len(seen) == len(entries) and len({entry[:3] in ("GPU", "MIG") for entry in entries}) == 1:
        yield Finding(OK, f"CUDA_VISIBLE_DEVICES={value} shows {counted(len(seen), 'GPU')}")
        return
    why = "CUDA hides what comes after an entry that it does not know or of another kind, and all if one comes twice"
    meaning = f"CUDA_VISIBLE_DEVICES={value} shows {len(seen)} of {counted(len(entries), 'GPU')}: {why}"
    yield _broken(r, meaning, "unset it, or name in it what `nvidia-smi -L` lists")


def _gpus(r: Readings) -> _Found:
    chosen = [device.uuid for device in r.devices if device.uuid.startswith("GPU-")]
    for gpu in _smi(r).iterfind("gpu"):
        uuid = gpu.findtext("uuid", "")
        if not chosen or uuid in chosen:
            name = f"{gpu.findtext('product_name', 'GPU')} ({uuid[:12]})"
            yield replace(_health(r, gpu, name), check="gpu-health")
            yield replace(_gpu_memory(r, gpu, name), check="gpu-memory")
            if gpu.findtext("mig_mode/current_mig") == "Enabled" and "MIG-" not in r.own.get(_VISIBLE, ""):
                mend = f"set {_VISIBLE} to the MIG-… id of a slice, as `nvidia-smi -L` lists them"
                meaning = f"{name} is in MIG mode: a job has one slice of it, and CUDA chooses which"
                yield Finding(WARNING, meaning, mend, check="mig")


def _health(r: Readings, gpu: ElementTree.Element, name: str) -> Finding:
    action = gpu.findtext("gpu_recovery_action", "")
    numbers = [each.text or "" for each in gpu.iterfind("ecc_errors/volatile/*") if "uncorrectable" in each.tag]
    errors = sum(int(number) for number in numbers if number.isdecimal())
    faults, warnings = list[str](), list[str]()
    if asks_for_recovery(action):
        faults.append(f"the driver asks for a recovery action: {action}")
    if gpu.findtext("remapped_rows/remapped_row_failure") == "Yes":
        faults.append("a faulty row of its memory could not be replaced by a spare one")
    if gpu.findtext("remapped_rows/remapped_row_pending") == "Yes":
        warnings.append("a faulty row of its memory waits for a reset to be replaced")
    if errors:
        warnings.append(f"{counted(errors, 'uncorrectable memory error')} since the driver was loaded")
    if not faults and not warnings:
        return Finding(OK, f"{name} reports no memory error and asks for no reset")
    mend = "ask the administrator to reset the GPU (nvidia-smi -r) or to reboot; if it comes again, to replace it"
    found = _broken(r, f"{name}: {'; '.join(faults + warnings)}", mend)
    return found if faults else replace(found, state=WARNING)


def _gpu_memory(r: Readings, gpu: ElementTree.Element, name: str) -> Finding:
    used, total = (_mebibytes(gpu.findtext(f"fb_memory_usage/{each}", "")) for each in ("used", "total"))
    mode, what = gpu.findtext("compute_mode", ""), f"{name}: {human_bytes(used)} of {human_bytes(total)} in use"
    holders = list[str]()
    for each in gpu.iterfind("processes/process_info"):
        # Of its command line only the program: the rest may hold secrets.
        program = each.findtext("process_name", "").partition(" ")[0].rpartition("/")[2][:60]
        holders.append(f"pid {each.findtext('pid')} {program} ({each.findtext('used_memory')})")
    who = listed(holders, 5) or "processes that cannot be seen from here (of a container, or of its host)"
    if "Prohibited" in mode or (holders and "Exclusive" in mode):
        meaning = f"{name}: its compute mode, {mode}, forbids CUDA" + (f" next to {who}" if holders else "")
        return _broken(r, meaning, "wait for what has it, or: nvidia-smi -c DEFAULT, as root")
    if used < 512 << 20:  # a desktop's, or the driver's own
        return Finding(OK, what)
    mend = "end what is not needed, or choose another GPU (`device: cuda:N`) or smaller batches"
    state = WARNING if 2 * used > total and r.busy_pid is None else NOTE
    return Finding(state, f"{what} before a run begins, by {who}", mend)


def _mebibytes(text: str) -> int:
    number = text.partition(" ")[0]
    return int(number) << 20 if number.isdecimal() else 0


def _torch(r: Readings) -> _Found:
    report, failed = r.probe.report, NOTE if r.place == "plugin" else FAULT
    if r.probe.lacks_torch:
        mend = "pip install 'chunkvisor[worker]', in the same environment as this command"
        yield Finding(failed, "torch is not installed, which only a plug-in encoder can do without", mend)
    elif report is None or report.phase in (Phase.IMPORT, Phase.FORWARD):
        _, why, mend = _why(r)
        yield Finding(failed, f"torch is installed but cannot be imported, or not compute: {why}", mend or _INSTALL)
    else:
        build = f"CUDA {report.cuda}" if report.cuda else f"ROCm {report.hip}" if report.hip else "the CPU only"
        yield Finding(OK, f"torch {report.versions.get('torch', '')} is built for {build}, and computes")
        yield from _torch_gpu(r) if r.wanted != "cpu" else ()


def _torch_gpu(r: Readings) -> _Found:
    report = r.probe.report
    assert report is not None
    check = "torch-gpu"
    if r.gpus and report.fault is None and report.phase is not Phase.CUDA_INIT:
        cards = (str(Card(gpu.name, gpu.capability)) for gpu in r.gpus)
        yield Finding(OK, f"torch computes on {', '.join(cards)}", check=check)
        return
    rule, why, mend = _why(r)
    if report.cuda is None:
        why, mend = "it is not built for CUDA", f"{_INSTALL}; or write `device: cpu`"
    found = replace(_broken(r, f"torch cannot use the GPU: {why}", mend or _INSTALL), check=check)
    if rule == "allocator-config":
        blame = "config" if r.config is not None and set(_ALLOCATOR) & set(r.config.env) else "machine"
        found = replace(found, check="allocator", blame=blame)
    if not r.wanted and not r.nodes and not r.smi.text:
        found = replace(found, state=NOTE)  # no GPU is asked for, and none is here
    yield replace(found, state=WARNING) if r.place == "plugin" and found.state is FAULT else found


def _why(r: Readings) -> tuple[str, str, str]:
    """Return the rule by which torch failed, why it did, and what to do."""
    fault = r.probe.report.fault if r.probe.report is not None else None
    if fault is None and r.probe.returncode is None:
        return "", "it hangs", "if the GPU's driver is stuck, reboot; nvidia-smi would hang as well"
    found = diagnose(fault) if fault is not None else diagnose_log(r.probe.log_tail, r.probe.returncode or 0)
    if found is not None:
        why, mend = f"{found.rule.cause.rstrip('.')}: {found.headline}", found.rule.remedy
        return found.rule.name, why, mend
    ended = [f"it ended with {describe_exit(r.probe.returncode or 0)}", last_line(r.probe.log_tail)]
    return "", ": ".join(filter(None, ended)), ""


def _environment(r: Readings) -> _Found:
    given = {name: r.workers[name] for name in _ALLOCATOR if r.workers.get(name)}
    segments = any("expandable_segments:True" in value.replace(" ", "") for value in given.values())
    if segments and r.smi.returncode != 0 and r.workers.get("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC") != "0":
        meaning = "expandable_segments:True asks NVML at its first allocation, which does not work here"
        yield Finding(WARNING, meaning, "set TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=0", check="allocator")
    elif given and r.gpus:
        values = ", ".join(f"{name}={value}" for name, value in given.items())
        yield Finding(OK, f"torch takes {values}", check="allocator")
    for name, (state, why) in _VARIABLES.items():
        value = r.workers.get(name)
        if value is not None and (state is NOTE or value.lower() not in ("", "0", "false", "off", "no")):
            yield Finding(state, f"{name} is set: {why}", "unset it")
    if "/stubs" in r.workers.get("LD_LIBRARY_PATH", ""):
        meaning = "LD_LIBRARY_PATH has a folder named stubs: CUDA's stub library, made for building, may be loaded"
        yield Finding(WARNING, meaning, "remove that folder from LD_LIBRARY_PATH")


def _memory(r: Readings) -> _Found:
    workers = r.config.workers.per_device + r.config.workers.standby if r.config is not None else 1
    workers *= max(1, len(r.devices))
    each, (free, total) = (1 << 30) + (r.model.weights_bytes or 0), r.memory  # the libraries take about a GiB
    text = f"{human_bytes(free)} of {human_bytes(total)} of memory are free; "
    text += f"for {counted(workers, 'worker')} at once about {human_bytes(workers * each)} are needed"
    if r.place == "plugin":
        yield Finding(OK, f"{text}, and what the plug-in encoder takes")
    elif free < workers * each:
        mend = "set workers.standby lower, free some memory, raise the container's limit, or take a smaller model"
        yield Finding(FAULT if free < each else WARNING, text, mend)
    else:
        yield Finding(OK, text)


def _folder(path: Path, what: str) -> Finding:
    here = next(each for each in (path, *path.parents) if each.exists())
    if not here.is_dir() or not os.access(here, os.W_OK | os.X_OK):
        mend = "change its owner or its permissions, or choose another one"
        return Finding(FAULT, f"{what} {path} cannot be written into by this user", mend)
    free = free_bytes(here) or 0
    state, mend = (WARNING, "free some space, or choose another folder") if free < 1 << 30 else (OK, "")
    return Finding(state, f"{what} {path} has {human_bytes(free)} free", mend)


def _disk(r: Readings) -> _Found:
    if r.config is not None:
        found = _folder(r.config.workdir, "the workdir")
        yield replace(found, meaning=f"{found.meaning}; `chunkvisor plan` says how much a run needs")


def _limits(r: Readings) -> _Found:
    files, each = resource.getrlimit(resource.RLIMIT_NOFILE)[0], 32 + 2 * len(os.sched_getaffinity(0))
    if 0 <= files < 1024:  # a worker with CUDA opens a hundred or two
        text = f"a process may open {files:,} files, {'perhaps ' * (files >= 128)}too few for torch and CUDA"
        mend = "raise it: ulimit -n 4096, or LimitNOFILE= of systemd"
        yield Finding(WARNING if files >= 128 else FAULT, text, mend, check="files")
    if r.tasks_left < 4 * each:  # OpenMP's pool and the tokenizer's have a thread for every CPU
        text = f"{r.tasks_left:,.0f} more processes and threads are allowed; a worker here starts about {each}"
        mend = "raise it (docker run --pids-limit, ulimit -u, TasksMax= of systemd), or set OMP_NUM_THREADS to 4 in env"
        yield Finding(WARNING if r.tasks_left >= each else FAULT, text, mend, check="processes")


def _source(r: Readings) -> _Found:
    for name, problem in r.sources.items():
        if isinstance(problem, Halt):
            yield _refusal(problem, f"{name}: ")
        elif problem:
            yield Finding(WARNING, f"{name}: {problem}", "correct the template", "config")
        else:
            yield Finding(OK, f"{name}: the first rows can be read")


def _hub(r: Readings) -> _Found:
    if r.place not in ("", "cache", "hub"):
        return
    found = _folder(r.hub_cache, "the cache of the model hub")
    yield found if found.state is OK or r.place == "hub" else replace(found, state=NOTE)
    token = Path(r.own.get("HF_TOKEN_PATH") or r.hub_cache.parent / "token").expanduser()
    if r.own.get("HF_TOKEN") or token.exists():
        yield Finding(OK, "an access token of the hub is set", check="hub-token")
    else:
        mend = "private and gated models need one: set HF_TOKEN, or run: hf auth login"
        yield Finding(NOTE, "no access token of the hub is set", mend, check="hub-token")


def _model(r: Readings) -> _Found:
    if r.config is None or not r.place:
        return
    name, weights_bytes = r.config.model.name, r.model.weights_bytes
    fetch, missing = f"hf download {name}", f"{name} is not in the local cache"
    if r.place != "hub":
        where = {"plugin": "is handed to the plug-in encoder as it stands", "folder": "is a local folder"}
        size = f", {human_bytes(weights_bytes)} of weights" if weights_bytes else ""
        yield Finding(OK, f"{name} {where.get(r.place, 'is in the local cache')}{size}")
    elif r.is_offline:
        mend = f"unset HF_HUB_OFFLINE for the first run, or before it: {fetch}"
        yield Finding(FAULT, f"{missing}, and HF_HUB_OFFLINE forbids to download it", mend, "config")
    elif r.no_download is not None:
        mend = r.no_download.remedy or f"check the network, or fetch it where there is one: {fetch}"
        blame = "machine" if r.no_download.outcome is Outcome.HUB else "config"
        yield Finding(FAULT, f"{missing}, and the hub does not give it: {r.no_download.reason}", mend, blame)
    else:
        yield Finding(NOTE, f"{missing}: the first run downloads it", f"to have it before, and checked here: {fetch}")
    for fault in r.findings.faults:
        yield replace(_refusal(fault), check="right-vectors")
    for what, mend in r.findings.warnings:
        yield Finding(WARNING, what, mend, check="right-vectors")


def _dtype(r: Readings) -> _Found:
    if r.wanted == "cpu" and r.dtype == "bfloat16" and not has_bfloat16():
        yield Finding(WARNING, SLOW_BFLOAT16, "set model.dtype to float32")
    kind, cards = r.model.model_type, {Card(gpu.name, gpu.capability) for gpu in r.gpus if r.wanted == "cuda"}
    for card in sorted(cards, key=str) if r.dtype is not None else ():
        advice = advised_dtype(kind, card)
        if (unfit := unfit_dtype(r.dtype, kind, card)) is not None:
            yield Finding(WARNING, *unfit)
        elif r.dtype == advice.dtype:
            yield Finding(OK, f"the model computes in {r.dtype}, which suits {card}: {advice.why}")
        else:
            other = less_memory(r.dtype, kind, card) or f"{card} has it"
            yield Finding(OK, f"the model computes in {r.dtype}. {other.rstrip('.')}")


def _encoding(r: Readings) -> _Found:
    if r.busy_pid is not None:
        yield Finding(NOTE, f"a run is at work in the workdir (pid {r.busy_pid}): no sample is encoded next to it")
    elif not r.samples and r.config is not None:
        yield Finding(NOTE, "no sample was encoded: what stands above is in the way")
    for sample in r.samples:
        where = f" ({sample.where})" if sample.where else ""
        for found in _sample(r, sample):
            first, *others = found.meaning.split("\n")
            yield replace(found, meaning="\n".join([first + where, *others]))
    if r.expected is not None and r.config is not None and r.samples:
        if wrong := "".join(sample.unexpected for sample in r.samples):
            yield replace(_refusal(wrong_vectors(wrong, r.config.model.name)), check="expect")
        elif all(sample.trial.vectors is not None for sample in r.samples):
            what = f"the model gives the vectors of {counted(len(r.expected.texts), 'text')} in {r.expected.path}"
            yield Finding(OK, what, check="expect")


def _sample(r: Readings, sample: Sample) -> _Found:
    for trial in filter(None, (sample.trial, sample.again)):
        if trial.vectors is None:
            verdict, plugin_raised = trial.verdict, r.place == "plugin" and trial.verdict.outcome is Outcome.CRASHED
            check = "right-vectors" if verdict.rule == "wrong-model" else ""
            text = f"a worker got three short texts and failed: {verdict.outcome}: {verdict.reason}"
            text += f"\nlast line of its log: {trial.log_line}" if trial.log_line else ""
            mend = verdict.remedy or "correct what the log names: the encoder, torch, or another package"
            # What a plug-in raises, or vectors that are none, no repair of the machine changes.
            config = plugin_raised or verdict.outcome in (Outcome.BAD_OUTPUT, Outcome.BAD_INPUT, Outcome.SETUP)
            if verdict.exit_code is not None:
                config = verdict.exit_code == ExitCode.CONFIG
            yield Finding(FAULT, verdict.reason if check else text, mend, "config" if config else "machine", check)
            return
    assert sample.trial.vectors is not None
    vectors, again = sample.trial.vectors[: len(SAMPLE)], sample.again
    if r.place != "plugin":
        yield Finding(OK, "the tokenizer fits the model and knows ordinary words", check="tokenizer")
    largest = float(np.abs(vectors[0]).max())
    differ, elsewhere = float(np.abs(vectors[0] - vectors[2]).max()) / largest, 0.0
    if again is not None and again.vectors is not None:
        same_shape = again.vectors.shape == vectors.shape
        elsewhere = float(np.abs(vectors - again.vectors).max()) / largest if same_shape else 1.0
    if differ > 1e-3:  # half precision has about three digits
        meaning = f"the same text, encoded twice, gives vectors that differ by {differ:.2g} of their size"
        mend = "make the encoder deterministic: eval() on its model, no dropout; else have the GPU checked"
        yield Finding(FAULT, meaning, mend, "config" if r.place == "plugin" else "machine")
    elif elsewhere > 0.01:
        meaning = "two processes that load the model give the same text vectors that differ by "
        meaning += f"{elsewhere:.2g} of their size: each has other weights"
        meaning += "".join(f"\nwhile it loads: {note}" for note in sample.trial.notes[:3])
        mend = "load all weights from a file: what a folder lacks is drawn at random by each process, and buffers that "
        mend += "the model's code does not save are left empty by transformers 5; compare the folder with the model's "
        yield Finding(FAULT, meaning, f"{mend}page, and take the version of transformers that it names", "config")
    elif (vectors[0] == vectors[1]).all():
        meaning = "two different texts get the same vector: the texts do not reach the model"
        yield Finding(WARNING, meaning, "check the encoder, or download the model again with all its files", "config")
    else:
        digits = "up to rounding" if differ else "to the last digit"
        yield Finding(OK, f"a text encoded twice gives the same vector of {vectors.shape[1]} dimensions, {digits}")


CHECKS: dict[str, Callable[[Readings], _Found]] = {
    "cluster": _cluster,
    "driver": _driver,
    "nvml": _nvml,
    "visible-gpus": _visible,
    "gpu-health": _gpus,
    "torch": _torch,
    "environment": _environment,
    "memory": _memory,
    "disk": _disk,
    "processes": _limits,
    "source": _source,
    "hub-cache": _hub,
    "model": _model,
    "dtype": _dtype,
    "encoding": _encoding,
}
"""In the order in which they are shown; some yield findings of another name as well."""
_OF_GPUS = ("driver", "nvml", "visible-gpus", "gpu-health", "environment")
