"""The notebooks of examples/notebooks: their cells run from top to bottom, here with a model of
eight dimensions.
"""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import ENCODERS, ROOT, STAND_IN, model_folder, path_with

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PROMISED = {
    "first_vectors": [r"^How do I bake bread\?  ->  "],
    "a_long_run": [
        "^outcome: hardware_fault$",
        "chunk 2, attempt 2: crashed; retrying",
        "^0 crashed .*sentences.txt:1$",
    ],
}
"""What a notebook prints, by what it is called."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model, from which workers find the encoders of the tests."""
    model_folder(tmp_path / "model")
    monkeypatch.setenv("PYTHONPATH", path_with(STAND_IN, ENCODERS))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    logging.getLogger("chunkvisor").setLevel(logging.NOTSET)


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    """Its cells."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text("utf-8"))["cells"]
    return cells


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_run(notebook: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every cell runs, one after the other, and prints what is promised."""
    pytest.importorskip("pandas")
    names: dict[str, Any] = {}
    for cell in cells_of(notebook):
        if cell["cell_type"] == "code":
            source = re.sub(
                r"^MODEL = .*", 'MODEL = "model"', "".join(cell["source"]), flags=re.MULTILINE
            )
            exec(compile(source, f"{notebook.name}, cell {cell['id']}", "exec"), names)
    printed = capsys.readouterr().out
    for words in PROMISED[notebook.stem]:
        assert re.search(words, printed, re.MULTILINE), (words, printed)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_clean(notebook: Path) -> None:
    """No output is stored in it, nor a count of executions, so that a change shows what was
    changed.
    """
    for cell in cells_of(notebook):
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == (
            [],
            None,
        )
