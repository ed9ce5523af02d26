"""Installs the wheel of a folder in fresh environments, with each extra alone.

Then runs the quickstart from it, with the lowest versions that pyproject.toml allows.

`python tools/checkpackage.py dist`.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAVY = ("worker", "ray")
"""Gigabytes, which `make test` installs anyway: of these only what pip would install is asked."""


def main(folder: Path) -> int:
    """Return 0 if the wheel installs with each extra, and its command says its version."""
    (wheel,) = folder.absolute().glob("*.whl")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for extra in ("", *extras):
        asked = f"{wheel}[{extra}]" if extra else str(wheel)
        with tempfile.TemporaryDirectory() as place:
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
            dry = ["--dry-run"] if extra in HEAVY else []
            python = Path(place, "bin", "python")
            subprocess.run([python, "-m", "pip", "install", "--quiet", *dry, asked], check=True)
            if not dry:
                subprocess.run([python.with_name("chunkvisor"), "--version"], check=True)
        sys.stdout.write(f"installs: {wheel.name}[{extra}]\n")
    required = [*project["dependencies"], *extras["worker"]]
    quickstart(wheel, [each.replace(">=", "==", 1) for each in required])
    return 0


def quickstart(wheel: Path, versions: list[str]) -> None:
    """Do what `make quickstart` does, with the wheel and these versions in a fresh environment."""
    with tempfile.TemporaryDirectory() as place:
        for name in ("quickstart", "configs"):
            made = shutil.ignore_patterns("data", "cache")
            shutil.copytree(ROOT / name, Path(place, name), ignore=made)
        subprocess.run([sys.executable, "-m", "venv", f"{place}/venv"], check=True)
        python = Path(place, "venv", "bin", "python")
        asked = [f"{wheel}[worker,minilm]", *versions]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *asked], check=True)
        commands: tuple[list[str | Path], ...] = (
            [python, "quickstart/harvest.py"],
            [python, "quickstart/model.py"],
            [python.with_name("chunkvisor"), "run", "configs/quickstart.yaml"],
            [python, "quickstart/neighbors.py"],
        )
        for command in commands:
            subprocess.run(command, cwd=place, check=True)
    sys.stdout.write(f"the quickstart runs with: {' '.join(versions)}\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
