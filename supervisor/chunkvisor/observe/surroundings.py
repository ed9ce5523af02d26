"""What a run found around it: versions, host, kernel, driver, variables of note.

It never imports what it names, never starts a process, and leaves secrets out.
"""

import os
import platform
import re
import socket
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from chunkvisor.observe.secretless import without_secrets
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import read_bounded

_PACKAGES = ("numpy", "duckdb", "pydantic", "psutil", "rich")
"""Of the parent; the worker's own versions come with its first result."""

_OF_NOTE = re.compile(
    r"(CUDA|NVIDIA|NCCL|HF|TRANSFORMERS|SENTENCE_TRANSFORMERS|TORCH|PYTORCH|OMP|MKL|OPENBLAS|TOKENIZERS|CUBLAS|SLURM_JOB)_"
    r"|(SLURM_(NODEID|PROCID|RESTART_COUNT)|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD|CONDA_PREFIX|VIRTUAL_ENV|LANG|LC_ALL|TERM)$"
)

_DRIVER = Path("/proc/driver/nvidia/version")


def surroundings(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Plain values for environment.json."""
    variables = {name: value for name, value in sorted(environment.items()) if _OF_NOTE.match(name)}
    return {
        "chunkvisor": __version__,
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "nvidia_driver": driver_version(),
        "variables": without_secrets(variables),
        "worker_versions": {},
    }


def driver_version(path: Path = _DRIVER) -> str | None:
    """Of the NVIDIA kernel module, from /proc; None where none is loaded."""
    match = re.search(rb"Kernel Module[^\n]*?\s(\d+\.\d+[\d.]*)\s", read_bounded(path) or b"")
    return match[1].decode() if match else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
