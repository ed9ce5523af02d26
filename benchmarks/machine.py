"""What figures depend on: the CPU, its instructions, and the versions of what computes."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PACKAGES = (
    *("torch", "sentence-transformers", "transformers", "tokenizers", "openvino", "fastembed", "onnxruntime"),
    "optimum-intel",
)
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16")
VERSIONS = f"""
from importlib import metadata
for name in {PACKAGES}:
    try: print(name, metadata.version(name))
    except metadata.PackageNotFoundError: pass
"""


def machine(peers_python: Path) -> dict[str, Any]:
    """What the figures depend on."""
    known: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        known.setdefault(key.strip(), value.strip())
    flags = [name for name in INSTRUCTIONS if name in known.get("flags", "").split()]
    versions = {"chunkvisor's": sys.executable, "peers'": str(peers_python)}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": f"{known.get('model name')}, family {known.get('cpu family')}, model {known.get('model')}",
        "instructions": flags,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {side: versions_of(python) for side, python in versions.items() if Path(python).exists()},
    }


def versions_of(python: str) -> str:
    """Of the packages that matter in that environment."""
    said = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout
    return ", ".join(said.splitlines())
