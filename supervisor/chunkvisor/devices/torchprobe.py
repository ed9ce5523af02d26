"""Asks torch, in a child process, which GPUs it can compute on: `chunkvisor_worker.probe`.

nvidia-smi and CUDA are two doors to the same driver, and either may be shut while the other is open: under WSL2
nvidia-smi is often not on PATH, and after a driver upgrade NVML fails while CUDA works. What a worker needs is CUDA.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.child import run_child
from chunkvisor.store.attemptlogs import last_line, read_tail
from chunkvisor_worker.contract.probe import ProbeReport
from chunkvisor_worker.contract.wire import read_message

_TIMEOUT_S = 180.0
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
            return f"torch gave no answer within {_TIMEOUT_S:.0f} s"
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
            returncode = run_child(command, log, on_wait, environment, _TIMEOUT_S)
        return ProbeReading(read_message(ProbeReport, out), returncode, read_tail(log))
