"""`python -m chunkvisor_worker.probe OUT.json` tries out torch on the CPU and every visible GPU."""

import contextlib
import importlib.metadata
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.messages import Phase, ProbedGpu, ProbeReport
from chunkvisor_worker.contract.wire import write_message
from chunkvisor_worker.faults import fault_of
from chunkvisor_worker.liveness import die_with_parent, exit_now

_PACKAGES = (
    "torch",
    "sentence-transformers",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "numpy",
)
_SIZE = 64


def probe(out: Path) -> ProbeReport:
    """Fill the report step by step, saving it before each. Raises OSError if it cannot be saved."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        # A half-removed package has a folder of metadata without a version.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, KeyError, TypeError):
            versions[name] = str(importlib.metadata.version(name))
    report = ProbeReport(Phase.IMPORT, versions)

    def reached(**news: Any) -> None:
        nonlocal report
        report = replace(report, **news)
        write_message(out, report)

    try:
        reached()
        import torch

        reached(phase=Phase.FORWARD, cuda=torch.version.cuda, hip=torch.version.hip)
        _multiply(torch, "cpu")
        # With an empty CUDA_VISIBLE_DEVICES torch is to see no GPU, as in a worker on the CPU.
        if report.cuda and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            reached(phase=Phase.CUDA_INIT)
            # An allocation says why there is no GPU; is_available() only says that there is none.
            torch.zeros(1, device="cuda")
            for index in range(torch.cuda.device_count()):
                _multiply(torch, f"cuda:{index}")
                properties = torch.cuda.get_device_properties(index)
                capability = tuple(torch.cuda.get_device_capability(index))
                gpu = ProbedGpu(
                    str(properties.name), capability, int(torch.cuda.mem_get_info(index)[1])
                )
                reached(gpus=(*report.gpus, gpu))
        reached(phase=Phase.DONE)
    except BaseException as error:  # noqa: BLE001 - a broken installation may raise anything
        reached(fault=fault_of(error, report.phase))
    return report


def _multiply(torch: Any, device: str) -> None:
    """Compute a product whose result is known, with the kernels and the BLAS library."""
    ones = torch.ones((_SIZE, _SIZE), device=device)
    total = float((ones @ ones).sum().item())
    if total != _SIZE**3:
        raise ArithmeticError(
            f"a product of matrices of ones on {device} sums up to {total}, not {_SIZE**3}"
        )


def main() -> None:
    """Parse the one argument, probe, exit."""
    die_with_parent()
    report = probe(Path(sys.argv[1]))
    exit_now(WorkerExit.FAULT if report.fault else WorkerExit.DONE)


if __name__ == "__main__":
    main()
