"""Finds the GPUs of this machine, and says which dtypes suit them.

nvidia-smi and torch run in child processes with a time limit, because a driver that hangs would
hang the parent as well. An nvidia-smi that cannot be killed is left behind.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from chunkvisor.child import python_command, run_child
from chunkvisor.config.choices import Dtype
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.store.attempt import read_tail
from chunkvisor.units import counted
from chunkvisor_worker.contract.exits import PARENT_PID, Outcome
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Phase, ProbeReport
from chunkvisor_worker.contract.taxonomy import diagnose
from chunkvisor_worker.contract.wire import read_message

# nvidia-smi's exit codes for a GPU that has fallen off the bus, and for a field that it does not
# know (its manual, RETURN VALUE).
SMI_LOST = 15
SMI_BAD_ARGUMENT = 2
_SMI_TIMEOUT_S = 20.0
SMI_FORMAT = "--format=csv,noheader,nounits"
# The import of torch from a slow network disk takes a minute; CUDA, with many GPUs, some seconds
# for each.
_TORCH_TIMEOUT_S = 180.0
_DEV = Path("/dev")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@frozen
class Device:
    """Where a worker computes."""

    kind: str  # "cpu" or "cuda"
    uuid: str = ""
    """The worker's CUDA_VISIBLE_DEVICES: UUID of the GPU, or its index if nvidia-smi lists none."""
    name: str = ""
    memory_bytes: int = 0
    capability: tuple[int, ...] | None = None  # compute capability, (major, minor); None = unknown

    @property
    def model(self) -> str:
        """Name its kind, such as `NVIDIA H100 79 GiB`: what is learned on one holds for all."""
        size = f" {self.memory_bytes >> 30} GiB" if self.memory_bytes else ""
        return f"{self.name or self.kind}{size}"

    @property
    def known_to_smi(self) -> bool:
        """Say whether nvidia-smi can report on it: only on a GPU that has a UUID."""
        return self.uuid.startswith("GPU-")

    def __str__(self) -> str:
        if self.kind != "cuda":
            return self.name or "cpu"
        return f"{self.name or 'GPU'} ({self.uuid[:12]})" if self.uuid else self.name


CPU = Device("cpu")


# --- nvidia-smi


class SmiAnswer(NamedTuple):
    """How nvidia-smi ended, and what it printed."""

    returncode: int | None = None  # None = it does not exist, or gave no answer in time
    text: str = ""

    @property
    def line(self) -> str:
        """Return its first line, or the exit code if it printed nothing."""
        printed = self.text.strip() or f"exit code {self.returncode}"
        return printed.splitlines()[0].strip()


def ask_smi(arguments: Sequence[str]) -> SmiAnswer:
    """Run nvidia-smi, with a time limit."""
    try:
        with tempfile.TemporaryDirectory(prefix="chunkvisor-smi-") as name:
            log = Path(name) / "smi.log"
            returncode = run_child(["nvidia-smi", *arguments], log, timeout_s=_SMI_TIMEOUT_S)
            return SmiAnswer(returncode, log.read_text(errors="replace"))
    except TimeoutError as error:
        return SmiAnswer(None, str(error))
    except OSError:
        return SmiAnswer()


def lines_of(text: str) -> Iterator[list[str]]:
    """Yield the values of each line of CSV; lines that are warnings come as well."""
    for line in text.splitlines():
        yield [value.strip() for value in line.split(",")]


def bytes_of(mebibytes: str) -> int | None:
    """Read a size as nvidia-smi prints it; None if it is not known."""
    return int(mebibytes) << 20 if mebibytes.isdecimal() else None


# --- torch


class ProbeReading(NamedTuple):
    """How `chunkvisor_worker.probe` ended, which tries out torch."""

    report: ProbeReport | None = None
    returncode: int | None = None  # None = it gave no answer within its time limit
    log_tail: str = ""


def ask_torch(environment: Mapping[str, str]) -> ProbeReading:
    """Report what torch can compute on in that environment.

    The import of torch takes seconds. Raises OSError.
    """
    with tempfile.TemporaryDirectory(prefix="chunkvisor-probe-") as name:
        out = Path(name) / "probe.json"
        log = Path(name) / "probe.log"
        command = python_command("chunkvisor_worker.probe", out)
        returncode: int | None = None
        with contextlib.suppress(TimeoutError):  # the report shows how far it came
            returncode = run_child(
                command, log, environment=environment, timeout_s=_TORCH_TIMEOUT_S
            )
        return ProbeReading(read_message(ProbeReport, out), returncode, read_tail(log))


def _gpus_of_torch(environment: Mapping[str, str]) -> tuple[list[Device], str]:
    """Return the GPUs that torch computes on, or none and why; their numbers are a worker's."""
    workers = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", PARENT_PID: str(os.getpid())}
    try:
        report = ask_torch({**environment, **workers}).report or ProbeReport(Phase.START)
    except OSError as error:
        return [], str(error)
    found = [
        Device("cuda", str(index), gpu.name, gpu.total_bytes, gpu.capability)
        for index, gpu in enumerate(report.gpus)
    ]
    if found or report.fault is None:
        return found, "torch finds none"
    fault = diagnose(report.fault)
    # A GPU that others hold is there: the first worker waits for it.
    busy = fault.rule.outcome is Outcome.GPU_BUSY
    return [Device("cuda", "0")] if busy else [], f"torch says: {fault.headline}"


# --- which devices


def find_devices(
    wanted: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    *,
    may_ask_torch: bool = True,
) -> tuple[Device, ...]:
    """Find the devices that the config asks for: `cpu`, `cuda` (every visible GPU) or `cuda:N`.

    If nvidia-smi lists no GPU, they are those that CUDA_VISIBLE_DEVICES names, or that have device
    files: the first worker finds out whether CUDA works. Without these, as under WSL2, they are
    those on which torch computes, which takes its import. Raises Halt (69) if there is no such
    GPU.
    """
    if "cpu" in wanted:
        return (CPU,)
    answer = ask_smi(("--query-gpu=index,uuid,name,memory.total,compute_cap", SMI_FORMAT))
    shown = environment.get(_VISIBLE)
    listed = parse_devices(answer.text) if answer.returncode == 0 else []
    smi = ""
    if listed:
        visible = select_visible(listed, shown)
    elif shown is not None:
        names = map(str.strip, shown.split(","))
        visible = [Device("cuda", name) for name in names if name not in ("", "-1")]
    else:
        # In a container the files keep the numbers of the host (/dev/nvidia2), while CUDA counts
        # from 0. Each is asked for: the null GPU of the tests has files in no listing of /dev.
        files = sum((_DEV / f"nvidia{number}").exists() for number in range(64))
        visible = [Device("cuda", str(number)) for number in range(files)]
        said = "is not there" if answer.returncode is None else f"says: {answer.line}"
        smi = f"; nvidia-smi {said}"
        if not files and may_ask_torch:
            visible, torch = _gpus_of_torch(environment)
            smi += f"; {torch}"
    indices = sorted({int(name.partition(":")[2]) for name in wanted if ":" in name})
    if max(indices, default=0) >= len(visible):
        asked = (
            f"cuda:{indices[-1]} asks for number {indices[-1]}"
            if indices
            else "device: cuda asks for any"
        )
        raise Halt(
            ExitCode.MACHINE,
            "this machine has no GPU for this config",
            f"Check `device` in the config, {_VISIBLE} and `nvidia-smi -L`. Without a driver, "
            "install or load one; start a container with GPU access. Or use the CPU: set device to "
            "cpu (`--device cpu` of the command). `chunkvisor doctor` shows what else is wrong.",
            why=f"the machine has {counted(len(visible), 'visible GPU')}, and {asked}{smi}",
        )
    return tuple(visible) if "cuda" in wanted else tuple(visible[index] for index in indices)


def parse_devices(text: str) -> list[Device]:
    """Parse index, uuid, name, memory.total (MiB) and compute_cap; other lines are left out."""
    devices = []
    for fields in lines_of(text):
        if len(fields) == 5 and fields[1].startswith(("GPU-", "MIG-")):
            parts = fields[4].split(".")
            capability = tuple(map(int, parts)) if all(map(str.isdecimal, parts)) else None
            devices.append(
                Device("cuda", fields[1], fields[2], bytes_of(fields[3]) or 0, capability)
            )
    return devices


def select_visible(devices: Sequence[Device], visible: str | None) -> list[Device]:
    """Choose the devices that CUDA_VISIBLE_DEVICES leaves, in its order, as CUDA reads it.

    An entry is an index, or a prefix of a UUID that fits one device. The first entry that names no
    device hides all after it, and a device that is named twice hides all (CUDA C++ Programming
    Guide, environment variables).
    """
    if visible is None:
        return list(devices)
    chosen: list[Device] = []
    for entry in map(str.strip, visible.split(",")):
        fits = [
            each for each in devices if entry.startswith("GPU-") and each.uuid.startswith(entry)
        ]
        if entry.isdecimal():
            fits = list(devices[int(entry) : int(entry) + 1])
        elif entry.startswith("MIG-"):
            fits = [Device("cuda", entry, "MIG slice")]
        if len(fits) != 1:
            break
        chosen += fits
    return chosen if len(set(chosen)) == len(chosen) else []


# --- dtypes: every warning and every remedy about them comes from here
#
# Cards before Ampere (compute capability 8.0) do not have bfloat16: torch emulates it, and sdpa
# computes attention by the math kernel, which holds the scores of all pairs of tokens: 7 GiB for
# one text of 8,192 tokens and 12 heads. float16 is as small, but has a smaller range, which models
# that were trained in bfloat16 exceed: their vectors become NaN (infinity#328,
# Qwen3-Embedding#164, unsloth#4014).

_AMPERE = (8, 0)
_OVERFLOWING = ("qwen", "gemma", "mistral")


def weakest(devices: Sequence[Device]) -> Device | None:
    """Choose the GPU with the lowest compute capability; None if that of no GPU is known."""
    return min(
        (each for each in devices if each.capability),
        key=lambda each: each.capability or (),
        default=None,
    )


def advised_dtype(model_type: str | None, card: Device) -> Dtype:
    """Return the smallest dtype that gives right vectors; `model_type` None is an unknown one."""
    if (card.capability or ()) >= _AMPERE:
        return Dtype.BFLOAT16
    return Dtype.FLOAT32 if model_type is None or _overflows(model_type) else Dtype.FLOAT16


def _overflows(model_type: str) -> bool:
    return any(family in model_type.lower() for family in _OVERFLOWING)


def unfit_dtype(
    dtype: str | None, model_type: str | None, card: Device | None
) -> tuple[str, str] | None:
    """Return why a model should not compute in this dtype, and what to do.

    None if it may, or if dtype or card are unknown.
    """
    if not card or not card.capability:
        return None
    better = advised_dtype(model_type, card)
    mend = f"set model.dtype to {better}"
    if better == Dtype.FLOAT32:
        mend += "; in float16 its vectors may become NaN"
    why = ""
    if dtype == Dtype.BFLOAT16 and card.capability < _AMPERE:
        version = ".".join(map(str, card.capability))
        why = (
            f"bfloat16, which {card.name or 'the GPU'} (compute capability {version}) does not "
            "have: attention is emulated, slowly, and needs memory for all pairs of tokens of a "
            "text"
        )
    elif dtype == Dtype.FLOAT16 and model_type and _overflows(model_type):
        why = f"float16, in which models of the kind {model_type} overflow to NaN"
    return (f"the model computes in {why}", mend) if why else None


def has_bfloat16() -> bool:
    """Say whether the processor multiplies in bfloat16; others emulate it, slowly.

    `bf16` is ARM's flag, the others are Intel's and AMD's.
    """
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)
