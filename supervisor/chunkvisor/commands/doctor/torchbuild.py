"""Findings on torch: whether it is here, computes, and was built for this driver and this generation of GPU.

Pure: it never imports torch; the report of `chunkvisor_worker.probe` is handed in.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.gpus import severity
from chunkvisor.commands.doctor.mends import before_a_run
from chunkvisor.commands.doctor.readings import ProbeReading, Readings, Wanted, Whereabouts
from chunkvisor.decide.outcome import describe_exit
from chunkvisor.errors import ExitCode
from chunkvisor_worker.contract.messages import Phase
from chunkvisor_worker.contract.probe import ProbeReport
from chunkvisor_worker.contract.taxonomy import diagnose, diagnose_log

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_REINSTALL = "install torch anew, in a build for this machine: https://pytorch.org/get-started/locally"


def check_torch(readings: Readings) -> Iterator[Finding]:
    """Findings `torch`, and where a GPU may be used `torch-driver`, `torch-gpu` and `gpu-generation`.

    A plug-in encoder may do without torch: what is wrong with it is then a warning, and the sample decides.
    """
    is_plugin = readings.job is not None and readings.job.whereabouts is Whereabouts.PLUGIN
    for finding in _check_torch(readings):
        yield replace(finding, state=State.WARNING) if is_plugin and finding.state is State.FAULT else finding


def _check_torch(readings: Readings) -> Iterator[Finding]:
    report = readings.probe.report
    if report is None or report.phase in (Phase.IMPORT, Phase.FORWARD):
        yield _broken(readings.probe)
        return
    build = f"CUDA {report.cuda}" if report.cuda else f"ROCm {report.hip}" if report.hip else "the CPU only"
    yield Finding("torch", State.OK, f"torch {report.versions.get('torch', '')} for {build} imports and computes")
    if readings.wanted is Wanted.CPU:
        return
    if report.cuda is None:
        state = {Wanted.CUDA: State.FAULT}.get(readings.wanted, State.WARNING if readings.smi.gpus else State.NOTE)
        mend = "install a CUDA build of torch (https://pytorch.org/get-started/locally), or write `device: cpu`"
        yield Finding("torch-gpu", state, f"this torch is a build for {build}: it cannot use an NVIDIA GPU", mend)
        return
    yield from _check_driver(report, readings)
    yield from _check_gpu(report, readings)
    yield from _check_generation(report, readings)


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


def _broken(probe: ProbeReading) -> Finding:
    report = probe.report
    step = "compute" if report is not None and report.phase is Phase.FORWARD else "be imported"
    if report is not None and "torch" not in report.versions:
        mend = "pip install 'chunkvisor[worker]', in the same environment as this command"
        return Finding("torch", State.FAULT, "torch is not installed, which sentence-transformers needs", mend)
    meaning, mend, _ = _why(probe)
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
        mend = f"update the driver, or install a torch built for CUDA {serves[0]}.x: "
        mend += "https://pytorch.org/get-started/locally"
        yield Finding(check, severity(readings.wanted), f"{text}: the driver is too old", mend)


def _check_gpu(report: ProbeReport, readings: Readings) -> Iterator[Finding]:
    check, wanted = "torch-gpu", readings.wanted
    if report.fault is not None or report.phase is Phase.CUDA_INIT:
        if readings.driver.module is None and not readings.driver.nodes and not readings.smi.gpus:
            return  # there is no driver, which has been said
        meaning, mend, blame = _why(readings.probe)
        yield Finding(check, severity(wanted), f"torch cannot use the GPU: {meaning}", mend or _REINSTALL, blame)
    elif not report.gpus:
        state = State.FAULT if wanted is Wanted.CUDA else State.NOTE
        yield Finding(check, state, "no GPU is visible to torch", "check CUDA_VISIBLE_DEVICES and: nvidia-smi -L")
    else:
        yield Finding(check, State.OK, "torch computes on " + ", ".join(gpu.name for gpu in report.gpus))


def _check_generation(report: ProbeReport, readings: Readings) -> Iterator[Finding]:
    for gpu in report.gpus:
        number = ".".join(map(str, gpu.capability))
        text = f"{gpu.name} has compute capability {number}"
        if runs_on(gpu.capability, report.arch_list):
            yield Finding("gpu-generation", State.OK, f"{text}, for which this torch has code")
        else:
            mend = "install a torch whose torch.cuda.get_arch_list() has it: an older one for an old GPU, the newest "
            mend += "for a new one"
            meaning = f"{text}; this torch has code for {', '.join(report.arch_list) or 'nothing'} only"
            yield Finding("gpu-generation", severity(readings.wanted), meaning, mend)


def _why(probe: ProbeReading) -> tuple[str, str, Blame]:
    """(what happened, the mend, whose fault) of a probe that did not come to its end."""
    fault = probe.report.fault if probe.report is not None else None
    if fault is None and probe.returncode is None:
        return "it hangs", "if the GPU's driver is stuck, reboot; nvidia-smi would hang, too", Blame.MACHINE
    diagnosis = diagnose(fault) if fault is not None else diagnose_log(probe.log_tail, probe.returncode or 0)
    if diagnosis is None:
        last = next((line.strip() for line in reversed(probe.log_tail.splitlines()) if line.strip()), "")
        return (
            f"it ended with {describe_exit(probe.returncode or 0)}" + (f": {last}" if last else ""),
            "",
            Blame.MACHINE,
        )
    rule = diagnosis.rule
    blame = Blame.CONFIG if rule.exit_code == ExitCode.CONFIG and rule.name == "allocator-config" else Blame.MACHINE
    return f"{rule.cause.rstrip('.')}: {diagnosis.headline}", before_a_run(rule.remedy), blame


def _version(text: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None
