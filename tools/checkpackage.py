"""Installs the wheel of a folder in fresh environments, with each extra alone.

`python tools/checkpackage.py dist`.
"""

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
    (wheel,) = folder.glob("*.whl")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
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
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
