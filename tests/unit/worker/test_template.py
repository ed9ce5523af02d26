"""What a template shows the code that it loads."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkvisor_worker.template import ShownGpu


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path; what is imported from it is forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


def test_code_that_asks_is_answered_as_in_a_worker(folder: Path) -> None:
    """What a plug-in, or what it imports, asks while it is loaded; afterwards torch is as it was."""
    torch = pytest.importorskip("torch")
    original = torch.cuda.is_available
    asks = "import torch\nDEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
    (folder / "ask_plain.py").write_text(
        f"{asks}from torch.cuda import device_count\nCOUNT = device_count()\n"
    )
    (folder / "ask_by.py").write_text("import ask_plain")
    with ShownGpu():
        found = importlib.import_module("ask_by").ask_plain
    assert (found.DEVICE, found.COUNT) == ("cuda", 1)
    assert torch.cuda.is_available is original
    assert not any(isinstance(finder, ShownGpu) for finder in sys.meta_path)
