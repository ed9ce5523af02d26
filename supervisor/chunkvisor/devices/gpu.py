"""Finds the GPUs by nvidia-smi; for the doctor, by torch as well.

Both are asked in child processes with a time limit, since a hung driver would hang the parent with it. A hung
nvidia-smi is itself a symptom, and is left behind.
"""

import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor.child import run_child
from chunkvisor.devices.dtypes import Card
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.store.attempt import read_tail
from chunkvisor_worker.contract.messages import ProbeReport
from chunkvisor_worker.contract.wire import read_message

# nvidia-smi's exit code for a GPU that has fallen off the bus (nvidia-smi's manual, RETURN VALUE).
SMI_LOST = 15
# Its exit code for a field that it does not know.
_SMI_BAD_ARGUMENT = 2
_SMI_TIMEOUT_S = 20.0
_REAP_S = 1.0
SMI_FORMAT = "--format=csv,noheader,nounits"
# The import of torch from a slow network disk takes a minute; CUDA, with many GPUs, some seconds for each.
_TORCH_TIMEOUT_S = 180.0
_DEV = Path("/dev")
_MOST_GPUS = 64
_VISIBLE = "CUDA_VISIBLE_DEVICES"

SLOW_BFLOAT16 = "the model computes in bfloat16, for which this CPU has no instructions: slower than float32"

_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class Device:
    """Where a worker computes."""

    kind: str  # "cpu" or "cuda"
    uuid: str = ""  # what CUDA_VISIBLE_DEVICES is set to: the GPU's UUID, or CUDA's index if nvidia-smi cannot tell
    name: str = ""
    memory_bytes: int = 0
    bus_id: str = ""  # PCI address, as nvidia-smi writes it
    # Compute capability, (major, minor), such as (7, 5); None = not known.
    capability: tuple[int, ...] | None = field(default=None, compare=False)

    @property
    def model(self) -> str:
        """Name the devices for which the same lessons hold: name, and size of memory in GiB."""
        size = f" {self.memory_bytes >> 30} GiB" if self.memory_bytes else ""
        return f"{self.name or self.kind}{size}"

    @property
    def guessed(self) -> bool:
        """Whether nvidia-smi did not list it, so that its memory and health cannot be looked at."""
        return self.kind == "cuda" and self.uuid.isdecimal()

    @property
    def watched(self) -> bool:
        """Whether nvidia-smi can be asked about it: a GPU that is known by its UUID."""
        return self.kind == "cuda" and self.uuid.startswith("GPU-")

    def __str__(self) -> str:
        if self.kind != "cuda":
            return self.name or "cpu"
        return f"{self.name or 'GPU'} ({self.uuid[:12]})" if self.uuid else self.name


CPU = Device("cpu")


# --- nvidia-smi


@dataclass(frozen=True, slots=True)
class SmiAnswer:
    """What nvidia-smi said."""

    returncode: int | None  # None = it does not exist, or gave no answer in time
    text: str

    @property
    def line(self) -> str:
        """Its first line."""
        return next((line.strip() for line in self.text.splitlines() if line.strip()), f"exit code {self.returncode}")


def ask_smi(arguments: Sequence[str]) -> SmiAnswer:
    """Run nvidia-smi; never waits longer than the time limit."""
    try:
        process = subprocess.Popen(
            ["nvidia-smi", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
    except OSError:
        return SmiAnswer(None, "")
    atexit.register(process.kill)  # the thread that waits for it ends with this process
    try:
        output, _ = process.communicate(timeout=_SMI_TIMEOUT_S)
        return SmiAnswer(process.returncode, output.decode(errors="replace"))
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in uninterruptible sleep it survives the kill
            process.wait(_REAP_S)
        return SmiAnswer(None, f"no answer within {_SMI_TIMEOUT_S:.0f} s")
    finally:
        atexit.unregister(process.kill)
        if process.stdout is not None:
            process.stdout.close()


def query_gpus(fields: str, newer: str = "", uuid: str = "") -> SmiAnswer:
    """Ask for fields of every GPU, or of one, a line of CSV each; without `newer` if the driver does not know that."""
    where = ("-i", uuid) if uuid else ()
    answer = ask_smi((f"--query-gpu={fields}{newer and f',{newer}'}", SMI_FORMAT, *where))
    # A driver refuses the whole question for one field that came after it.
    return query_gpus(fields, uuid=uuid) if newer and answer.returncode == _SMI_BAD_ARGUMENT else answer


def lines_of(text: str) -> Iterator[list[str]]:
    """Yield the values of each line of CSV; warnings may stand between those lines."""
    for line in text.splitlines():
        yield [value.strip() for value in line.split(",")]


def bytes_of(mebibytes: str) -> int | None:
    """Read a size as nvidia-smi prints it; None if it does not tell."""
    return int(mebibytes) << 20 if mebibytes.isdecimal() else None


def memory_used(text: str, uuids: Sequence[str]) -> dict[str, int]:
    """Parse `index,uuid,memory.used`: bytes by the device's place in `uuids`, in which an index may stand."""
    places, found = {uuid: number for number, uuid in enumerate(uuids)}, dict[str, int]()
    for index, uuid, used in (values for values in lines_of(text) if len(values) == 3):
        device, used_bytes = places.get(uuid, places.get(index)), bytes_of(used)
        if device is not None and used_bytes is not None:
            found[f"GPU {device}"] = used_bytes
    return found


def in_background(work: Callable[..., _Done], *arguments: Any) -> "Future[_Done]":
    """Do it in a thread that the end of the process does not wait for."""
    done: Future[_Done] = Future()

    def run() -> None:
        try:
            done.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001 - it belongs to the one who asks for the result
            done.set_exception(error)

    threading.Thread(target=run, name="nvidia-smi", daemon=True).start()
    return done


# --- torch


@dataclass(frozen=True, slots=True)
class ProbeReading:
    """How `chunkvisor_worker.probe` ended."""

    report: ProbeReport | None = None
    returncode: int | None = None  # None = it gave no answer within its time limit
    log_tail: str = ""


def ask_torch(environment: Mapping[str, str], on_wait: Callable[[], None] = lambda: None) -> ProbeReading:
    """Report what torch can compute on in that environment; takes the seconds that torch takes to import.

    Raises OSError if there is no temporary folder or child process to be had, and what `on_wait` raises.
    """
    with tempfile.TemporaryDirectory(prefix="chunkvisor-probe-") as name:
        out, log = Path(name) / "probe.json", Path(name) / "probe.log"
        command = [sys.executable, "-P", "-m", "chunkvisor_worker.probe", str(out)]
        returncode: int | None = None
        with contextlib.suppress(TimeoutError):  # the report says how far it came
            returncode = run_child(command, log, on_wait, environment, _TORCH_TIMEOUT_S)
        return ProbeReading(read_message(ProbeReport, out), returncode, read_tail(log))


# --- which devices


def find_devices(
    wanted: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    on_lost: Callable[[str], None] = lambda _: None,
) -> tuple[Device, ...]:
    """Find the devices that the config asks for: `cpu`, `cuda` (every visible GPU) or `cuda:N`; each of them once.

    `on_lost(words)` is called for a GPU that has fallen off the bus if `cuda` takes those that are left. GPUs that
    nvidia-smi does not list are taken by their device files, or as CUDA_VISIBLE_DEVICES names them: the first worker
    finds out whether CUDA works. Raises Halt (69) if there is no such GPU. It never falls back to the CPU.
    """
    if "cpu" in wanted:
        return (CPU,)
    answer, shown = query_gpus("index,uuid,name,memory.total,pci.bus_id", "compute_cap"), environment.get(_VISIBLE)
    listed = parse_devices(answer.text)
    if answer.returncode == SMI_LOST and not ("cuda" in wanted and listed):
        raise _no_gpu("a GPU has fallen off the bus (nvidia-smi ended with 15)", "reboot the machine")
    if listed and answer.returncode in (0, SMI_LOST):
        visible = select_visible(listed, shown)
        if answer.returncode == SMI_LOST:
            on_lost(answer.line)
    elif shown is not None:
        visible = [Device("cuda", part.strip()) for part in shown.split(",") if part.strip() not in ("", "-1")]
    else:
        # In a container the files keep the numbers of the host (/dev/nvidia2), while CUDA counts from 0.
        files = sum((_DEV / f"nvidia{number}").exists() for number in range(_MOST_GPUS))
        visible = [Device("cuda", str(number)) for number in range(files)]
        if not visible:
            smi = "nvidia-smi is not there" if answer.returncode is None else f"nvidia-smi says: {answer.line}"
            raise _no_gpu(
                f"no NVIDIA driver is loaded or visible here; {smi}",
                "install or load the driver; in a container, start it with GPU access; if CUDA works all the same, "
                f"name its GPUs ({_VISIBLE}=0); or use the CPU: set device to cpu",
            )
    indices = sorted({int(name.partition(":")[2]) for name in wanted if ":" in name})
    if "cuda" in wanted and visible:
        return tuple(visible)
    if "cuda" not in wanted and indices[-1] < len(visible):
        return tuple(visible[index] for index in indices)
    asked = "device: cuda asks for any" if "cuda" in wanted else f"cuda:{indices[-1]} asks for number {indices[-1]}"
    raise _no_gpu(
        f"it has {len(visible)} visible GPU{'s' * (len(visible) != 1)}, and {asked}",
        f"check `device` in the config, {_VISIBLE}, and: nvidia-smi -L",
    )


def _no_gpu(why: str, remedy: str) -> Halt:
    remedy += "; `chunkvisor doctor CONFIG` says what else is in the way"
    return Halt(ExitCode.MACHINE, "this machine has no GPU for this config", why=why, remedy=remedy)


def parse_devices(text: str) -> list[Device]:
    """Parse index, uuid, name, memory.total (MiB), pci.bus_id and compute_cap; other lines are left out."""
    devices = []
    for fields in lines_of(text):
        if len(fields) in (5, 6) and fields[1].startswith(("GPU-", "MIG-")):
            parts = fields[5].split(".") if len(fields) == 6 else []
            capability = tuple(map(int, parts)) if len(parts) == 2 and all(map(str.isdecimal, parts)) else None
            devices.append(Device("cuda", fields[1], fields[2], bytes_of(fields[3]) or 0, fields[4], capability))
    return devices


def select_visible(devices: Sequence[Device], visible: str | None) -> list[Device]:
    """Choose the devices that CUDA_VISIBLE_DEVICES leaves, in its order.

    As CUDA reads it: indices, or prefixes of a UUID that fit one device; the first entry that names no device hides all
    after it, and one that is named twice hides all (CUDA C++ Programming Guide, environment variables). A MIG id is
    taken over as it is.
    """
    if visible is None:
        return list(devices)
    chosen: list[Device] = []
    for entry in (part.strip() for part in visible.split(",")):
        fits = [each for each in devices if entry.startswith("GPU-") and each.uuid.startswith(entry)]
        if entry.isdecimal():
            fits = list(devices[int(entry) : int(entry) + 1])
        elif entry.startswith("MIG-"):
            fits = [Device("cuda", entry, "MIG slice")]
        if len(fits) != 1:
            break
        chosen += fits
    return chosen if len(set(chosen)) == len(chosen) else []


def find_weakest(wanted: Sequence[str]) -> Card | None:
    """Find the GPU with the lowest compute capability; None if there is no GPU here, or its capability is not known."""
    try:
        return weakest(find_devices(wanted))
    except Halt:
        return None


def weakest(devices: Sequence[Device]) -> Card | None:
    """Choose the GPU with the lowest compute capability; None if that of no GPU is known."""
    cards = [Card(device.name, device.capability) for device in devices if device.capability is not None]
    return min(cards, key=lambda card: card.capability, default=None)


def has_bfloat16() -> bool:
    """Whether the processor multiplies in bfloat16 (`bf16` is ARM's flag); others emulate that type, slowly."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)
