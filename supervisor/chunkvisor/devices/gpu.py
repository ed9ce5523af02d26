"""GPUs as nvidia-smi sees them, asked in a child process with a time limit.

It never imports torch or NVML: a hung driver would hang the supervisor with it. A hung nvidia-smi is itself a
symptom, and is left behind.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chunkvisor.errors import ExitCode, Halt

_TIMEOUT_S = 20.0
_DEV = Path("/dev")
_LOST = 15
"""nvidia-smi's exit code for a GPU that has fallen off the bus (nvidia-smi's manual, RETURN VALUE)."""


@dataclass(frozen=True, slots=True)
class Device:
    """Where a worker computes."""

    kind: str
    """"cpu" or "cuda"."""
    uuid: str = ""
    """What CUDA_VISIBLE_DEVICES is set to: the GPU's UUID, or CUDA's index where nvidia-smi cannot tell."""
    name: str = ""
    memory_bytes: int = 0
    bus_id: str = ""
    """PCI address, as nvidia-smi writes it."""
    index: int | None = field(default=None, compare=False)
    """nvidia-smi's number; None where it tells none."""

    @property
    def model(self) -> str:
        """What is alike of devices for which the same lessons hold: name, and size of memory in GiB."""
        size = f" {self.memory_bytes >> 30} GiB" if self.memory_bytes else ""
        return f"{self.name or self.kind}{size}"

    def __str__(self) -> str:
        if self.kind != "cuda":
            return self.name or "cpu"
        return f"{self.name or 'GPU'} ({self.uuid[:12]})" if self.uuid else self.name


_USE_THE_CPU = "use the CPU: set device to cpu"
CPU = Device("cpu")


@dataclass(frozen=True, slots=True)
class SmiAnswer:
    """What nvidia-smi said."""

    returncode: int | None
    """None = it does not exist, or gave no answer in time."""
    text: str


def find_devices(
    wanted: Sequence[str], environment: Mapping[str, str] = os.environ, on_lost: Callable[[str], None] = lambda _: None
) -> tuple[Device, ...]:
    """The devices that the config asks for: `cpu`, `cuda` (every visible GPU) or `cuda:N`; each of them once.

    `on_lost(words)` hears of a GPU that has fallen off the bus, where `cuda` takes those that are left.
    Raises Halt (69) where there is no such GPU. It never falls back to the CPU by itself.
    """
    if "cpu" in wanted:
        return (CPU,)
    everything = "cuda" in wanted
    indices = sorted({int(name.partition(":")[2]) for name in wanted if ":" in name})
    answer = ask_smi(("--query-gpu=index,uuid,name,memory.total,pci.bus_id", "--format=csv,noheader,nounits"))
    lost = answer.returncode == _LOST
    visible = select_visible(parse_devices(answer.text), environment.get("CUDA_VISIBLE_DEVICES"))
    if lost and everything and visible:
        on_lost(_first_line(answer))
        return tuple(visible)
    if answer.returncode == 0:
        if everything and visible:
            return tuple(visible)
        if not everything and indices[-1] < len(visible):
            return tuple(visible[index] for index in indices)
        asked = "device: cuda asks for any" if everything else f"cuda:{indices[-1]} asks for number {indices[-1]}"
        raise _no_gpu(
            f"it has {len(visible)} visible GPU{'s' * (len(visible) != 1)}, and {asked}",
            "check `device` in the config, CUDA_VISIBLE_DEVICES, and: nvidia-smi -L",
        )
    if lost:
        raise _no_gpu("a GPU has fallen off the bus (nvidia-smi ended with 15)", "reboot the machine")
    if not Path("/dev/nvidiactl").exists():
        reason = "nvidia-smi is not there" if answer.returncode is None else f"nvidia-smi says: {_first_line(answer)}"
        raise _no_gpu(
            f"no NVIDIA driver is loaded or visible here; {reason}",
            f"install or load the driver; in a container, start it with GPU access; or {_USE_THE_CPU}",
        )
    # NVML can be broken while CUDA works (a driver upgraded under a running kernel module): the workers find out.
    names = _names_without_smi(environment.get("CUDA_VISIBLE_DEVICES"))
    if everything and not names:
        reason = "nvidia-smi is not there" if answer.returncode is None else f"nvidia-smi says: {_first_line(answer)}"
        raise _no_gpu(
            f"the NVIDIA driver is loaded, but there is no device file of a GPU (/dev/nvidia0); {reason}",
            f"in a container, start it with GPU access; or {_USE_THE_CPU}",
        )
    if everything:
        return tuple(Device("cuda", name) for name in names)
    return tuple(Device("cuda", names[index] if index < len(names) else str(index)) for index in indices)


def is_guessed(device: Device) -> bool:
    """Whether it was taken for a GPU because of a device file: nvidia-smi did not tell of it."""
    return device.kind == "cuda" and device.uuid.isdecimal()


def ask_smi(arguments: Sequence[str]) -> SmiAnswer:
    """Run nvidia-smi with the arguments; never waits longer than its time limit."""
    try:
        process = subprocess.Popen(
            ["nvidia-smi", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
    except OSError:
        return SmiAnswer(None, "")
    try:
        output, _ = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # In uninterruptible sleep it survives the kill; waiting for it would hang us as well.
        process.kill()
        return SmiAnswer(None, f"no answer within {_TIMEOUT_S:.0f} s")
    return SmiAnswer(process.returncode, output.decode(errors="replace"))


def parse_devices(text: str) -> list[Device]:
    """Devices of `--query-gpu=index,uuid,name,memory.total,pci.bus_id --format=csv,noheader,nounits`, in PCI order.

    A line that does not parse is left out; memory.total is in MiB, or [N/A].
    """
    devices = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 5 and fields[1].startswith(("GPU-", "MIG-")):
            memory = int(fields[3]) << 20 if fields[3].isdecimal() else 0
            index = int(fields[0]) if fields[0].isdecimal() else None
            devices.append(Device("cuda", fields[1], fields[2], memory, fields[4], index))
    return devices


def select_visible(devices: Sequence[Device], visible: str | None) -> list[Device]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, in its order.

    As CUDA reads it: indices, or prefixes of a UUID that fit one device; the first entry that names no device hides all
    after it, and one that is named twice hides all (CUDA C++ Programming Guide, environment variables). An index is
    nvidia-smi's, where it told them: a GPU may be missing from its list. A MIG id is taken over as it is.
    """
    if visible is None:
        return list(devices)
    chosen: list[Device] = []
    numbered = {position if each.index is None else each.index: each for position, each in enumerate(devices)}
    for entry in (part.strip() for part in visible.split(",")):
        fits = [each for each in devices if entry.startswith("GPU-") and each.uuid.startswith(entry)]
        if entry.isdecimal() and int(entry) in numbered:
            fits = [numbered[int(entry)]]
        elif entry.startswith("MIG-"):
            fits = [Device("cuda", entry, "MIG slice")]
        if len(fits) != 1:
            break
        chosen += fits
    return chosen if len(set(chosen)) == len(chosen) else []


def _names_without_smi(visible: str | None) -> list[str]:
    """What CUDA_VISIBLE_DEVICES may name: its own entries, else a number for each device file of a GPU.

    In a container the files keep the numbers of the host (/dev/nvidia2), while CUDA counts from 0.
    """
    if visible is not None:
        return [part.strip() for part in visible.split(",") if part.strip()]
    return [str(number) for number, _ in enumerate(_DEV.glob("nvidia[0-9]*"))]


def _first_line(answer: SmiAnswer) -> str:
    return next((line.strip() for line in answer.text.splitlines() if line.strip()), f"exit code {answer.returncode}")


def _no_gpu(why: str, remedy: str) -> Halt:
    remedy += "; `chunkvisor doctor CONFIG` says what else is in the way"
    return Halt(ExitCode.MACHINE, "this machine has no GPU for this config", why=why, remedy=remedy)
