"""Reads the NVIDIA driver: `nvidia-smi -q -x`, /proc and /dev; whatever a driver does not tell stays empty."""

import os
import re
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import psutil

from chunkvisor.commands.doctor.readings import DriverReading, GpuProcess, GpuReading, SmiReading
from chunkvisor.devices.gpu import ask_smi
from chunkvisor.events.event import plain
from chunkvisor_worker.contract.environment import RUN_ID

_MODULE = Path("/proc/driver/nvidia/version")
_NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "dxg")
_NAME_CHARS = 60


def read_smi() -> SmiReading:
    """Ask nvidia-smi for everything at once; waits no longer than `gpu.ask_smi` does."""
    answer = ask_smi(("-q", "-x"))
    if answer.returncode != 0:
        return SmiReading(answer.returncode, answer.text.strip().partition("\n")[0][:200])
    try:
        return parse(answer.text)
    except ElementTree.ParseError:
        return SmiReading(answer.returncode)


def parse(xml: str) -> SmiReading:
    """The answer to `nvidia-smi -q -x`, element names as of driver 575. Raises ElementTree.ParseError."""
    root = ElementTree.fromstring(xml)  # noqa: S314 - the driver's own tool wrote it; expat loads no external entity
    gpus = tuple(map(_gpu, root.findall("gpu")))
    return SmiReading(0, "", _text(root, "driver_version"), _text(root, "cuda_version"), gpus)


def read_driver(module: Path = _MODULE, dev: Path = Path("/dev")) -> DriverReading:
    """The kernel module and its device files."""
    try:
        # NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.51.02  Fri Apr 25 …
        match = re.search(r"\b\d{3}\.\d[\d.]*\b", module.read_text())
        version = match[0] if match else ""
    except OSError:
        version = None
    nodes = sorted(path for pattern in _NODES for path in dev.glob(pattern))
    forbidden = tuple(str(path) for path in nodes if not os.access(path, os.R_OK | os.W_OK))
    return DriverReading(version, tuple(map(str, nodes)), forbidden)


def _gpu(node: ElementTree.Element) -> GpuReading:
    volatile = node.find("ecc_errors/volatile")
    errors = [_number(each.text) for each in volatile if "uncorrectable" in each.tag] if volatile is not None else []
    known = [number for number in errors if number is not None]
    return GpuReading(
        uuid=_text(node, "uuid"),
        name=_text(node, "product_name"),
        total_bytes=_mebibytes(_text(node, "fb_memory_usage/total")) or 0,
        used_bytes=_mebibytes(_text(node, "fb_memory_usage/used")) or 0,
        compute_mode=_text(node, "compute_mode"),
        mig=_text(node, "mig_mode/current_mig") == "Enabled",
        mig_slices=len(node.findall("mig_devices/mig_device")),
        ecc_uncorrectable=sum(known) if known else None,
        remap_pending=_text(node, "remapped_rows/remapped_row_pending") == "Yes",
        remap_failed=_text(node, "remapped_rows/remapped_row_failure") == "Yes",
        recovery_action=_text(node, "gpu_recovery_action"),
        processes=tuple(_process(each) for each in node.findall("processes/process_info")),
    )


def _process(node: ElementTree.Element) -> GpuProcess:
    pid = _number(_text(node, "pid")) or 0
    name = Path(_text(node, "process_name").partition(" ")[0]).name[:_NAME_CHARS]
    is_worker = False
    with suppress(
        psutil.Error, OSError, ValueError
    ):  # another user's, or the host's, whose pids a container does not know
        is_worker = RUN_ID in psutil.Process(pid).environ()
    return GpuProcess(pid, plain(name), _mebibytes(_text(node, "used_memory")), is_worker)


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _number(text: str | None) -> int | None:
    match = re.match(r"\s*(\d+)", text or "")
    return int(match[1]) if match else None


def _mebibytes(text: str) -> int | None:
    number = _number(text)
    return number << 20 if number is not None else None
