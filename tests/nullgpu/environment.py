"""Makes the virtual environments of the null GPU's tests: torch's CUDA wheel, which `make test` does without.

They lie outside the checkout, one for each torch, for all checkouts together: `build.cache_folder()`. The checkout's
own packages are reached by PYTHONPATH. A half-made environment is made again. `python environment.py 2.13.0` prints the
path of its Python; a first call takes minutes and 5 GB. With `--if-there` it makes nothing, and ends with 1 where there
is none.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from build import cache_folder

ROOT = Path(__file__).parents[2]
MARKER = "chunkvisor-nullgpu"
"""In an environment that is complete: digest of the requirements it was made from."""

_NOT_FOR_PIP = {"PYTHONPATH", "LD_PRELOAD", "PYTHONDONTWRITEBYTECODE"}
_TEST_TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")


def ensure_environment(torch: str) -> Path:
    """The Python of the environment with this torch; makes it where it is not complete.

    Raises SystemExit, in words, where there is no disk, no network or no such torch.
    """
    if found := find_environment(torch):
        return found
    folder = cache_folder() / f"t-{torch}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody else may be making it
        if not find_environment(torch):
            _make(folder, python, torch, *requirements(torch))
            (folder / MARKER).write_text(_digest(torch) + "\n")
    return python


def find_environment(torch: str) -> Path | None:
    """The Python of the environment with this torch; None where it is not there, or was made for another checkout."""
    folder = cache_folder() / f"t-{torch}"
    try:
        complete = (folder / MARKER).read_text().strip() == _digest(torch)
    except FileNotFoundError:
        return None
    return folder / "bin" / "python" if complete else None


def requirements(torch: str) -> tuple[list[str], list[str]]:
    """What is installed, and the versions it is bound to: as pyproject.toml and constraints.txt have them.

    Three equals signs: `torch==2.13.0` would as well take a build for the CPU that pip happens to see (PEP 440, local
    versions), which `===` compares as text.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [f"torch==={torch}", *project["dependencies"], *_TEST_TOOLS]
    wanted += [each for each in (*extras["worker"], *extras["minilm"]) if not each.startswith("torch")]
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return wanted, [line for line in lines if line and not re.match(r"torch\b", line)]


def _digest(torch: str) -> str:
    wanted, constraints = requirements(torch)
    return hashlib.sha256("\n".join([*wanted, *constraints]).encode()).hexdigest()


def _make(folder: Path, python: Path, torch: str, wanted: list[str], constraints: list[str]) -> None:
    began_s = time.monotonic()
    if not _works(python):
        shutil.rmtree(folder, ignore_errors=True)
        free = shutil.disk_usage(folder.parent).free / 1e9
        print(f"making {folder}: torch {torch} for CUDA, 5 GB, some minutes; {free:.0f} GB are free", file=sys.stderr)
        if free < 12:
            raise SystemExit(f"{folder.parent} has {free:.1f} GB free; 5 GB are needed, and by pip as much again")
        _run([sys.executable, "-m", "venv", str(folder)])
    else:
        print(f"completing {folder}", file=sys.stderr)
    (folder / MARKER).unlink(missing_ok=True)
    bounds = folder / "constraints.txt"
    bounds.write_text("\n".join(constraints) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The tests import a third of the 13,000 modules: their first import compiles them, most of them here.
    _run([*pip, "--no-compile", "-c", str(bounds), *wanted])
    cuda = _run([str(python), "-c", "import sentence_transformers, torch; print(torch.version.cuda or '')"]).strip()
    if not cuda.startswith("13."):
        raise SystemExit(f"torch {torch} in {folder} is built for {cuda or 'the CPU'}, not for CUDA 13")
    print(f"made in {time.monotonic() - began_s:.0f} s", file=sys.stderr)


def _works(python: Path) -> bool:
    try:
        return subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _run(command: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_PIP}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"this failed, and says why above: {' '.join(command)}")
    return done.stdout


def main(arguments: list[str]) -> None:
    """Print the path. Raises SystemExit."""
    match arguments:
        case ["--if-there", torch]:
            found = find_environment(torch)
            if found is None:
                raise SystemExit(1)
            print(found)
        case [torch]:
            print(ensure_environment(torch))
        case _:
            raise SystemExit("usage: python tests/nullgpu/environment.py [--if-there] TORCH_VERSION")


if __name__ == "__main__":
    main(sys.argv[1:])
