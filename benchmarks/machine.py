"""What figures depend on: the CPU, its instructions, and the versions of what computes."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PACKAGES = (
    *(
        "torch",
        "sentence-transformers",
        "transformers",
        "tokenizers",
        "openvino",
        "fastembed",
        "onnxruntime",
    ),
    "optimum-intel",
)
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16")
VERSIONS = f"""
from importlib import metadata
for name in {PACKAGES}:
    try: print(name, metadata.version(name))
    except metadata.PackageNotFoundError: pass
"""


def machine(peers_python: Path | None = None) -> dict[str, Any]:
    """What the figures depend on; with the versions in the peers' environment as well."""
    known: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        known.setdefault(key.strip(), value.strip())
    flags = [name for name in INSTRUCTIONS if name in known.get("flags", "").split()]
    versions = {"chunkvisor's": sys.executable}
    if peers_python is not None and peers_python.exists():
        versions["peers'"] = str(peers_python)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": f"{known.get('model name')}, family {known.get('cpu family')}, model "
        f"{known.get('model')}",
        "instructions": flags,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {side: versions_of(python) for side, python in versions.items()},
    }


def machine_line() -> str:
    """The same in one line, above a table of figures."""
    told = machine()
    cpu = (
        f"{told['cpu']} ({', '.join(told['instructions']) or 'neither AVX2 nor more'}), "
        f"{told['cores']} cores"
    )
    return f"{told['date']}, {cpu}, Python {told['python']}, {', '.join(told['versions'].values())}"


def versions_of(python: str) -> str:
    """Of the packages that matter in that environment."""
    said = subprocess.run(
        [python, "-c", VERSIONS], capture_output=True, text=True, check=True
    ).stdout
    return ", ".join(said.splitlines())
