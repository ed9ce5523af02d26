"""The environment, start and end of worker processes, fresh or warm, here or on a node."""

import functools
import os
import re
import select
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from chunkvisor.devices.gpu import CPU, Device
from chunkvisor_worker.contract.exits import PARENT_PID, PARENT_PIPE, RUN_ID

# The longest wait for killed processes: in uninterruptible sleep they survive the kill.
_DEATH_S = 10.0

# --- the environment

_FIXED = {
    # The stack of a native crash, and of a hang ended by SIGABRT, goes to the worker's log.
    "PYTHONFAULTHANDLER": "1",
    # The last lines before a kill are in the log.
    "PYTHONUNBUFFERED": "1",
    # The model was resolved before the first worker: none of them waits for, or is limited by, the
    # hub.
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # CUDA's own order is fastest first; in this one, its indices are nvidia-smi's.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # With expandable segments, torch asks NVML for fabric handles and asserts if NVML is broken;
    # nothing here shares memory between processes, which is all that it is needed for.
    "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "0",
}
# Threads that spin at every barrier starve the worker next to them: on 2 cores that others use as
# well, a batch takes more than twice as long as with threads that sleep
# (docs/explanation/performance.md).
_CPU_DEFAULTS = {"OMP_WAIT_POLICY": "PASSIVE"}
_THREADS_NEXT_TO_GPU = 8

# With these a child would speak to the service manager in the parent's name (sd_notify(3)).
SERVICE_MANAGERS = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
_REMOVED = SERVICE_MANAGERS | {
    # Makes every allocation a cudaMalloc: someone's forgotten debugging aid, and very slow.
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    # After its end, a worker would read Python from its standard input.
    "PYTHONINSPECT",
}


def thread_count(wanted: str | None, device_kind: str, cores: int) -> int:
    """Return the threads of a worker: what OMP_NUM_THREADS (`wanted`) says, else the usable cores.

    For a GPU eight at most. The libraries do not choose, so that a forked worker adds up numbers
    in the same order as a fresh one.
    """
    # It may have a number for each level of nesting (OpenMP 5.2, 21.2.3).
    first = (wanted or "").partition(",")[0].strip()
    if first.isdecimal() and int(first):
        return int(first)
    return max(1, cores if device_kind == "cpu" else min(cores, _THREADS_NEXT_TO_GPU))


@functools.cache
def _open_pipe(pid: int) -> str:
    """Return the path of a pipe that is open as long as this process lives; empty on old kernels.

    There a pipe may signal the end of any of its readers: each worker would end all others.
    """
    release = map(int, re.findall(r"\d+", os.uname().release)[:2])
    if tuple(release) < (5, 10):
        return ""
    reading, _ = os.pipe()
    return f"/proc/{pid}/fd/{reading}"


def worker_environment(
    base: Mapping[str, str],
    device: Device,
    run_id: str,
    extra: Mapping[str, str],
    *,
    threads: int,
) -> dict[str, str]:
    """Make the environment of a worker on `device`: `base`, what we need, and `extra` over both.

    The worker sees one GPU, by its UUID: indices are not consistent between reboots (nvidia-smi's
    manual).
    """
    kept = {name: value for name, value in base.items() if name not in _REMOVED}
    return {
        **(_CPU_DEFAULTS if device == CPU else {}),
        **kept,
        **_FIXED,
        "OMP_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": device.uuid,  # empty for the CPU
        **extra,
        RUN_ID: run_id,
        PARENT_PID: str(os.getpid()),
        PARENT_PIPE: _open_pipe(os.getpid()),
    }


# --- start and end


def end(process: subprocess.Popen[bytes], grace_s: float = 0.0) -> None:
    """Kill the process and its group, unless it ends within `grace_s`."""
    for wait_s in (grace_s, _DEATH_S):
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def end_orphans(folder: Path, run_id: str) -> list[int]:
    """Kill every process here that this finished run has started; return their pids.

    Workers end when their parent dies, with their groups. What may be left is a process that has
    left its group, or one that hangs in the kernel. It has the run's id in its environment; or, if
    that was emptied, its output goes to a log in `folder`.
    """
    logs = f"{folder.resolve()}/"
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            streams = (
                str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in (1, 2)
            )
            ours = process.environ().get(RUN_ID) == run_id or any(
                stream.startswith(logs) for stream in streams
            )
            if ours and process.pid != os.getpid():
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=_DEATH_S)
    return [process.pid for process in found]


def readable(fd: int, wait_s: float = 0.0) -> bool:
    """Say whether the descriptor is readable, or becomes so within `wait_s`.

    By poll(2), since select(2) takes no descriptor over 1023.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


# --- memory


def count_oom_kills() -> int:
    """Count the processes that the kernel has killed for lack of memory; 0 without a counter.

    Those of all cgroups count. A SIGKILL is no evidence of it, but a rise of this count is.
    """
    with suppress(OSError):
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0
