"""tests/gpu where there is no GPU: one skipped line, and a page that has every case."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from harness import ROOT

_RUN = "import sys, pytest; pytest.main(['tests/gpu', '-q', '-p', 'no:cacheprovider']); print('torch' in sys.modules)"


def cases() -> dict[str, bool]:
    """The cases by name, and whether they need kernels that compute."""
    found = {}
    for path in (ROOT / "tests" / "gpu").glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [ast.unparse(each) for each in node.decorator_list]
                found[node.name.removeprefix("test_")] = any("kernels_that_compute" in each for each in marks)
    return found


def test_without_a_gpu_it_is_one_skipped_line(tmp_path: Path) -> None:
    """Where there is no nvidia-smi, the folder is skipped as a whole, and torch is not imported to find that out."""
    env = {name: value for name, value in os.environ.items() if name != "CHUNKVISOR_TEST_GPU"}
    ended = subprocess.run(
        [sys.executable, "-c", _RUN], cwd=ROOT, env={**env, "PATH": str(tmp_path)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert re.findall("SKIPPED.*", ended.stdout) == [
        line for line in ended.stdout.splitlines() if "nvidia-smi lists no GPU" in line
    ], ended.stdout
    assert "1 skipped" in ended.stdout
    assert ended.stdout.endswith("False\n")


def test_the_page_lists_the_cases() -> None:
    """The page has a line for every case and for no other, and says "no" where a null GPU cannot show it."""
    page = (ROOT / "tests" / "gpu" / "README.md").read_text("utf-8")
    listed = dict(re.findall(r"^\| `(\w+)` \|.*\| (\S+) \|$", page, re.MULTILINE))

    assert {name: listed[name] == "no" for name in listed} == cases()
