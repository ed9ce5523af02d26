"""Makes the virtual environments of the null GPU's tests: torch's CUDA wheel, which `make test`
does without.

They lie outside the checkout, one for each torch, for all checkouts together:
`build.cache_folder()`. The checkout's own packages are reached by PYTHONPATH. `python
environment.py 2.13.0` prints the path of its Python; a first call takes minutes and 5 GB. With
`--if-there` it makes nothing, and ends with 1 if there is none.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from build import cache_folder

ROOT = Path(__file__).parents[2]
MARKER = "chunkvisor-nullgpu"
"""In an environment that is complete: digest of the requirements it was made from."""
_NOT_FOR_PIP = {"PYTHONPATH", "LD_PRELOAD", "PYTHONDONTWRITEBYTECODE"}
_TEST_TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")


def requirements(torch: str) -> tuple[list[str], list[str]]:
    """What is installed, and the versions it is bound to: as pyproject.toml and constraints.txt
    have them.

    Three equals signs: `torch==2.13.0` would as well take a build for the CPU that pip happens to
    see (PEP 440, local versions), which `===` compares as text.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [f"torch==={torch}", *project["dependencies"], *_TEST_TOOLS]
    wanted += [
        each for each in (*extras["worker"], *extras["minilm"]) if not each.startswith("torch")
    ]
    lines = (
        line.partition("#")[0].strip()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    )
    return wanted, [line for line in lines if line and not re.match(r"torch\b", line)]


def make(folder: Path, wanted: list[str], constraints: list[str]) -> None:
    """Make it, or complete one that is there. Raises CalledProcessError, whose command says why."""
    python = folder / "bin" / "python"
    print(f"making {folder}: torch for CUDA, 5 GB, some minutes", file=sys.stderr)
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_PIP}
    if not python.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, env=environment)
    bounds = folder / "constraints.txt"
    bounds.write_text("\n".join(constraints) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The tests import a third of the 13,000 modules: their first import compiles them, most of them
    # here.
    subprocess.run([*pip, "--no-compile", "-c", str(bounds), *wanted], check=True, env=environment)
    check = (
        "import sentence_transformers, torch; assert str(torch.version.cuda).startswith('13.'), "
        "torch.version.cuda"
    )
    subprocess.run([str(python), "-c", check], check=True, env=environment)


def main(torch: str, *, only_if_there: bool) -> None:
    """Print the path of the environment's Python."""
    folder, (wanted, constraints) = cache_folder() / f"t-{torch}", requirements(torch)
    digest = hashlib.sha256("\n".join([*wanted, *constraints]).encode()).hexdigest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another checkout may be making it
        marker = folder / MARKER
        if not marker.exists() or marker.read_text().strip() != digest:
            if only_if_there:
                raise SystemExit(1)
            marker.unlink(missing_ok=True)
            make(folder, wanted, constraints)
            marker.write_text(digest + "\n")
    print(folder / "bin" / "python")


if __name__ == "__main__":
    main(sys.argv[-1], only_if_there="--if-there" in sys.argv)
