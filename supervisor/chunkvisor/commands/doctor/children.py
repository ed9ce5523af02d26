"""Child processes of the doctor: each in its own session, with a time limit, and gone when it is over.

It never waits for a child that cannot be killed: one that sleeps in a driver is left behind.
"""

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from chunkvisor.commands.doctor.readings import ProbeReading
from chunkvisor.devices.gpu import CPU, Device
from chunkvisor.engine.environment import worker_environment
from chunkvisor.store.attempt import read_tail
from chunkvisor_worker.contract.environment import PARENT_PID
from chunkvisor_worker.contract.files import open_log
from chunkvisor_worker.contract.messages import read_message
from chunkvisor_worker.contract.probe import ProbeReport

PROBE_TIMEOUT_S = 180.0
"""The import of torch from a slow network disk takes a minute; CUDA, with many GPUs, some seconds for each."""
_PATIENCE_S = 10.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def environment_of(base: Mapping[str, str], devices: Sequence[Device], extra: Mapping[str, str]) -> dict[str, str]:
    """What workers on the devices get, but for the pid of a parent: a worker run by hand waits at no gate.

    Without a device (no config, or one whose GPU is not there), the child sees the GPUs that this command sees.
    """
    cores = len(os.sched_getaffinity(0))
    environment = worker_environment(base, CPU, secrets.token_hex(8), os.getpid(), extra, threads=cores)
    del environment[PARENT_PID]
    environment[_VISIBLE] = ",".join(device.uuid for device in devices)
    if not devices:
        del environment[_VISIBLE]
        if _VISIBLE in base:
            environment[_VISIBLE] = base[_VISIBLE]
    return environment


def run_child(command: Sequence[str], environment: Mapping[str, str], log: Path, timeout_s: float) -> int | None:
    """Run it to its end; its return code, or None when time ran out. Raises OSError where it cannot be started."""
    with open_log(log) as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=dict(environment),
            start_new_session=True,
        )
    pidfd = os.pidfd_open(process.pid)
    ended = False
    try:
        ended = bool(select.select([pidfd], [], [], timeout_s)[0])
    finally:
        os.close(pidfd)
        # Until it is reaped, the kernel gives its number to no other group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)
    return process.returncode if ended else None


def run_probe(environment: Mapping[str, str], folder: Path) -> ProbeReading:
    """What `chunkvisor_worker.probe` finds out in that environment. Raises OSError."""
    out, log = folder / "probe.json", folder / "probe.log"
    command = [sys.executable, "-P", "-m", "chunkvisor_worker.probe", str(out)]
    returncode = run_child(command, environment, log, PROBE_TIMEOUT_S)
    return ProbeReading(read_message(ProbeReport, out), returncode, read_tail(log))
