"""Ends workers that a killed supervisor left behind: whatever bears the id of a run that is over.

Not by pid, which may be anybody's by now, nor by name.
"""

import contextlib
import os
import signal
import time
from collections.abc import Set

import psutil

from chunkvisor_worker.contract.environment import RUN_ID

_PATIENCE_S = 10.0


def end_orphans(*run_ids: str) -> list[int]:
    """Kill every process on this machine that one of these finished runs has started; returns their pids.

    Workers end themselves when their supervisor dies; what is left is what they have started, or one that hangs in
    the kernel. Waits for their end, 10 s at most.
    """
    wanted = set(run_ids) - {""}  # no run yet, only a `clean`
    if not wanted:
        return []
    found = [process for process in psutil.process_iter() if process.pid != os.getpid() and _bears(process, wanted)]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE_S
    psutil.wait_procs(found, timeout=max(0.0, deadline - time.monotonic()))
    return [process.pid for process in found]


def _bears(process: psutil.Process, run_ids: Set[str]) -> bool:
    try:
        return process.environ().get(RUN_ID) in run_ids
    except (psutil.Error, OSError):
        return False
