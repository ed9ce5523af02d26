"""Findings on torch: whether it is here, computes, and was built for this driver and this generation of GPU.

Pure: the report of `chunkvisor_worker.probe` is handed in.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.gpus import severity
from chunkvisor.commands.doctor.readings import Readings, Wanted, Whereabouts
from chunkvisor.decide.outcome import describe_exit
from chunkvisor.devices.torchprobe import ProbeReading
from chunkvisor.store.attemptlogs import last_line
from chunkvisor_worker.contract.messages import Phase
from chunkvisor_worker.contract.probe import ProbeReport
from chunkvisor_worker.contract.taxonomy import Diagnosis, diagnose, diagnose_log

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
    yield from _check_driver(report, readings)
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


def _check_driver(report: ProbeReport, readings: Readings) -> Iterator[Finding]:
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
