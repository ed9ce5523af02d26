"""What keeps a template from being forked from: code that asks for a GPU while it is loaded, and threads."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkvisor_worker.template import GpuQuestions, find_taint


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
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


ASK = "import torch\nDEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'\n"


@pytest.mark.parametrize(
    ("files", "name", "asked"),
    [
        pytest.param(
            {"ask_plain.py": ASK}, "ask_plain", "ask_plain, line 2, asks torch.cuda.is_available()", id="a plug-in"
        ),
        pytest.param(
            {"ask_count.py": "from torch.cuda import device_count as n\nN = n()\n", "ask_by.py": "import ask_count"},
            "ask_by",
            "ask_count, line 2, asks torch.cuda.device_count()",
            id="what a plug-in imports",
        ),
        pytest.param(
            {"ask_later.py": "import torch\ndef f():\n    return torch.cuda.is_available()\n"},
            "ask_later",
            "",
            id="not while it is loaded",
        ),
        pytest.param(
            {
                "transformers_modules/__init__.py": "",
                "transformers_modules/m/code.py": "from transformers.utils import is_flash_attn_2_available\n",
            },
            "transformers_modules.m.code",
            "transformers_modules.m.code can ask transformers' is_flash_attn_2_available()",
            id="by a function that keeps its answer",
        ),
        pytest.param(
            {"accelerate/__init__.py": "", "accelerate/asks.py": ASK, "ask_imports.py": "import accelerate.asks"},
            "ask_imports",
            "",
            id="a library, which asks again after the fork",
        ),
    ],
)  # fmt: skip
def test_who_asks(folder: Path, files: dict[str, str], name: str, asked: str) -> None:
    """Code of the model or the plug-in that asks while it is loaded is named, with its line; nothing listens on."""
    torch = pytest.importorskip("torch")
    original = torch.cuda.is_available
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / path).write_text(text)
    with GpuQuestions() as questions:
        __import__(name)
    assert questions.asked == asked
    assert torch.cuda.is_available is original
    assert questions not in sys.meta_path


def test_the_asking_thread_is_none_of_them_whatever_its_number() -> None:
    """A thread may have a lower number than the one that asks: numbers begin anew at pid_max."""
    found: list[str] = []

    def ask() -> None:
        Path("/proc/thread-self/comm").write_text("asks")
        found.append(find_taint())

    younger = threading.Thread(target=ask)  # asks with the higher number, as if numbers had begun anew
    younger.start()
    younger.join()
    assert "has started threads" in found[0]
    assert "asks" not in found[0]
