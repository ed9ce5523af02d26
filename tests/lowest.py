"""Runs a part of the tests with the lowest versions that pyproject.toml allows: `make test-lowest`.

The environment is made anew in .lowest. Left out are the extras `worker`, `minilm` and `ray`, which
are of gigabytes: tests that need a model skip. The newest versions are those of constraints.txt,
which every other verb uses.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMOKE = (
    "tests/unit",
    *(
        f"tests/process/test_{name}.py"
        for name in ["resume", "status", "outside", "plan", "report", "encode"]
    ),
)
TOOLS = ("hypothesis", "pyte", "pytest", "pytest-timeout", "pytest-xdist", "hatchling")
"""Of the group dev, in whatever version pip likes: they are no part of what people install."""


def lowest(requirements: list[str]) -> list[str]:
    """`a>=1.0; marker` as `a==1.0; marker`."""
    return [each.replace(">=", "==", 1) for each in requirements]


def main() -> int:
    """The program."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = lowest([*project["dependencies"], *extras["notify"], *extras["parquet"]])
    folder = ROOT / ".lowest"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted, *TOOLS], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", ROOT], check=True)
    print("lowest:", *wanted, flush=True)
    return subprocess.run(
        [folder / "bin" / "pytest", "-q", "-n", "2", *SMOKE], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
