"""Code that asks for a GPU while it is loaded in a template, where none is shown, is noticed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkvisor_worker.taint import GpuQuestions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path; what is imported from it is forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # transformers makes a package of this name in its cache, and another test of this process may have imported it.
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def loaded(folder: Path, files: dict[str, str], name: str) -> str:
    """What was asked while `name` was imported."""
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / path).write_text(text)
    with GpuQuestions() as questions:
        __import__(name)
    return questions.asked


ASK = "import torch\nDEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'\n"


@pytest.mark.parametrize(
    ("files", "name", "asked"),
    [
        pytest.param(
            {"ask_plain.py": ASK}, "ask_plain", "ask_plain, line 2, asks torch.cuda.is_available()", id="a plug-in"
        ),
        pytest.param(
            {"ask_helper.py": ASK, "ask_by_helper.py": "import ask_helper\n"},
            "ask_by_helper",
            "ask_helper, line 2, asks torch.cuda.is_available()",
            id="what a plug-in imports",
        ),
        pytest.param(
            {"ask_count.py": "from torch.cuda import device_count\nN = device_count()\n"},
            "ask_count",
            "ask_count, line 2, asks torch.cuda.device_count()",
            id="by name",
        ),
        pytest.param(
            {"ask_later.py": "import torch\ndef f():\n    return torch.cuda.is_available()\n"},
            "ask_later",
            "",
            id="not while it is loaded",
        ),
        pytest.param({"ask_nothing.py": "import json\n"}, "ask_nothing", "", id="nothing"),
        pytest.param(
            {
                "transformers_modules/__init__.py": "",
                "transformers_modules/m/code.py": "from transformers.utils import is_flash_attn_2_available\n",
            },
            "transformers_modules.m.code",
            "transformers_modules.m.code can ask transformers' is_flash_attn_2_available()",
            id="by a function that keeps its answer",
        ),
    ],
)
def test_who_asks(folder: Path, files: dict[str, str], name: str, asked: str) -> None:
    """Code of the model or the plug-in that asks while it is loaded is named, with its line."""
    pytest.importorskip("torch")
    assert loaded(folder, files, name) == asked


def test_libraries_may_ask_and_torch_is_as_it_was_afterwards(folder: Path) -> None:
    """A library's own question counts for nothing, since it is asked again after the fork; nothing listens on."""
    torch = pytest.importorskip("torch")
    original = torch.cuda.is_available
    library = {
        "accelerate/__init__.py": "",
        "accelerate/asks.py": ASK,
        "ask_imports.py": "import accelerate.asks\nassert accelerate.asks.DEVICE == 'cpu'\n",
    }
    assert loaded(folder, library, "ask_imports") == ""
    assert torch.cuda.is_available is original
    assert not any(isinstance(finder, GpuQuestions) for finder in sys.meta_path)
