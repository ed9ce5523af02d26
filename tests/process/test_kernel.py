"""`chunkvisor.encode` in the kernel of a notebook: what its cells show, and what of it a saved
notebook holds.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

import pytest

from harness import ENCODERS, path_with
from late import Late, needs

nbclient, nbformat = Late("nbclient"), Late("nbformat")
pytestmark = [needs("nbclient"), needs("ipykernel")]

CELLS = {
    "start": 'import chunkvisor\nfew = {"model": "m", "device": "cpu", "chunk_size": 1, "set": '
    '["workers.standby=0"]}',
    "lost": '_ = chunkvisor.encode(["one", "bad"], encoder="deadly:make", **few)',
    "refused": 'chunkvisor.encode(["one", 3], encoder="good:make", **few)',
    "no hub": 'few["set"] += ["recovery.wait_timeout=0.1"]\nchunkvisor.encode(["one"], **few)',
    "theirs": 'def texts():\n    yield 1 / 0\n\nchunkvisor.encode(texts(), encoder="good:make", '
    "**few)",
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Any]]:
    """What each cell has put out, by its name, as it is saved."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    )
    client = nbclient.NotebookClient(
        notebook,
        timeout=120,
        allow_errors=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    env = {"PYTHONPATH": path_with(ENCODERS), "HF_ENDPOINT": "http://127.0.0.1:9"}
    client.execute(env={**os.environ, **env, "IPYTHONDIR": str(folder)})
    assert not notebook.cells[0].outputs
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def traceback_in(outputs: list[Any]) -> str:
    """The end of a cell that failed, without colours."""
    assert outputs[-1].output_type == "error"
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(outputs[-1].traceback))


def test_an_error_shows_the_readers_line_and_the_message(shown: Mapping[str, list[Any]]) -> None:
    """The line of the cell stands first, and the message last; a generator's own frames are shown."""
    said = traceback_in(shown["refused"])
    assert f"----> 1 {CELLS['refused']}" in said
    assert (
        "\n\nChunkvisorError: texts[1] is not a string: int 3\ndo:  Convert it, or give None for "
        "an empty" in said
    )
    assert "----> 2     yield 1 / 0" in traceback_in(shown["theirs"]), (
        "the frames of a generator are the reader's own"
    )


def test_a_saved_notebook_has_the_warning(shown: Mapping[str, list[Any]]) -> None:
    """A text without a vector is warned of below its cell, and a hub that cannot be reached is an
    error in words.
    """
    assert (
        "QuarantineWarning: 1 row has no vector: texts[1]\n  bad_output: " in shown["lost"][-1].text
    )
    assert "The model hub cannot be reached" in traceback_in(shown["no hub"])
