"""Finds the GPUs: nvidia-smi is asked first, and torch where nvidia-smi does not answer.

Both are asked in child processes with a time limit, since a hung driver would hang the parent with it. A hung
nvidia-smi is itself a symptom, and is left behind.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkvisor.child import run_child
from chunkvisor.devices.dtypes import Card
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.store.leftovers import last_line, read_tail
from chunkvisor_worker.contract.exits import PARENT_PID
from chunkvisor_worker.contract.probe import ProbeReport
from chunkvisor_worker.contract.wire import read_message

_TORCH_TIMEOUT_S = 180.0
"""The import of torch from a slow network disk takes a minute; CUDA, with many GPUs, some seconds for each."""


@dataclass(frozen=True, slots=True)
class ProbeReading:
    """How `chunkvisor_worker.probe` ended."""

    report: ProbeReport | None = None
    returncode: int | None = None
    """None = it gave no answer within its time limit."""
    log_tail: str = ""

    @property
    def lacks_torch(self) -> bool:
        """Whether it found no torch."""
        return self.report is not None and "torch" not in self.report.versions

    @property
    def words(self) -> str:
        """Why it computed on no GPU, in one line."""
        report = self.report
        if self.lacks_torch:
            return "torch is not installed"
        if report is not None and report.fault is not None:
            return f"torch says: {_first_line(report.fault.chain[0].message)}"
        if report is not None and self.returncode == 0 and report.cuda is None:
            return "this torch is built without CUDA"
        if self.returncode is None:
            return f"torch gave no answer within {_TORCH_TIMEOUT_S:.0f} s"
        return f"torch could not be asked: {last_line(self.log_tail) or f'exit code {self.returncode}'}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]


def ask_torch(environment: Mapping[str, str], on_wait: Callable[[], None] = lambda: None) -> ProbeReading:
    """Report what torch can compute on in that environment; takes the seconds that torch takes to import.

    Raises OSError if there is no temporary folder or no child process to be had, and what `on_wait` raises.
    """
    with tempfile.TemporaryDirectory(prefix="chunkvisor-probe-") as name:
        out, log = Path(name) / "probe.json", Path(name) / "probe.log"
        command = [sys.executable, "-P", "-m", "chunkvisor_worker.probe", str(out)]
        returncode: int | None = None
        with suppress(TimeoutError):  # the report says how far it came
            returncode = run_child(command, log, on_wait, environment, _TORCH_TIMEOUT_S)
        return ProbeReading(read_message(ProbeReport, out), returncode, read_tail(log))


_FIELDS = {
    "memory.used": ("memory_used_bytes", 1 << 20),
    "memory.total": ("memory_total_bytes", 1 << 20),
    "utilization.gpu": ("utilization", 1),
    "temperature.gpu": ("temperature_c", 1),
    "power.draw": ("power_w", 1),
}
"""What nvidia-smi calls it -> (name of ours, size of its unit)."""
_COMMAND = ("nvidia-smi", f"--query-gpu=index,uuid,{','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_SMI_TIMEOUT_S = 20.0
_FAILURES = 3
_REAP_S = 1.0
_MOST_BYTES = 64 << 10


class GpuProbe:
    """Begins a question, and has the answer at some later time."""

    def __init__(self, uuids: Sequence[str]) -> None:
        """`uuids` are those of the run's devices, by number; an index may stand for one."""
        self._uuids = list(uuids)
        self._child: subprocess.Popen[bytes] | None = None
        self._hung: list[subprocess.Popen[bytes]] = []
        self._asked_s = 0.0
        self._failures = 0

    @property
    def given_up(self) -> bool:
        """It has failed too often, and is asked no more."""
        return self._failures >= _FAILURES

    def ask(self) -> None:
        """Begin a question, unless one is under way."""
        if self._child is not None or self.given_up:
            return
        self._asked_s = time.monotonic()
        try:
            self._child = subprocess.Popen(
                _COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            self._failures += 1
            return
        assert self._child.stdout is not None
        # If a child of it has kept the other end, a read must not wait for that.
        os.set_blocking(self._child.stdout.fileno(), False)

    def answer(self) -> list[dict[str, Any]] | None:
        """The readings by device, once, when they are there; else None."""
        self._hung = [child for child in self._hung if child.poll() is None]
        child = self._child
        if child is None:
            return None
        assert child.stdout is not None
        if child.poll() is None:
            if time.monotonic() - self._asked_s > _SMI_TIMEOUT_S:
                # In uninterruptible sleep it survives the kill; it is reaped when it has ended after all.
                child.kill()
                child.stdout.close()
                self._hung.append(child)
                self._child = None
                self._failures += 1
            return None
        with child.stdout:
            output = child.stdout.read(_MOST_BYTES) or b""
        self._child = None
        readings = parse(output.decode(errors="replace"), self._uuids) if child.returncode == 0 else []
        self._failures = 0 if readings else self._failures + 1
        return readings

    def close(self) -> None:
        """End what is under way."""
        for child in (*self._hung, *([self._child] if self._child is not None else [])):
            child.kill()
            if child.stdout is not None:
                child.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_REAP_S)
        self._hung, self._child = [], None


def parse(text: str, uuids: Sequence[str]) -> list[dict[str, Any]]:
    """Readings of the devices in `uuids`, by their place there; what nvidia-smi does not know is left out."""
    places = {uuid: number for number, uuid in enumerate(uuids)}
    readings = []
    for line in text.splitlines():
        index, _, rest = line.partition(",")
        values = [value.strip() for value in rest.split(",")]
        if len(values) != len(_FIELDS) + 1:
            continue
        device = places.get(values[0], places.get(index.strip()))
        if device is None:
            continue
        reading: dict[str, Any] = {"device": device}
        for (name, unit), value in zip(_FIELDS.values(), values[1:], strict=True):
            if (found := _number(value)) is not None:
                reading[name] = found if unit == 1 else int(found * unit)
        readings.append(reading)
    return sorted(readings, key=lambda each: int(each["device"]))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:  # [N/A], [Unknown Error]
        return None
    return value if 0 <= value < 1e12 else None


_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags in /proc/cpuinfo, one of which a processor has that multiplies in bfloat16; the last is ARM's."""

SLOW_BFLOAT16 = "the model computes in bfloat16, for which this CPU has no instructions: slower than float32"


def processor_flags() -> frozenset[str]:
    """Words of /proc/cpuinfo, flags among them; none if it cannot be read."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return frozenset()


def has_bfloat16(flags: Set[str]) -> bool:
    """Whether it multiplies in bfloat16; elsewhere that type is emulated, and slower than float32."""
    return not _BFLOAT16.isdisjoint(flags)


_FORMAT = "--format=csv,noheader,nounits"
_DEV = Path("/dev")
_DRIVER_FILES = ("nvidiactl", "dxg", "nvmap")
"""Of NVIDIA's driver on Linux, under WSL2, and on a Jetson."""
_BAD_ARGUMENT = 2
"""nvidia-smi's exit code for a field that it does not know (nvidia-smi's manual, RETURN VALUE)."""
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
    """nvidia-smi's number; None if it did not tell one."""
    capability: tuple[int, ...] | None = field(default=None, compare=False)
    """Compute capability, (major, minor), such as (7, 5); None = not known."""

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
    wanted: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    on_lost: Callable[[str], None] = lambda _: None,
    on_wait: Callable[[], None] = lambda: None,
) -> tuple[Device, ...]:
    """Find the devices that the config asks for: `cpu`, `cuda` (every visible GPU) or `cuda:N`; each of them once.

    `on_lost(words)` is called for a GPU that has fallen off the bus if `cuda` takes those that are left. Raises Halt
    (69) if there is no such GPU, and what `on_wait` raises. It never falls back to the CPU.
    """
    if "cpu" in wanted:
        return (CPU,)
    answer = _list_gpus()
    listed = parse_devices(answer.text)
    visible = select_visible(listed, environment.get("CUDA_VISIBLE_DEVICES"))
    if answer.returncode == _LOST:
        if "cuda" in wanted and visible:
            on_lost(_first_line_gpu(answer))
            return tuple(visible)
        raise _no_gpu("a GPU has fallen off the bus (nvidia-smi ended with 15)", "reboot the machine")
    if answer.returncode == 0 and listed:
        return _chosen(wanted, visible)
    return _without_smi(wanted, environment, answer, on_wait)


def _list_gpus() -> SmiAnswer:
    fields = "index,uuid,name,memory.total,pci.bus_id"
    answer = ask_smi((f"--query-gpu={fields},compute_cap", _FORMAT))
    # Drivers before 510 do not have this field, and refuse the whole question.
    return ask_smi((f"--query-gpu={fields}", _FORMAT)) if answer.returncode == _BAD_ARGUMENT else answer


def _chosen(wanted: Sequence[str], visible: Sequence[Device]) -> tuple[Device, ...]:
    """Choose among the GPUs that CUDA shows. Raises Halt (69)."""
    indices = _indices(wanted)
    if "cuda" in wanted and visible:
        return tuple(visible)
    if "cuda" not in wanted and indices[-1] < len(visible):
        return tuple(visible[index] for index in indices)
    asked = "device: cuda asks for any" if "cuda" in wanted else f"cuda:{indices[-1]} asks for number {indices[-1]}"
    raise _no_gpu(
        f"it has {len(visible)} visible GPU{'s' * (len(visible) != 1)}, and {asked}",
        "check `device` in the config, CUDA_VISIBLE_DEVICES, and: nvidia-smi -L",
    )


def _without_smi(
    wanted: Sequence[str], environment: Mapping[str, str], answer: SmiAnswer, on_wait: Callable[[], None]
) -> tuple[Device, ...]:
    """Find GPUs of which nvidia-smi does not tell: what counts is whether a worker gets a CUDA context.

    So a child tries. If it computes on GPUs, these are the devices. If it fails, but CUDA_VISIBLE_DEVICES or a device
    file says that there is a GPU, a worker may still succeed (a plug-in without torch, a GPU that is busy for a while),
    and its fault says more. Only if nothing speaks for a GPU is there none.
    """
    value = environment.get("CUDA_VISIBLE_DEVICES")
    entries = None if value is None else [part.strip() for part in value.split(",") if part.strip()]
    if entries in ([], ["-1"]):
        raise _no_gpu(f"CUDA_VISIBLE_DEVICES is {value!r}, which hides every GPU", "unset it, or name a GPU in it")
    reading = ProbeReading()
    with contextlib.suppress(OSError):
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", PARENT_PID: str(os.getpid())}  # in the order that workers see
        reading = ask_torch({**os.environ, **environment, **order}, on_wait)
    report = reading.report
    gpus = report.gpus if report is not None else ()
    # In a container the files keep the numbers of the host (/dev/nvidia2), while CUDA counts from 0.
    names = entries if entries is not None else list(map(str, range(max(len(gpus), _count_device_files()))))
    found = [
        Device("cuda", name, gpu.name, gpu.total_bytes, capability=gpu.capability)
        for name, gpu in zip(names, gpus, strict=False)
    ]
    if found and reading.returncode == 0:
        return _chosen(wanted, found)
    if not names:
        smi = "nvidia-smi is not there" if answer.returncode is None else f"nvidia-smi says: {_first_line_gpu(answer)}"
        raise _no_gpu(
            f"no NVIDIA driver is loaded or visible here; {smi}; {reading.words}",
            f"install or load the driver; in a container, start it with GPU access; or {_USE_THE_CPU}",
        )
    found += [Device("cuda", name) for name in names[len(found) :]]
    if "cuda" in wanted:
        return tuple(found)
    return tuple(found[index] if index < len(found) else Device("cuda", str(index)) for index in _indices(wanted))


def _indices(wanted: Sequence[str]) -> list[int]:
    return sorted({int(name.partition(":")[2]) for name in wanted if ":" in name})


def _count_device_files() -> int:
    """Count the GPUs for which there are device files; one where only a file of the whole driver is there."""
    return len(list(_DEV.glob("nvidia[0-9]*"))) or int(any((_DEV / name).exists() for name in _DRIVER_FILES))


def find_weakest(wanted: Sequence[str]) -> Card | None:
    """Find the GPU with the lowest compute capability; None if there is no GPU here, or its capability is not known."""
    try:
        found = find_devices(wanted)
    except Halt:
        return None
    return weakest(found)


def weakest(devices: Sequence[Device]) -> Card | None:
    """Choose the GPU with the lowest compute capability; None if that of no GPU is known."""
    cards = [Card(device.name, device.capability) for device in devices if device.capability is not None]
    return min(cards, key=lambda card: card.capability, default=None)


def is_guessed(device: Device) -> bool:
    """Whether nvidia-smi did not tell of it, so that its memory and health cannot be looked at."""
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
        output, _ = process.communicate(timeout=_SMI_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # In uninterruptible sleep it survives the kill; waiting for it would hang us as well.
        process.kill()
        return SmiAnswer(None, f"no answer within {_SMI_TIMEOUT_S:.0f} s")
    return SmiAnswer(process.returncode, output.decode(errors="replace"))


def parse_devices(text: str) -> list[Device]:
    """Parse `--query-gpu=index,uuid,name,memory.total,pci.bus_id[,compute_cap]`, in csv without header and units.

    The devices are in PCI order. A line that does not parse is left out; memory.total is in MiB, or [N/A].
    """
    devices = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) in (5, 6) and fields[1].startswith(("GPU-", "MIG-")):
            memory = int(fields[3]) << 20 if fields[3].isdecimal() else 0
            index = int(fields[0]) if fields[0].isdecimal() else None
            major, _, minor = fields[5].partition(".") if len(fields) == 6 else ("", "", "")
            known = major.isdecimal() and minor.isdecimal()
            capability = (int(major), int(minor)) if known else None
            devices.append(Device("cuda", fields[1], fields[2], memory, fields[4], index, capability))
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


def _first_line_gpu(answer: SmiAnswer) -> str:
    return next((line.strip() for line in answer.text.splitlines() if line.strip()), f"exit code {answer.returncode}")


def _no_gpu(why: str, remedy: str) -> Halt:
    remedy += "; `chunkvisor doctor CONFIG` says what else is in the way"
    return Halt(ExitCode.MACHINE, "this machine has no GPU for this config", why=why, remedy=remedy)
