"""Findings on the GPUs, their driver, and the torch that is to use them. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.readings import GpuReading, Readings, Wanted, Whereabouts
from chunkvisor.devices.gpu import Device, ProbeReading, select_visible
from chunkvisor.devices.health import asks_for_recovery
from chunkvisor.judge import describe_exit
from chunkvisor.store.attempt import last_line
from chunkvisor.units import counted, human_bytes, listed
from chunkvisor_worker.contract.messages import Phase, ProbeReport
from chunkvisor_worker.contract.taxonomy import Diagnosis, diagnose, diagnose_log

_GIVE_ACCESS = "in a container, start it with GPU access (docker run --gpus all); else ask the administrator"
_REBOOT = "reboot, or unload and load the nvidia kernel modules"
# nvidia-smi's exit codes (its manual, RETURN VALUE).
_SMI_CODES = {
    4: ("this user may not ask the driver", "add the user to the group that owns /dev/nvidia*; " + _GIVE_ACCESS),
    6: ("nvidia-smi finds no GPU", _GIVE_ACCESS),
    8: ("a power cable of the GPU is not attached", "attach it"),
    9: (
        "the driver is not loaded",
        "load it: modprobe nvidia; after a kernel update, install the driver again",
    ),
    12: ("the library of NVML is missing", "install the driver's libraries; " + _GIVE_ACCESS),
    14: ("the GPU's infoROM is damaged", "have the GPU checked"),
    15: ("a GPU has fallen off the bus", "reboot; if it comes again, have the GPU, its power and its slot checked"),
}
_SMI_TEXTS = {
    "version mismatch": ("the driver's libraries and its kernel module are of different versions", _REBOOT),
    "Unknown Error": (
        "the container has lost its access to the GPU",
        f"create the container again; on the host: {_REBOOT}",
    ),
    "Insufficient Permissions": _SMI_CODES[4],
    "couldn't communicate with the NVIDIA driver": _SMI_CODES[9],
}
_OTHERS_BYTES = 512 << 20
"""Less than this, held by others, does not matter: a desktop or the driver itself."""
_LARGE_SHARE = 0.5
_NO_GPU_CODES = (4, 6, 8, 9, 15)
"""Of those above: CUDA will not work either. With the others NVML alone is broken, and runs complete."""


def severity(wanted: Wanted, state: State = State.FAULT) -> State:
    """A GPU fault counts in full where the config asks for a GPU, and as a warning at most where there is no config."""
    if wanted is Wanted.CPU:
        return State.NOTE
    return State.WARNING if wanted is Wanted.ANYTHING and state is State.FAULT else state


def check_gpus(readings: Readings) -> Iterator[Finding]:
    """Findings `driver`, `nvml`, `gpu`, `visible-gpus`, and of every GPU `mig`, `gpu-health` and `gpu-memory`."""
    if readings.wanted is Wanted.CPU:
        yield Finding("gpu", State.NOTE, "the config asks for the CPU: GPUs are not looked at")
        return
    found = [*_check_driver(readings), *_check_visible(readings)]
    yield from found
    if readings.no_device is not None and State.FAULT not in {finding.state for finding in found}:
        yield Finding("gpu", State.FAULT, *readings.no_device)
    for gpu in readings.smi.gpus:
        if gpu.uuid in readings.chosen or not any(uuid.startswith("GPU-") for uuid in readings.chosen):
            yield from _check_mig(gpu, readings)
            yield from _check_health(gpu, readings.wanted)
            yield from _check_memory(gpu, readings.wanted)


def _check_driver(readings: Readings) -> Iterator[Finding]:
    smi, driver, wanted = readings.smi, readings.driver, readings.wanted
    report = readings.probe.report
    works = report is not None and bool(report.gpus)
    if driver.forbidden and not works:
        meaning = f"this user cannot open {', '.join(driver.forbidden)}: CUDA will see no GPU"
        yield Finding("driver", severity(wanted), meaning, _SMI_CODES[4][1])
    elif driver.module is not None and not driver.nodes and not works:
        meaning = f"the driver {driver.module} is loaded, but there is no /dev/nvidia* here"
        yield Finding("driver", severity(wanted), meaning, _GIVE_ACCESS)
    elif driver.module is None and not driver.nodes and smi.returncode is None and not smi.line and not works:
        state = State.FAULT if wanted is Wanted.CUDA else State.NOTE
        mend = "install or load the driver; " + _GIVE_ACCESS + "; or write `device: cpu`"
        yield Finding("driver", state, "there is no NVIDIA driver, and so no GPU, here", mend)
        return
    elif version := smi.driver or driver.module:
        yield Finding("driver", State.OK, f"NVIDIA driver {version}" + (f", for CUDA {smi.cuda}" if smi.cuda else ""))
    yield _check_nvml(readings)


def _check_nvml(readings: Readings) -> Finding:
    smi = readings.smi
    if smi.returncode == 0:
        return Finding("nvml", State.OK, f"nvidia-smi answers, and lists {counted(len(smi.gpus), 'GPU')}")
    if smi.returncode is None and smi.line:
        mend = "reboot; if it comes again, have the GPU checked"
        meaning = f"nvidia-smi hangs ({smi.line}): the driver is stuck"
    elif smi.returncode is None:
        meaning = "nvidia-smi is not on PATH"
        mend = "install the driver's tools, or put them on PATH (under WSL2 they are in /usr/lib/wsl/lib)"
    else:
        texts = (entry for text, entry in _SMI_TEXTS.items() if text.lower() in smi.line.lower())
        unknown = (f"nvidia-smi fails with exit code {smi.returncode}", _REBOOT)
        meaning, mend = next(texts, None) or _SMI_CODES.get(smi.returncode, unknown)
        meaning += f" (nvidia-smi: {smi.line})" if smi.line else ""
    report = readings.probe.report
    blind = "who holds the GPU's memory is unknown, and torch up to 2.13 reports running out of it as an NVML assertion"
    if report is not None and report.gpus:
        return Finding("nvml", State.WARNING, f"{meaning}; CUDA works all the same, but {blind}", mend)
    if readings.driver.nodes and not (smi.returncode is None and smi.line) and smi.returncode not in _NO_GPU_CODES:
        return Finding("nvml", severity(readings.wanted, State.WARNING), f"{meaning}; CUDA may work, but {blind}", mend)
    return Finding("nvml", severity(readings.wanted), meaning, mend)


def _check_visible(readings: Readings) -> Iterator[Finding]:
    value = readings.own.get("CUDA_VISIBLE_DEVICES")
    if value is None or readings.smi.returncode != 0:
        return
    check, wanted, gpus = "visible-gpus", readings.wanted, readings.smi.gpus
    entries = [part.strip() for part in value.split(",")]
    mend = "unset CUDA_VISIBLE_DEVICES, or name in it what `nvidia-smi -L` lists"
    if not value.strip() or value.strip() == "-1":
        state = State.FAULT if wanted is Wanted.CUDA else State.NOTE
        yield Finding(check, state, f"CUDA_VISIBLE_DEVICES is {value!r}: it hides every GPU", mend)
    elif len(set(entries)) < len(entries):
        meaning = f"CUDA_VISIBLE_DEVICES={value} names a GPU twice: CUDA then shows none"
        yield Finding(check, severity(wanted), meaning, mend)
    elif len({_kind(entry) for entry in entries}) > 1:
        meaning = f"CUDA_VISIBLE_DEVICES={value} mixes numbers and ids: torch reads no further than the first kind"
        yield Finding(check, State.WARNING, meaning, mend)
    else:
        seen = select_visible([Device("cuda", gpu.uuid, gpu.name) for gpu in gpus], value)
        if len(seen) == len(entries):
            yield Finding(check, State.OK, f"CUDA_VISIBLE_DEVICES={value} shows {counted(len(seen), 'GPU')}")
        else:
            bad = entries[len(seen)]
            state = State.WARNING if seen else severity(wanted)
            meaning = f"CUDA_VISIBLE_DEVICES={value}: {bad!r} names no GPU here, which hides it and all after it"
            yield Finding(check, state, meaning, mend)


def _check_mig(gpu: GpuReading, readings: Readings) -> Iterator[Finding]:
    if not gpu.mig:
        return
    name = _name(gpu)
    if gpu.mig_slices == 0:
        mend = "create one (nvidia-smi mig -cgi … -C), or turn MIG off (nvidia-smi -mig 0); both need root"
        meaning = f"{name} is in MIG mode, but has no slice: CUDA sees no GPU"
        yield Finding("mig", severity(readings.wanted), meaning, mend)
    elif not readings.own.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        meaning = f"{name} is in MIG mode: a job has the memory of one slice, and CUDA chooses which"
        mend = "set CUDA_VISIBLE_DEVICES to the MIG-… id of one slice, as `nvidia-smi -L` lists them"
        yield Finding("mig", State.WARNING, meaning, mend)
    else:
        yield Finding("mig", State.OK, f"{name} is in MIG mode, and CUDA_VISIBLE_DEVICES names a slice")


def _check_health(gpu: GpuReading, wanted: Wanted) -> Iterator[Finding]:
    check, name = "gpu-health", _name(gpu)
    bad = list(_ailments(gpu))
    if bad:
        worst = State.FAULT if any(state is State.FAULT for state, _ in bad) else State.WARNING
        mend = "ask the administrator to reset the GPU (nvidia-smi -r, with nobody on it) or to reboot; "
        mend += "if it comes again, to have it replaced"
        yield Finding(check, severity(wanted, worst), f"{name}: " + "; ".join(text for _, text in bad), mend)
    elif gpu.recovery_action.lower() != "none" and gpu.ecc_uncorrectable is None:
        yield Finding(check, State.NOTE, f"{name} tells nothing of its health; desktop GPUs and old drivers do not")
    else:
        yield Finding(check, State.OK, f"{name} reports no memory error and asks for no reset")


def _ailments(gpu: GpuReading) -> Iterator[tuple[State, str]]:
    # Peer-to-peer traffic between GPUs is none that a worker here has.
    if asks_for_recovery(gpu.recovery_action) or "p2p" in gpu.recovery_action.lower():
        state = State.WARNING if "p2p" in gpu.recovery_action.lower() else State.FAULT
        yield state, f"the driver asks for a recovery action: {gpu.recovery_action}"
    if gpu.remap_failed:
        yield State.FAULT, "a faulty row of its memory could not be replaced by a spare one"
    if gpu.remap_pending:
        yield State.WARNING, "a faulty row of its memory waits for a reset to be replaced"
    if gpu.ecc_uncorrectable:
        errors = counted(gpu.ecc_uncorrectable, "uncorrectable memory error")
        yield State.WARNING, f"{errors} since the driver was loaded"


def _check_memory(gpu: GpuReading, wanted: Wanted) -> Iterator[Finding]:
    check, name = "gpu-memory", _name(gpu)
    if "Prohibited" in gpu.compute_mode:
        meaning = f"{name}: its compute mode forbids CUDA"
        yield Finding(check, severity(wanted), meaning, "nvidia-smi -c DEFAULT, as root")
        return
    used = f"{human_bytes(gpu.used_bytes)} of {human_bytes(gpu.total_bytes)}"
    if gpu.processes and "Exclusive" in gpu.compute_mode:
        meaning = f"{name} admits one process at a time, and {_who(gpu)} has it"
        yield Finding(check, severity(wanted), meaning, "wait for it, end it, or: nvidia-smi -c DEFAULT, as root")
    elif gpu.used_bytes < _OTHERS_BYTES:
        yield Finding(check, State.OK, f"{name}: {used} in use")
    elif gpu.processes and all(process.is_worker for process in gpu.processes):
        yield Finding(check, State.NOTE, f"{name}: {used} in use, by a run of chunkvisor: {_who(gpu)}")
    else:
        who = _who(gpu) if gpu.processes else "processes that cannot be seen from here (of a container, or of its host)"
        state = State.WARNING if gpu.used_bytes > _LARGE_SHARE * gpu.total_bytes else State.NOTE
        mend = (
            "end what is not needed (nvidia-smi shows it), or choose another GPU (`device: cuda:N`) or smaller batches"
        )
        yield Finding(check, state, f"{name}: {used} in use before a run begins, by {who}", mend)


def _who(gpu: GpuReading) -> str:
    shown = [
        f"pid {process.pid}"
        + (f" {process.name}" if process.name else "")
        + (f" ({human_bytes(process.used_bytes)})" if process.used_bytes else "")
        for process in sorted(gpu.processes, key=lambda process: -(process.used_bytes or 0))
    ]
    return listed(shown, 5)


def _kind(entry: str) -> str:
    return entry[:3] if entry.startswith(("GPU", "MIG")) else ""


def _name(gpu: GpuReading) -> str:
    return f"{gpu.name or 'GPU'} ({gpu.uuid[:12]})"


ALLOCATOR_RULE = "allocator-config"
_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_INSTALL = "https://pytorch.org/get-started/locally"
_REINSTALL = f"reinstall torch, in a build for this machine: {_INSTALL}"
_OF_A_RUN = re.compile(
    r"chunk is tried again|run goes on|(?:next|new) worker (?:runs|tries)|bisected|fault\.json|failed tries"
    r"|chunkvisor doctor",
    re.IGNORECASE,
)


def before_a_run(remedy: str) -> str:
    """The clauses of a rule's remedy that a person can act on now; empty where there are none.

    The others say what a run does by itself, which helps nobody who has not begun one.
    """
    clauses = (clause.strip() for clause in re.split(r";\s|(?<=[a-z)`])\.(?:\s|$)", remedy))
    kept = (clause for clause in clauses if clause and not _OF_A_RUN.search(clause))
    return "; ".join(re.sub(r"^if it (?:returns|comes back), ", "", clause, flags=re.IGNORECASE) for clause in kept)


def check_torch(readings: Readings) -> Iterator[Finding]:
    """Findings `torch`, and where a GPU may be used `torch-driver`, `torch-gpu`, `allocator` and `gpu-generation`.

    A plug-in encoder may do without torch: what is wrong with it is then a warning, that it is not there a note, and
    the sample decides.
    """
    is_plugin = readings.job is not None and readings.job.whereabouts is Whereabouts.PLUGIN
    if is_plugin and readings.probe.lacks_torch:
        yield Finding("torch", State.NOTE, "torch is not installed; the plug-in encoder has to do without it")
        return
    for finding in _check_torch(readings):
        yield replace(finding, state=State.WARNING) if is_plugin and finding.state is State.FAULT else finding


def rule_of(probe: ProbeReading) -> str:
    """Name of the rule by which the probe failed; empty where it did not, or by none that is known."""
    diagnosis = _diagnosis(probe)
    return diagnosis.rule.name if diagnosis is not None else ""


def runs_on(capability: Sequence[int], arch_list: Sequence[str]) -> bool:
    """Whether code for one of the architectures runs on a GPU of that compute capability (major, minor).

    Machine code (sm_86) runs on its own major and the same or a higher minor; with the suffix `a` on exactly its own;
    PTX (compute_86) is translated for anything from there on (CUDA C++ Programming Guide, compute capabilities).
    """
    major, minor = capability
    for kind, arch_major, arch_minor, suffix in (match.groups() for match in map(_ARCH.fullmatch, arch_list) if match):
        arch = (int(arch_major), int(arch_minor))
        if suffix == "a":
            fits = arch == (major, minor)
        elif kind == "compute" and not suffix:
            fits = arch <= (major, minor)
        else:
            fits = arch[0] == major and arch[1] <= minor
        if fits:
            return True
    return False


def _check_torch(readings: Readings) -> Iterator[Finding]:
    report = readings.probe.report
    if report is None or report.phase in (Phase.IMPORT, Phase.FORWARD):
        yield _broken(readings.probe)
        return
    build = f"CUDA {report.cuda}" if report.cuda else f"ROCm {report.hip}" if report.hip else "the CPU only"
    yield Finding("torch", State.OK, f"torch {report.versions.get('torch', '')} is built for {build}, and computes")
    if readings.wanted is Wanted.CPU:
        return
    if report.cuda is None:
        state = {Wanted.CUDA: State.FAULT}.get(readings.wanted, State.WARNING if readings.smi.gpus else State.NOTE)
        mend = f"install a CUDA build of torch ({_INSTALL}), or write `device: cpu`"
        yield Finding("torch-gpu", state, f"this torch is a build for {build}: it cannot use an NVIDIA GPU", mend)
        return
    yield from _check_driver_torchbuild(report, readings)
    yield from _check_gpu(report, readings)
    yield from _check_generation(report, readings)


def _broken(probe: ProbeReading) -> Finding:
    report = probe.report
    if probe.lacks_torch:
        mend = "pip install 'chunkvisor[worker]', in the same environment as this command"
        return Finding("torch", State.FAULT, "torch is not installed, which sentence-transformers needs", mend)
    step = "compute" if report is not None and report.phase is Phase.FORWARD else "be imported"
    meaning, mend = _why(probe)
    return Finding("torch", State.FAULT, f"torch is installed but cannot {step}: {meaning}", mend or _REINSTALL)


def _check_driver_torchbuild(report: ProbeReport, readings: Readings) -> Iterator[Finding]:
    serves, built = _version(readings.smi.cuda), _version(report.cuda)
    if serves is None or built is None:
        return
    check, text = "torch-driver", f"torch is built for CUDA {report.cuda}, the driver serves CUDA {readings.smi.cuda}"
    if serves >= built:
        yield Finding(check, State.OK, text)
    elif serves[0] == built[0] or report.gpus:
        # Minor-version compatibility, or the compatibility package (NVIDIA, CUDA Compatibility).
        meaning = f"{text}: compatible, but code that is translated at run time (Triton, torch.compile) may fail"
        yield Finding(check, State.NOTE, meaning, "if something fails, update the driver")
    else:
        mend = f"update the driver, or install a torch built for CUDA {serves[0]}.x: {_INSTALL}"
        yield Finding(check, severity(readings.wanted), f"{text}: the driver is too old", mend)


def _check_gpu(report: ProbeReport, readings: Readings) -> Iterator[Finding]:
    check, wanted, driver = "torch-gpu", readings.wanted, readings.driver
    if report.fault is not None or report.phase is Phase.CUDA_INIT:
        if driver.module is None and not driver.nodes and not readings.smi.gpus:
            return  # there is no driver, which has been said
        meaning, mend = _why(readings.probe)
        if rule_of(readings.probe) == ALLOCATOR_RULE:
            blame = Blame.CONFIG if any("ALLOC_CONF" in name for name in readings.from_config) else Blame.MACHINE
            yield Finding("allocator", severity(wanted), meaning, mend, blame)
        else:
            yield Finding(check, severity(wanted), f"torch cannot use the GPU: {meaning}", mend or _REINSTALL)
    elif not report.gpus:
        state = State.FAULT if wanted is Wanted.CUDA else State.NOTE
        yield Finding(check, state, "no GPU is visible to torch", "check CUDA_VISIBLE_DEVICES and: nvidia-smi -L")
    else:
        yield Finding(check, State.OK, "torch computes on " + ", ".join(gpu.name for gpu in report.gpus))


def _check_generation(report: ProbeReport, readings: Readings) -> Iterator[Finding]:
    for gpu in report.gpus:
        text = f"{gpu.name} has compute capability {'.'.join(map(str, gpu.capability))}"
        if runs_on(gpu.capability, report.arch_list):
            yield Finding("gpu-generation", State.OK, f"{text}, for which this torch has code")
        else:
            mend = "install a torch whose torch.cuda.get_arch_list() has it: an older one for an old GPU, the newest "
            mend += "for a new one"
            meaning = f"{text}; this torch has code for {', '.join(report.arch_list) or 'nothing'} only"
            yield Finding("gpu-generation", severity(readings.wanted), meaning, mend)


def _diagnosis(probe: ProbeReading) -> Diagnosis | None:
    fault = probe.report.fault if probe.report is not None else None
    return diagnose(fault) if fault is not None else diagnose_log(probe.log_tail, probe.returncode or 0)


def _why(probe: ProbeReading) -> tuple[str, str]:
    """(what happened, the mend) of a probe that did not come to its end."""
    fault = probe.report.fault if probe.report is not None else None
    if fault is None and probe.returncode is None:
        return "it hangs", "if the GPU's driver is stuck, reboot; nvidia-smi would hang, too"
    if (diagnosis := _diagnosis(probe)) is None:
        last = last_line(probe.log_tail)
        return f"it ended with {describe_exit(probe.returncode or 0)}" + (f": {last}" if last else ""), ""
    return f"{diagnosis.rule.cause.rstrip('.')}: {diagnosis.headline}", before_a_run(diagnosis.rule.remedy)


def _version(text: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None
