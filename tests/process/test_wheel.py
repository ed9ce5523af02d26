"""The wheel: it has every file of the source, and a run with nothing but what is in it completes."""

import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness import ROOT, Workplace, path_with, said_by

PACKAGES = {"chunkvisor": ROOT / "supervisor", "chunkvisor_worker": ROOT / "worker"}


def run_apart(*command: str | Path, **env: str) -> str:
    """What a command says that has to succeed; away from the checkout, so that none of it is
    imported.
    """
    return said_by(*command, cwd=Path("/"), env=env)


@pytest.mark.skipif(
    find_spec("hatchling") is None, reason="hatchling, which builds the wheel, is not installed"
)
def test_the_wheel_runs(workplace: Workplace) -> None:
    """Built, installed beside the dependencies and started by its own script, it embeds three
    texts.
    """
    made, installed = workplace.folder / "made", workplace.folder / "installed"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run_apart(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made, ROOT)
    (wheel,) = made.glob("chunkvisor-*.whl")

    names = set(zipfile.ZipFile(wheel).namelist())
    for package, folder in PACKAGES.items():
        files = [
            path
            for path in (folder / package).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        ]
        assert {str(path.relative_to(folder)) for path in files} <= names
    assert {name.partition("/")[0] for name in names} == {
        *PACKAGES,
        wheel.name.partition("-py3")[0] + ".dist-info",
    }

    run_apart(*pip, "install", "--no-deps", "--no-index", "--target", installed, wheel)
    workplace.prepare(["a", "b", "c"], "good:make")
    path = path_with(installed)
    where = run_apart(
        sys.executable, "-c", "import chunkvisor; print(chunkvisor.__file__)", PYTHONPATH=path
    )
    assert Path(where.strip()).is_relative_to(installed)
    run_apart(installed / "bin" / "chunkvisor", "run", workplace.config_path, PYTHONPATH=path)

    workplace.has(["a", "b", "c"])
