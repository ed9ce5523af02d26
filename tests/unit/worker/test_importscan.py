"""What transformers finds out about its modules as it is imported: the same, sooner."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chunkvisor_worker import importscan, lateimports
from chunkvisor_worker.importscan import hasten, of_last_lines
from chunkvisor_worker.lateimports import LateImports

CONTENT = """
import functools

read = []

@functools.lru_cache(1)
def create_import_structure_from_path(module_path):
    read.append(module_path)
    return {}

def fetch__all__(file_content):
    return [line for line in file_content.splitlines() if line.startswith("__all__")]
"""


@pytest.fixture
def scanner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`scanning.utils`, imported as transformers' is."""
    (tmp_path / "scanning").mkdir()
    (tmp_path / "scanning/__init__.py").write_text("")
    (tmp_path / "scanning/utils.py").write_text(CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in (importscan, lateimports):
        monkeypatch.setattr(module, "SCANNER", "scanning.utils")
    with LateImports():
        yield import_module("scanning.utils")
    for name in ("scanning.utils", "scanning"):
        del sys.modules[name]


def test_each_folder_is_read_once(scanner: Any) -> None:
    """However many there are; the module is otherwise as it was imported."""
    for folder in ("a", "b", "a", "b"):
        scanner.create_import_structure_from_path(folder)

    assert scanner.read == ["a", "b"]
    assert isinstance(scanner.__loader__, importlib.machinery.SourceFileLoader)
    assert scanner.__spec__.loader is scanner.__loader__
    assert scanner.__file__.endswith("scanning/utils.py")


@pytest.mark.parametrize(
    ("content", "given"),
    [
        ("", None),
        ("x = 1\n", None),
        ("# about __all__\n", None),
        ("  __all__ = [1]\n", None),
        ('__all__ = ["a"]', '__all__ = ["a"]'),
        ('x = 1\n__all__ = ["a"]\ny = 2\n', '__all__ = ["a"]\ny = 2\n'),
        ('__all__ = ["a"]\n__all__ = ["b"]\n', '__all__ = ["b"]\n'),
        ('__all__ = [\n    "a",\n]\n', '__all__ = [\n    "a",\n]\n'),
    ],
)
def test_only_the_end_is_looked_through(content: str, given: str | None) -> None:
    """From the last line on that begins with `__all__`; where there is none, there are no names."""
    seen: list[str] = []

    def names(file_content: str) -> list[str]:
        seen.append(file_content)
        return ["a"]

    assert of_last_lines(names)(content) == (["a"] if given is not None else [])
    assert seen == ([given] if given is not None else [])


def test_functions_that_are_others_stay() -> None:
    """Of another version: without a cache, with other arguments, or not there."""
    module = SimpleNamespace(create_import_structure_from_path=len, fetch__all__=lambda path, content: [path, content])
    before = dict(vars(module))
    hasten(module)
    assert vars(module) == before
    hasten(SimpleNamespace())


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_names_of_transformers_are_the_same() -> None:
    """Of every seventh module of its models, by its own function and by the one that replaces it."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    tree = ast.parse((folder / "utils/import_utils.py").read_text(encoding="utf-8"))
    tree.body = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "fetch__all__"]
    if not tree.body:
        pytest.skip("this version of transformers has no such function")
    space: dict[str, Any] = {}
    exec(compile(tree, "import_utils.py", "exec"), space)  # that function alone: to import transformers takes seconds
    names = space["fetch__all__"]
    found = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("models/*/*.py"))[::7]]

    assert [of_last_lines(names)(content) for content in found] == [names(content) for content in found]
    assert any(map(names, found))
