"""What a run found around it (versions, host, kernel, driver, variables of note), and how secrets are left out of it.

Nothing is imported to learn its version, and no process is started.
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
from urllib.parse import urlsplit

import psutil

from chunkvisor.config.secretnames import is_secret
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import read_bounded

_PACKAGES = ("numpy", "duckdb", "pydantic", "psutil", "rich")
"""Of the parent; the worker's own versions come with its first result."""

_OF_NOTE = re.compile(
    r"(CUDA|NVIDIA|NCCL|HF|TRANSFORMERS|SENTENCE_TRANSFORMERS|TORCH|PYTORCH|OMP|MKL|OPENBLAS|TOKENIZERS|CUBLAS|SLURM_JOB)_"
    r"|(SLURM_(NODEID|PROCID|RESTART_COUNT)|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD|CONDA_PREFIX|VIRTUAL_ENV|LANG|LC_ALL|TERM)$"
)

_DRIVER = Path("/proc/driver/nvidia/version")

LEFT_OUT = "(left out)"

_ADDRESS_KEYS = frozenset({"notify"})
"""Their values are addresses with the secret somewhere in the path; only the scheme is harmless."""

_CREDENTIALS = re.compile(r"://[^/\s@]+@")
"""Without the scheme before it: to look for the start of one at every letter of a long text takes for ever."""


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


def without_secrets(value: Any, name: str = "") -> Any:
    """Plain values once more, with the secrets replaced; `name` is the key that the value stands under."""
    if isinstance(value, Mapping):
        if name == "env":
            return dict.fromkeys(value, LEFT_OUT)  # what a person hands to workers may be anything
        return {key: without_secrets(item, str(key)) for key, item in value.items()}
    if value is None or isinstance(value, bool | float):
        return value
    if is_secret(name):
        return LEFT_OUT
    if isinstance(value, int):
        return value
    if isinstance(value, list | tuple):
        return [without_secrets(item, name) for item in value]
    if name in _ADDRESS_KEYS:
        scheme = urlsplit(str(value)).scheme  # none where pydantic has hidden the whole of it
        return f"{scheme}://{LEFT_OUT}" if scheme else LEFT_OUT
    return _CREDENTIALS.sub(f"://{LEFT_OUT}@", str(value))
